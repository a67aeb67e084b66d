//! The endpoint: a thread with a small HTTP server.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use annulus::metrics::snapshot;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

use super::Exposition;

/// Connections served at the same time; others wait until one ends.
const CONNECTIONS_MAX: usize = 16;
/// How long a client may take to say what it wants.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last: a request, and its answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// The longest request that is read.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Before the next connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(100);

const ROOT: &str = "Annulus: what is measured is at /metrics\n";
const PLAIN: &str = "text/plain; charset=utf-8";

/// A listening endpoint. Dropped, it ends.
#[derive(Debug)]
#[must_use = "dropped, it answers no more"]
pub struct Endpoint {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// Answers `GET /metrics` at `addr`, on a thread of its own. Every process that can reach that address can read it: outside of the
/// loopback that is anybody.
///
/// # Errors
///
/// The address can't be listened at, or there is no thread.
pub fn serve(addr: SocketAddr) -> io::Result<Endpoint> {
    let at = |error: io::Error| {
        let says = format!("can't listen for readers of metrics at {addr}: {error}");
        io::Error::new(error.kind(), says)
    };
    let listener = std::net::TcpListener::bind(addr).map_err(at)?;
    let addr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let (stop, stopped) = oneshot::channel();
    // From here on latencies are recorded, not from the first request on.
    let exposition = Exposition::new();
    let work = move || run(&runtime, listener, exposition, stopped);
    let thread = thread::Builder::new().name("annulus-metrics".to_owned());
    Ok(Endpoint {
        addr,
        stop: Some(stop),
        thread: Some(thread.spawn(work)?),
    })
}

impl Endpoint {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// Until the other end of `stopped` is gone.
fn run(
    runtime: &Runtime,
    listener: std::net::TcpListener,
    exposition: Exposition,
    stopped: oneshot::Receiver<Infallible>,
) {
    runtime.block_on(async {
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::spawn(accept(listener, exposition))),
            Err(error) => eprintln!("annulus: no more metrics are served: {error}"),
        }
        // Only ever an error: that the sender is gone.
        let _ = stopped.await;
    });
}

async fn accept(listener: TcpListener, exposition: Exposition) {
    let exposition = Arc::new(Mutex::new(exposition));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            unreachable!("nobody closes it");
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let exposition = Arc::clone(&exposition);
                drop(tokio::spawn(async move {
                    let _place = place;
                    answer_one(stream, &exposition).await;
                }));
            }
            // No descriptor is left, perhaps: there may be one soon.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// One request, and its answer. A reader that comes every few seconds needs no connection in between.
async fn answer_one(stream: TcpStream, exposition: &Mutex<Exposition>) {
    let service = service_fn(|request| {
        let response = answer(&request, exposition);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that breaks off or says nonsense is its own business.
    let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
}

fn answer(request: &Request<Incoming>, exposition: &Mutex<Exposition>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if path != "/" && path != "/metrics" {
        return said(
            StatusCode::NOT_FOUND,
            PLAIN,
            "There is only /metrics here\n",
        );
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = said(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "Only GET\n");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    if path == "/" {
        return said(StatusCode::OK, PLAIN, ROOT);
    }
    let accepts = request.headers().get_all(ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    let openly = accepts.any(|value| value.contains("application/openmetrics-text"));
    let mut exposition = exposition.lock().unwrap_or_else(PoisonError::into_inner);
    let now = snapshot();
    match openly {
        true => said(
            StatusCode::OK,
            Exposition::CONTENT_TYPE,
            exposition.text(&now),
        ),
        false => said(
            StatusCode::OK,
            Exposition::PLAIN_CONTENT_TYPE,
            exposition.plain_text(&now),
        ),
    }
}

fn said(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
