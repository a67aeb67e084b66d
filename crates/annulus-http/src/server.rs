//! Accepting: a task for each connection of a core's listeners, and the task that runs the ticks.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, Write};
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

/// The time in seconds after which a connection without data is accepted, too.
const DEFER_S: u32 = 1;
/// The shortest time between two reports of a failed accept.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The descriptors of the process and of each core for other purposes than connections and files: standard streams,
/// log, rings, listeners. Generous estimates.
const PROCESS_DESCRIPTORS: usize = 16;
const CORE_DESCRIPTORS: usize = 8;
/// One in this number of a core's descriptors is kept for files.
const FILES_PART: usize = 4;

/// Serves the connections that `listener` accepts, on the calling core of a runtime.
///
/// Call it on each core, with a listener per core. It returns when the runtime is stopping. Connections that wait for a
/// request are then closed; others have the [grace](annulus::runtime::RuntimeBuilder::grace) period to finish.
///
/// ```
/// use annulus::net::{TcpListener, TcpStream};
/// use annulus::runtime::{self, Runtime};
/// use annulus_http::Options;
/// use annulus_http::site::SiteOptions;
///
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?;
/// std::fs::write(dir.path().join("hello.txt"), "Hello, World!")?;
/// let mut site = SiteOptions::default();
/// site.root = dir.path().into();
/// let options = Options::new(site);
///
/// Runtime::builder().cores(1).run(|_core| {
///     let options = options.clone();
///     async move {
///         let listener = TcpListener::bind("127.0.0.1:0")?;
///         let address = listener.local_addr()?;
///         runtime::spawn(async move { annulus_http::serve(listener, &options).await });
///
///         let client = TcpStream::connect(address).await?;
///         let request = "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
///         client.send_all(request).await?;
///         let (mut response, mut chunks) = (Vec::new(), client.recv_multishot());
///         while let Some(chunk) = chunks.next().await {
///             response.extend_from_slice(&chunk?);
///         }
///         assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
///         assert!(response.ends_with(b"\r\n\r\nHello, World!"));
///         Ok(())
///     }
/// })
/// # }
/// ```
///
/// # Errors
///
/// Fails with any error of opening the site's root directory, unchanged, and if the listener cannot accept any more.
///
/// # Panics
///
/// Panics if called outside a runtime.
pub async fn serve(listener: TcpListener, options: &Options) -> io::Result<()> {
    serve_all(vec![listener], options).await
}

/// Serves several listeners as [`serve`] does. They share the core's limits and caches.
///
/// A listener may be a Unix socket: `TcpListener::from_std(std::net::TcpListener::from(OwnedFd::from(listener)))`. Its
/// clients have no address in the access log.
///
/// # Errors
///
/// Fails with any error of opening the site's root directory, unchanged, and if a listener cannot accept any more.
///
/// # Panics
///
/// Panics if called outside a runtime.
pub async fn serve_all(listeners: Vec<TcpListener>, options: &Options) -> io::Result<()> {
    let core = PerCore::new(options)?;
    let tls = options.tls.clone();
    for listener in &listeners {
        // Connections inherit both options. With TCP_NODELAY, a response in several sends does not wait for
        // acknowledgements. A Unix socket refuses it and does not need it.
        let _ = listener.options().set_nodelay(true);
        // The client sends first. If the option is refused, connections are accepted a little earlier than necessary.
        let _ = listener.options().set_defer_accept(DEFER_S);
    }
    drop(runtime::spawn(run_ticks(Rc::clone(&core))));
    let failing = Rc::clone(&core);
    let last_report: Rc<Cell<Option<Instant>>> = Rc::default();
    let mut incoming = Listeners::new(listeners, move |error| {
        if let Some(Errno::MFILE | Errno::NFILE) = Errno::from_io_error(error) {
            failing.free_descriptors();
        }
        let reported = last_report.get();
        if reported.is_none_or(|reported| reported.elapsed() >= REPORT_EVERY) {
            last_report.set(Some(Instant::now()));
            let _ = writeln!(
                io::stderr(),
                "annulus: cannot accept a connection: {error}; retrying in 10 ms"
            );
        }
    });
    let connections = connections_max(core.limits.connections);
    loop {
        let open = core.watches.connections() + incoming.queued();
        incoming.set_limit(connections.saturating_sub(open));
        match incoming.next().await {
            Some(Ok(stream)) => {
                poll_fn(|context| core.watches.poll_capacity(context, connections)).await;
                start(stream, &core, tls.as_ref());
            }
            Some(Err(error)) => return Err(error),
            None => return Ok(()),
        }
    }
}

/// Returns the connection limit of each core: the requested one, but at most the core's share of the descriptor limit,
/// without those kept for files and for the runtime.
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

/// Performs the handshake and serves the connection. A connection that does not speak TLS ends here.
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

/// Awaits `future` until the deadline of the connection.
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

/// Ends a connection whose handshake failed. The alert is sent and the client's remaining data read, because otherwise
/// a reset could overtake the alert.
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

/// Runs the ticks while there are connections or lines for the log, and handles the end of the runtime.
async fn run_ticks(core: Rc<PerCore>) {
    let watches = &core.watches;
    let mut stopping = pin!(runtime::stopping());
    loop {
        poll_fn(|context| {
            if !watches.is_stopping() && stopping.as_mut().poll(context).is_ready() {
                watches.stop();
            }
            // The last connections may have gone before the writer received their log lines.
            if core.log.as_ref().is_some_and(Log::has_lines) {
                return Poll::Ready(());
            }
            watches.poll_any(context)
        })
        .await;
        core.tick();
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
