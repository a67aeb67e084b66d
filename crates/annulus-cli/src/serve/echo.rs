//! `annulus serve echo`: sends back what it receives.

use std::io::{self, Write};
use std::process::ExitCode;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, CoreInfo, Runtime};

use crate::args::{EchoArgs, ServeBackend};
use crate::fault::Fault;

pub(crate) fn echo(args: &EchoArgs) -> Result<ExitCode, Fault> {
    let backend = match args.backend {
        ServeBackend::Auto => runtime::Backend::Auto,
        ServeBackend::Uring => runtime::Backend::Uring,
        ServeBackend::Epoll => runtime::Backend::Epoll,
    };
    let builder = Runtime::builder().backend(backend).threads(args.threads);
    let address = args.addr;
    builder
        .run(move |core| serve(core, address))
        .map_err(|error| Fault::Failed(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(core: CoreInfo, address: std::net::SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    if core.index() == 0 {
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {}", listener.local_addr()?)?;
        out.flush()?;
    }
    let mut incoming = listener.accept_multishot();
    while let Some(stream) = incoming.next().await {
        match stream {
            Ok(stream) => drop(runtime::spawn(answer(stream))),
            Err(error) => eprintln!("annulus: accept: {error}"),
        }
    }
    Ok(())
}

/// Until the client has said all it has to say, or goes.
async fn answer(stream: TcpStream) {
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
