//! `annulus serve echo`: sends back what it receives.

use std::io::{self, Write};
use std::process::ExitCode;

use annulus::net::{Incoming, TcpStream, UdpSocket, UnixListener, UnixStream};
use annulus::runtime::{self, CoreInfo, RuntimeBuilder};

use super::address::{EchoAddr, Options};
use super::runtime_of;
use crate::args::EchoArgs;
use crate::bench::allow_many_open_files;
use crate::fault::Fault;
use crate::signals;
use crate::watching;

/// Receive buffers for datagrams: each takes the longest there is, with its header.
const DATAGRAM_BUFFERS: (u16, u32) = (64, 65_568);

pub(crate) fn echo(args: &EchoArgs) -> Result<ExitCode, Fault> {
    if args.threads == 0 {
        return Err(Fault::usage("--threads is 0; it must be at least 1"));
    }
    // Before anything is asked of a ring, which remembers the limit.
    allow_many_open_files();
    signals::listen()?;
    signals::end_in_order();
    let address = EchoAddr::of(&Options {
        addr: args.addr,
        unix: args.unix.as_deref(),
        udp: args.udp,
    })?;
    let _watching = watching::serving(&args.watch)?;
    let failed = |error: io::Error| Fault::failed(error.to_string());
    let mut end = None;
    let started = |handle: runtime::Handle| {
        end = Some(signals::on_first(move || handle.shutdown()));
    };
    let outcome = builder(args).run_with(started, |core| serve(core, &address));
    outcome.map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

fn builder(args: &EchoArgs) -> RuntimeBuilder {
    let of_datagrams = args.udp.then_some(DATAGRAM_BUFFERS);
    runtime_of(
        args.backend,
        args.threads,
        args.sqpoll,
        &args.receive,
        of_datagrams,
    )
}

/// The listener of one core.
enum Listener {
    Tcp(Incoming<TcpStream>),
    Unix(Incoming<UnixStream>),
    Udp(UdpSocket),
}

/// The future borrows nothing: it outlives the call that makes it.
fn serve(core: CoreInfo, address: &EchoAddr) -> impl Future<Output = io::Result<()>> + use<> {
    let listener = listen(address);
    let says = address.to_string();
    async move {
        let listener = listener?;
        if core.index() == 0 {
            eprintln!("annulus: {}", core.backend());
            let mut out = io::stdout().lock();
            writeln!(out, "listening on {says}")?;
            out.flush()?;
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
    let at =
        |error: io::Error| io::Error::new(error.kind(), format!("listening on {address}: {error}"));
    match address {
        EchoAddr::Tcp(shared) => {
            let listener = shared.listen()?;
            // For all its connections: an answer in several pieces does not wait for acknowledgements.
            listener.options().set_nodelay(true).map_err(at)?;
            Ok(Listener::Tcp(listener.accept_multishot()))
        }
        EchoAddr::Udp(shared) => Ok(Listener::Udp(shared.receive()?)),
        EchoAddr::Unix(listener, _) => {
            let listener = UnixListener::from_std(listener.try_clone().map_err(at)?)?;
            Ok(Listener::Unix(listener.accept_multishot()))
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
            Err(error) => eprintln!("annulus: accept: {error}"),
        }
    }
}

/// Until the client has said all it has to say, or goes.
async fn echo_tcp(stream: TcpStream) {
    // A message may be answered in several sends: a later one would wait until the client has acknowledged
    // the one before it, which may take the client 40 ms. Without it the answer is slower, and still right.
    let _ = stream.set_nodelay(true);
    let mut chunks = stream.recv_multishot();
    while let Some(Ok(chunk)) = chunks.next().await {
        // Not waited for, unless the client is slow to read.
        if let Err(chunk) = stream.try_send(chunk)
            && stream.send_all(chunk).await.is_err()
        {
            return;
        }
    }
}

/// The same on a Unix stream.
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

/// Each datagram goes back to whom it came from; one that can't is dropped, as any router might.
async fn echo_datagrams(socket: UdpSocket) {
    let mut datagrams = socket.recv_multishot();
    while let Some(datagram) = datagrams.next().await {
        if let Ok(datagram) = datagram {
            let _ = socket.send_to(datagram.chunk, datagram.from).await;
        }
    }
}
