//! Accepting: a listener's connections, each with a task of its own; and who looks at the time for all of them. Once
//! per core.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use annulus::net::{TcpListener, TcpStream};
use annulus::{runtime, time};
use annulus_adapters::stream::AsyncStream;
use tokio::io::{AsyncBufRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::conn::{Connection, LINGER_BYTES_MAX, within};
use crate::http2;
use crate::listeners::Listeners;
use crate::log::Log;
use crate::options::Options;
use crate::per_core::PerCore;
use crate::transport::Tls;
use crate::watch::{Phase, Place};

/// A client that says nothing is accepted after so many seconds, and then has its time.
const DEFER_S: u32 = 1;
/// Why nothing can be accepted is said at most so often.
const SAY_EVERY: Duration = Duration::from_secs(1);

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
        // Connections inherit both. An answer in several sends does not wait for acknowledgements; refused on a Unix
        // socket, where there are none.
        let _ = listener.options().set_nodelay(true);
        // The client speaks first. Refused, a connection is accepted a little earlier than need be.
        let _ = listener.options().set_defer_accept(DEFER_S);
    }
    drop(runtime::spawn(look(Rc::clone(&core))));
    let mut incoming = Listeners::new(listeners);
    let mut said: Option<Instant> = None;
    let connections = core.limits.connections.max(1);
    loop {
        match incoming.next().await {
            Some(Ok(stream)) => {
                poll_fn(|context| core.watches.poll_room(context, connections)).await;
                start(stream, &core, tls.as_ref());
            }
            Some(Err(error)) => {
                if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                    said = Some(Instant::now());
                    eprintln!("annulus: accepting: {error}");
                }
            }
            None => return Ok(()),
        }
    }
}

fn start(stream: TcpStream, core: &Rc<PerCore>, tls: Option<&Arc<ServerConfig>>) {
    let place = core.watches.enter();
    match tls {
        None => drop(runtime::spawn(plain(stream, Rc::clone(core), place))),
        Some(tls) => {
            let acceptor = TlsAcceptor::from(Arc::clone(tls));
            drop(runtime::spawn(encrypted(
                stream,
                acceptor,
                Rc::clone(core),
                place,
            )));
        }
    }
}

async fn plain(stream: TcpStream, core: Rc<PerCore>, place: Place) {
    let connection = Connection::new(stream, Rc::clone(&core), place);
    if let Some((stream, place)) = connection.run().await {
        let peer = stream.peer_addr().ok();
        Box::pin(http2::serve(AsyncStream::new(stream), peer, core, place)).await;
    }
}

/// What is no TLS ends with the handshake.
async fn encrypted(stream: TcpStream, acceptor: TlsAcceptor, core: Rc<PerCore>, place: Place) {
    place.set(Phase::Busy, core.ticks.handshake);
    let handshake = acceptor.accept(AsyncStream::new(stream)).into_fallible();
    let stream = match within(&place, handshake).await {
        Some(Ok(stream)) => stream,
        Some(Err((_, stream))) => {
            place.set(Phase::Busy, core.ticks.linger);
            within(&place, refuse(stream)).await;
            return;
        }
        None => return,
    };
    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        let peer = stream.get_ref().0.get_ref().peer_addr().ok();
        return Box::pin(http2::serve(stream, peer, core, place)).await;
    }
    let scratch = Rc::clone(&core.scratch);
    Connection::new(Tls::new(stream, scratch), core, place)
        .run()
        .await;
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
            // The last connections may have gone before their lines were handed over.
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
    }
}
