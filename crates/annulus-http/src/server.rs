//! Accepting: a listener's connections, each with a task of its own; and who looks at the time for all of them. Once
//! per core.

#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use annulus::net::AsyncStream;
use annulus::net::{TcpListener, TcpStream};
use annulus::{runtime, time};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::conn::{Connection, LINGER_BYTES_MAX};
use crate::http2::{self, Client};
use crate::listeners::Listeners;
use crate::log::Log;
use crate::options::Options;
use crate::per_core::PerCore;
use crate::transport::Tls;
use crate::watch::{Phase, Registration};

/// A client that says nothing is accepted after N seconds, and then has its time.
const DEFER_S: u32 = 1;
/// Why nothing can be accepted is reported at most so often.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Descriptors of the process and of each core besides connections and files: standard streams, the log, rings,
/// listeners. A generous count.
const PROCESS_DESCRIPTORS: usize = 16;
const CORE_DESCRIPTORS: usize = 8;
/// One of N of a core's descriptors is left for files.
const FILES_PART: usize = 4;

/// Serves the connections that `listener` accepts, on the calling core of a runtime. When the runtime ends, those that
/// wait for a request are closed, and others have its [grace](annulus::runtime::RuntimeBuilder::grace) to finish.
///
/// # Errors
///
/// What is served can't be opened.
pub async fn serve(listener: TcpListener, options: &Options) -> io::Result<()> {
    serve_all(vec![listener], options).await
}

/// As [`serve`], with several listeners, which share the core's limits and caches. The socket of one may be a Unix
/// socket: `TcpListener::from_std(std::net::TcpListener::from(OwnedFd::from(listener)))`. Its clients have no address
/// in the access log.
///
/// # Errors
///
/// What is served can't be opened.
pub async fn serve_all(listeners: Vec<TcpListener>, options: &Options) -> io::Result<()> {
    let core = PerCore::new(options)?;
    let tls = options.tls.clone();
    for listener in &listeners {
        // Connections inherit both. A response in several sends does not wait for acknowledgements; refused on a Unix
        // socket, where there are none.
        let _ = listener.options().set_nodelay(true);
        // The client speaks first. Refused, a connection is accepted a little earlier than need be.
        let _ = listener.options().set_defer_accept(DEFER_S);
    }
    drop(runtime::spawn(look(Rc::clone(&core))));
    let mut incoming = Listeners::new(listeners);
    let mut last_report: Option<Instant> = None;
    let connections = connections_max(core.limits.connections);
    loop {
        let open = core.watches.connections() + incoming.queued();
        incoming.set_limit(connections.saturating_sub(open));
        match incoming.next().await {
            Some(Ok(stream)) => {
                poll_fn(|context| core.watches.poll_capacity(context, connections)).await;
                start(stream, &core, tls.as_ref());
            }
            Some(Err(error)) => {
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::MFILE | Errno::NFILE)
                ) {
                    core.free_descriptors();
                }
                if last_report.is_none_or(|last_report| last_report.elapsed() >= REPORT_EVERY) {
                    last_report = Some(Instant::now());
                    eprintln!(
                        "annulus: accepting a connection: {error}; the next attempt is in 10 ms"
                    );
                }
            }
            None => return Ok(()),
        }
    }
}

/// The number of connections of each core: as many as wanted, within its share of the descriptors that the process
/// may have, of which a part is left for files and for the runtime.
fn connections_max(requested: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    let fit = limit.map_or(usize::MAX, |limit| {
        connections_that_fit(limit, runtime::handle().cores())
    });
    requested.min(fit).max(1)
}

fn connections_that_fit(descriptors: usize, cores: usize) -> usize {
    let share = descriptors.saturating_sub(PROCESS_DESCRIPTORS) / cores.max(1);
    let files = share / FILES_PART;
    share.saturating_sub(CORE_DESCRIPTORS + files).max(1)
}

fn start(stream: TcpStream, core: &Rc<PerCore>, tls: Option<&Arc<ServerConfig>>) {
    let registration = core.watches.enter();
    core.note_crowd();
    match tls {
        None => drop(runtime::spawn(plain(stream, Rc::clone(core), registration))),
        Some(tls) => {
            let acceptor = TlsAcceptor::from(Arc::clone(tls));
            drop(runtime::spawn(encrypted(
                stream,
                acceptor,
                Rc::clone(core),
                registration,
            )));
        }
    }
}

async fn plain(stream: TcpStream, core: Rc<PerCore>, registration: Registration) {
    let connection = Connection::new(stream, Rc::clone(&core), registration);
    if let Some((stream, registration)) = connection.run().await {
        let client = Client::of(&stream);
        Box::pin(http2::serve(
            AsyncStream::new(stream),
            client,
            core,
            registration,
        ))
        .await;
    }
}

/// What is no TLS ends with the handshake.
async fn encrypted(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    core: Rc<PerCore>,
    registration: Registration,
) {
    registration.set(Phase::Busy, core.ticks.handshake);
    let handshake = acceptor.accept(AsyncStream::new(stream)).into_fallible();
    let stream = match within(&registration, handshake).await {
        Some(Ok(stream)) => stream,
        Some(Err((_, stream))) => {
            registration.set(Phase::Busy, core.ticks.linger);
            within(&registration, refuse(stream)).await;
            return;
        }
        None => return,
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let client = Client::of(stream.get_ref().0.get_ref());
        return Box::pin(http2::serve(stream, client, core, registration)).await;
    }
    let scratch = Rc::clone(&core.scratch);
    Connection::new(Tls::new(stream, scratch), core, registration)
        .run()
        .await;
}

/// Awaits `future` until the deadline of the connection has passed.
async fn within<F: Future>(registration: &Registration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        if registration.take_expired() {
            return Poll::Ready(None);
        }
        registration.wait(context);
        Poll::Pending
    })
    .await
}

/// Ends a connection whose handshake has failed so that the client gets to see why, which is an alert that has been
/// written: it is sent, and what the client still sends is read, or a reset would overtake the alert.
async fn refuse(mut stream: AsyncStream<TcpStream>) {
    let closed = poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await;
    let mut left = LINGER_BYTES_MAX;
    while closed.is_ok() && left > 0 {
        let received = poll_fn(|context| {
            Pin::new(&mut stream)
                .poll_fill_buf(context)
                .map_ok(<[u8]>::len)
        })
        .await;
        let Ok(bytes @ 1..) = received else {
            return;
        };
        Pin::new(&mut stream).consume(bytes);
        left = left.saturating_sub(bytes);
    }
}

/// Looks at the time as long as there are connections or lines to be logged, and sees to the end.
async fn look(core: Rc<PerCore>) {
    let watches = &core.watches;
    let mut stopping = pin!(runtime::stopping());
    loop {
        poll_fn(|context| {
            if !watches.is_stopping() && stopping.as_mut().poll(context).is_ready() {
                watches.stop();
            }
            // The last connections may have gone before the writer had their lines.
            if core.log.as_ref().is_some_and(Log::has_lines) {
                return Poll::Ready(());
            }
            watches.poll_any(context)
        })
        .await;
        core.look();
        if watches.is_stopping() && watches.connections() == 0 {
            return;
        }
        let mut sleep = pin!(time::sleep(watches.tick()));
        poll_fn(|context| {
            if !watches.is_stopping() && stopping.as_mut().poll(context).is_ready() {
                watches.stop();
                return Poll::Ready(());
            }
            if watches.is_stopping() && watches.connections() == 0 {
                return Poll::Ready(());
            }
            sleep.as_mut().poll(context)
        })
        .await;
        core.trim();
    }
}
