//! An HTTP server as most people would write it today: hyper on Tokio, on one thread, with a task per connection. It
//! responds to every request with the same body from memory, and opens no file.

use std::convert::Infallible;
use std::io;
use std::net;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::listening::{accept_failed, without_delay};

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: net::TcpListener, body: Vec<u8>) -> io::Result<Infallible> {
    without_delay(&listener)?;
    listener.set_nonblocking(true)?;
    let body = Bytes::from(body);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(respond(TokioIo::new(stream), body.clone()))),
                Err(error) => accept_failed(&error)?,
            }
        }
    })
}

/// Serves one connection until the client closes it. An error ends only this connection.
async fn respond(stream: TokioIo<tokio::net::TcpStream>, body: Bytes) -> Result<(), hyper::Error> {
    let service = service_fn(move |_: Request<Incoming>| {
        let response = Response::new(Full::new(body.clone()));
        std::future::ready(Ok::<_, Infallible>(response))
    });
    // Responses to pipelined requests are sent together.
    let mut http = http1::Builder::new();
    http.pipeline_flush(true)
        .serve_connection(stream, service)
        .await
}
