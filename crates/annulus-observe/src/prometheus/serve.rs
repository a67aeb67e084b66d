//! The endpoint: a thread with a small HTTP server.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Exposition;
use super::machine::Machine;
use super::page::plain;

/// The number of open connections. A further one replaces that of the client that has been silent longest, so that idle
/// clients do not delay a scrape.
const CONNECTIONS_MAX: usize = 16;
/// The time that a client has to send its request.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// The time that a connection may last.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// The longest request that is accepted.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The interval of snapshots of other processes. They stop recording latencies 10 s after the last one.
const RENEWAL: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

const ROOT: &str = "Annulus: metrics are at /metrics\n";
const PLAIN: &str = "text/plain; charset=utf-8";

/// A running endpoint. Dropping it stops the endpoint.
#[derive(Debug)]
#[must_use = "dropping the endpoint stops it"]
pub struct Endpoint {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// Serves `GET /metrics` at `addr` on a new thread.
///
/// There is no authentication: every client that can reach the address can read the metrics. Use a loopback address
/// unless that is intended. Latencies are recorded until the endpoint is dropped.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let endpoint = annulus_observe::prometheus::serve("127.0.0.1:0".parse().unwrap())?;
/// println!("http://{}/metrics", endpoint.addr());
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails if the address cannot be bound, or the thread cannot be started.
pub fn serve(addr: SocketAddr) -> io::Result<Endpoint> {
    // Latencies are recorded from here on, and not only from the first request.
    start(addr, || Pages::Process(Exposition::new()))
}

/// Serves the metrics of all processes of this machine that [share](annulus::metrics::share) them, on one page.
///
/// Each sample has the labels `pid` and `program`. Processes of other users are on the page if this process runs as
/// root. The processes record latencies until the endpoint is dropped. There is no authentication, as for [`serve`].
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let endpoint = annulus_observe::prometheus::serve_machine("127.0.0.1:0".parse().unwrap())?;
/// println!("http://{}/metrics", endpoint.addr());
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails if the address cannot be bound, or the thread cannot be started.
pub fn serve_machine(addr: SocketAddr) -> io::Result<Endpoint> {
    start(addr, || Pages::Machine(Machine::default()))
}

/// The content of the page.
enum Pages {
    /// This process.
    Process(Exposition),
    /// All processes that share their metrics.
    Machine(Machine),
}

impl Pages {
    /// Returns the page in the OpenMetrics format.
    fn text(&mut self) -> String {
        match self {
            Pages::Process(exposition) => exposition.text(&snapshot()),
            Pages::Machine(machine) => machine.text(),
        }
    }
}

fn start(addr: SocketAddr, pages: impl FnOnce() -> Pages) -> io::Result<Endpoint> {
    let at = |error: io::Error| {
        let message = format!("cannot serve metrics at {addr}: {error}");
        io::Error::new(error.kind(), message)
    };
    let listener = std::net::TcpListener::bind(addr).map_err(at)?;
    let addr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let (stop, stopped) = oneshot::channel();
    let pages = pages();
    let work = move || run(&runtime, listener, pages, stopped);
    let thread = thread::Builder::new().name("annulus-metrics".to_owned());
    Ok(Endpoint {
        addr,
        stop: Some(stop),
        thread: Some(thread.spawn(work)?),
    })
}

impl Endpoint {
    /// Returns the local address, with the port that was chosen for port 0.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Runs until the sender of `stopped` is dropped.
fn run(
    runtime: &Runtime,
    listener: std::net::TcpListener,
    pages: Pages,
    stopped: oneshot::Receiver<Infallible>,
) {
    let pages = Arc::new(Mutex::new(pages));
    runtime.block_on(async {
        drop(tokio::spawn(renew(Arc::clone(&pages))));
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(tokio::spawn(accept(listener, pages))),
            Err(error) => {
                let _ = writeln!(
                    io::stderr(),
                    "annulus: the metrics endpoint has stopped: {error}"
                );
            }
        }
        // This returns an error once the sender is dropped.
        let _ = stopped.await;
    });
}

/// Lets other processes go on recording latencies between two requests.
async fn renew(pages: Arc<Mutex<Pages>>) {
    loop {
        match &mut *locked(&pages) {
            Pages::Machine(machine) => machine.advance(),
            Pages::Process(_) => return,
        }
        tokio::time::sleep(RENEWAL).await;
    }
}

fn locked(pages: &Mutex<Pages>) -> MutexGuard<'_, Pages> {
    pages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open connection.
struct Open {
    task: AbortHandle,
    /// Set once its request has arrived.
    requested: Arc<AtomicBool>,
}

async fn accept(listener: TcpListener, pages: Arc<Mutex<Pages>>) {
    // In the order of their arrival.
    let mut connections: VecDeque<Open> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|open| !open.task.is_finished());
                if connections.len() == CONNECTIONS_MAX {
                    let is_silent = |open: &Open| !open.requested.load(Ordering::Relaxed);
                    let replaced = connections.iter().position(is_silent).unwrap_or(0);
                    let replaced = connections.remove(replaced);
                    replaced.iter().for_each(|open| open.task.abort());
                }
                let requested = Arc::new(AtomicBool::new(false));
                let (pages, is_requested) = (Arc::clone(&pages), Arc::clone(&requested));
                let connection = async move { serve_one(stream, &pages, &is_requested).await };
                let task = tokio::spawn(connection).abort_handle();
                connections.push_back(Open { task, requested });
                // A request that is already there is answered before another connection can replace it.
                tokio::task::yield_now().await;
            }
            // There may be no free descriptor; one may be closed soon.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Serves one request. A reader that comes every few seconds needs no persistent connection.
async fn serve_one(stream: TcpStream, pages: &Mutex<Pages>, requested: &AtomicBool) {
    let service = service_fn(|request| {
        requested.store(true, Ordering::Relaxed);
        let response = respond(&request, pages);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that disconnects or sends an invalid request needs no report.
    let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
}

fn respond(request: &Request<Incoming>, pages: &Mutex<Pages>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if path != "/" && path != "/metrics" {
        return response_of(
            StatusCode::NOT_FOUND,
            PLAIN,
            "Not found; metrics are at /metrics\n",
        );
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = response_of(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "Only GET\n");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    if path == "/" {
        return response_of(StatusCode::OK, PLAIN, ROOT);
    }
    let accepts = request.headers().get_all(ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    let open_metrics = accepts.any(|value| value.contains("application/openmetrics-text"));
    let text = locked(pages).text();
    match open_metrics {
        true => response_of(StatusCode::OK, Exposition::CONTENT_TYPE, text),
        false => response_of(StatusCode::OK, Exposition::PLAIN_CONTENT_TYPE, plain(&text)),
    }
}

fn response_of(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
