//! A plain server on Tokio and hyper, without Annulus: `hyper_hello 127.0.0.1:8080 [THREADS]`.
//!
//! `bench/preload` runs it with and without the preload library.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let threads = words.get(1).map_or(Ok(1), |text| text.parse::<usize>());
    let address = words.first().map(|text| text.parse::<SocketAddr>());
    let (Some(Ok(address)), Ok(threads @ 1..), ..=2) = (address, threads, words.len()) else {
        eprintln!("usage: hyper_hello ADDRESS:PORT [THREADS]");
        return ExitCode::from(2);
    };
    match runtime(threads).and_then(|runtime| runtime.block_on(serve(address))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serving at {address} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn runtime(threads: usize) -> Result<Runtime, Box<dyn Error>> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    Ok(builder.enable_all().build()?)
}

/// Serves until SIGTERM. A process that a signal kills prints no counters of the preload library.
async fn serve(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address).await?;
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        let stream = tokio::select! {
            _ = terminated.recv() => return Ok(()),
            accepted = listener.accept() => accepted?.0,
        };
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            // A disconnecting client is not an error.
            let _ = (http.pipeline_flush(true))
                .serve_connection(TokioIo::new(stream), service_fn(hello))
                .await;
        });
    }
}

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(
        b"Hello, World!",
    ))))
}
