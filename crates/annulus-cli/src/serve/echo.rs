//! `annulus serve echo`: sends received data back.

use std::io;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use annulus::net::{Incoming, TcpStream, UdpSocket, UnixListener, UnixStream};
use annulus::runtime::{self, CoreInfo};

use super::address::EchoAddr;
use super::{announce, end_at_signal, runtime_of};
use crate::args::EchoArgs;
use crate::bench::machine::allow_many_open_files;
use crate::fault::Fault;
use crate::signals;
use crate::watching;

/// The receive buffers for datagrams. Each holds a datagram of the maximum length, with its header.
const DATAGRAM_BUFFERS: (u16, u32) = (64, 65_568);

pub(crate) fn echo(args: &EchoArgs) -> Result<ExitCode, Fault> {
    let runtime = runtime_of(&args.runtime, args.udp.then_some(DATAGRAM_BUFFERS))?;
    // Before the first ring, which stores the limit.
    allow_many_open_files();
    signals::listen()?;
    signals::end_in_order();
    let address = EchoAddr::of(args)?;
    let _watching = watching::serving(&args.watch)?;
    let failed = |error: io::Error| Fault::failed(error.to_string());
    let end = OnceLock::new();
    let outcome = runtime.run(|core| {
        end_at_signal(&core, &end);
        serve(core, &address)
    });
    outcome.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// The listener of one core.
enum Listener {
    Tcp(Incoming<TcpStream>),
    Unix(Incoming<UnixStream>),
    Udp(UdpSocket),
}

/// Serves one core. The future borrows nothing, because it outlives the call that returns it.
fn serve(core: CoreInfo, address: &EchoAddr) -> impl Future<Output = io::Result<()>> + use<> {
    let listener = listen(address);
    let address_text = address.to_string();
    async move {
        let listener = listener?;
        if core.index() == 0 {
            announce(&core, &format!("listening on {address_text}\n"));
        }
        match listener {
            Listener::Tcp(mut incoming) => accept(async || incoming.next().await, echo_tcp).await,
            Listener::Unix(mut incoming) => accept(async || incoming.next().await, echo_unix).await,
            Listener::Udp(socket) => echo_datagrams(socket).await,
        }
        Ok(())
    }
}

fn listen(address: &EchoAddr) -> io::Result<Listener> {
    let at = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    };
    match address {
        EchoAddr::Tcp(shared) => {
            let listener = shared.listen()?;
            // For all its connections: a reply in several pieces does not wait for acknowledgements.
            listener.options().set_nodelay(true).map_err(at)?;
            let mut incoming = listener.accept_multishot();
            incoming.on_failure(reporter());
            Ok(Listener::Tcp(incoming))
        }
        EchoAddr::Udp(shared) => Ok(Listener::Udp(shared.receive()?)),
        EchoAddr::Unix(listener, _) => {
            let listener = UnixListener::from_std(listener.try_clone().map_err(at)?)?;
            let mut incoming = listener.accept_multishot();
            incoming.on_failure(reporter());
            Ok(Listener::Unix(incoming))
        }
    }
}

/// Returns a function that reports a failed accept on standard error, once a second at most.
fn reporter() -> impl FnMut(&io::Error) {
    let mut reported: Option<Instant> = None;
    move |error| {
        if reported.is_none_or(|reported| reported.elapsed() >= Duration::from_secs(1)) {
            reported = Some(Instant::now());
            note!("annulus: cannot accept a connection: {error}; retrying in 10 ms");
        }
    }
}

/// Starts a task for each connection.
async fn accept<S, F>(
    mut next: impl AsyncFnMut() -> Option<io::Result<S>>,
    serve_one: impl Fn(S) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    while let Some(stream) = next().await {
        match stream {
            Ok(stream) => drop(runtime::spawn(serve_one(stream))),
            Err(error) => return note!("annulus: cannot accept any more connections: {error}"),
        }
    }
}

/// Echoes until the client ends its direction or closes the connection.
async fn echo_tcp(stream: TcpStream) {
    // A reply may need several sends. A later one would wait until the client has acknowledged the previous one, which
    // may take 40 ms. If the option cannot be set, the reply is slower, but correct.
    let _ = stream.set_nodelay(true);
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        // This blocks only if the client is slow to read.
        if let Err(chunk) = stream.try_send(chunk)
            && stream.send_all(chunk).await.is_err()
        {
            return;
        }
    }
}

/// Echoes on a Unix stream.
async fn echo_unix(stream: UnixStream) {
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        if let Err(chunk) = stream.try_send(chunk)
            && stream.send_all(chunk).await.is_err()
        {
            return;
        }
    }
}

/// Sends each datagram back to its sender. If that fails, the datagram is dropped, as in any network.
async fn echo_datagrams(socket: UdpSocket) {
    let mut datagrams = socket.recv_multishot();
    while let Some(datagram) = datagrams.next().await {
        if let Ok(datagram) = datagram {
            let _ = socket.send_to(datagram.chunk, datagram.from).await;
        }
    }
}
