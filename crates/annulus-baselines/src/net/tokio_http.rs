//! An HTTP server as most people would write it today: hyper on Tokio, on one thread, with a task per connection. It
//! responds to every request with the same body from memory, and opens no file.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::listening::serve_in_tasks;

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: TcpListener, body: Vec<u8>) -> io::Result<Infallible> {
    let body = Bytes::from(body);
    serve_in_tasks(listener, move |stream| {
        respond(TokioIo::new(stream), body.clone())
    })
}

/// Serves one connection until the client closes it. An error ends only this connection.
async fn respond(stream: TokioIo<TcpStream>, body: Bytes) -> Result<(), hyper::Error> {
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
