//! Shared by the tests: a server with a path for each case, and clients of several kinds.

use std::convert::Infallible;
use std::future::Future;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, Runtime};
use annulus_hyper::{CoreExecutor, HyperStream, Server};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};

/// The limit of each test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) type AnyBody = BoxBody<Bytes, hyper::Error>;

/// Runs a test on each backend.
pub(crate) fn on_each<F>(test: impl Fn() -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    for backend in [Backend::Fallback, Backend::Uring] {
        let future = Box::pin(test());
        let run = Runtime::builder()
            .backend(backend)
            .block_on(async move { annulus::time::timeout(PATIENCE, future).await? });
        match run {
            Ok(outcome) => outcome.unwrap_or_else(|error| panic!("{backend:?}: {error}")),
            Err(error) if error.allows_fallback() => println!("skip: {error}"),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

/// Starts a server that responds with [`respond`].
pub(crate) fn start() -> io::Result<SocketAddr> {
    start_as(Server::new())
}

pub(crate) fn start_as(server: Server) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(runtime::spawn(async move {
        server.serve(listener, service_fn(respond)).await
    }));
    Ok(address)
}

/// The number of `/last` requests, whose responses wait for the end of the runtime.
pub(crate) static LAST_BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Responds to the path of each test case.
pub(crate) async fn respond(request: Request<Incoming>) -> Result<Response<AnyBody>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = match path
        .split_at(1)
        .1
        .split_once('/')
        .unwrap_or((&path[1..], ""))
    {
        ("", "") => whole("Hello, World!"),
        ("echo", "") => request.into_body().boxed(),
        ("hash", "") => whole(hash_of(request.into_body()).await?.0.to_string()),
        ("bytes", count) => pattern(count.parse().unwrap_or(0), true),
        ("chunked", count) => pattern(count.parse().unwrap_or(0), false),
        ("late", ms) => {
            let time = Duration::from_millis(ms.parse().unwrap_or(0));
            annulus::time::sleep(time).await;
            whole("late")
        }
        ("last", "") => {
            LAST_BEGUN.fetch_add(1, Ordering::SeqCst);
            annulus::runtime::stopping().await;
            // By then the server has noticed the shutdown, too.
            annulus::time::sleep(Duration::from_millis(1)).await;
            whole("last")
        }
        ("panic", "") => panic!("a panic for the test"),
        ("upgrade", "") => return Ok(upgrade(request)),
        _ => {
            let mut response = Response::new(whole("no such path"));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return Ok(response);
        }
    };
    Ok(Response::new(body))
}

pub(crate) fn whole(text: impl Into<Bytes>) -> AnyBody {
    Full::new(text.into()).map_err(never).boxed()
}

pub(crate) fn nothing() -> AnyBody {
    Empty::new().map_err(never).boxed()
}

fn never(never: Infallible) -> hyper::Error {
    match never {}
}

/// Upgrades the connection to an echo stream.
fn upgrade(request: Request<Incoming>) -> Response<AnyBody> {
    drop(runtime::spawn(async move {
        let mut stream = hyper::upgrade::on(request)
            .await
            .map_err(io::Error::other)?;
        loop {
            let bytes = read(&mut stream).await?;
            if bytes.is_empty() {
                return close(&mut stream).await;
            }
            write(&mut stream, &bytes).await?;
        }
    }));
    let mut response = Response::new(nothing());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
        let value = value.parse().unwrap();
        response.headers_mut().insert(name, value);
    }
    response
}

// ----- reading and writing by hyper's traits -----

pub(crate) async fn read<S: hyper::rt::Read + Unpin>(stream: &mut S) -> io::Result<Vec<u8>> {
    let mut memory = vec![0; 5_000];
    let mut buf = hyper::rt::ReadBuf::new(&mut memory);
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_read(context, buf.unfilled()))
        .await?;
    Ok(buf.filled().to_vec())
}

pub(crate) async fn write<S>(stream: &mut S, mut bytes: &[u8]) -> io::Result<()>
where
    S: hyper::rt::Write + Unpin,
{
    while !bytes.is_empty() {
        let written =
            std::future::poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes));
        bytes = &bytes[written.await?..];
    }
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_flush(context)).await
}

pub(crate) async fn close<S: hyper::rt::Write + Unpin>(stream: &mut S) -> io::Result<()> {
    std::future::poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await
}

// ----- bodies -----

/// Returns a body whose bytes depend on their position.
pub(crate) fn pattern(bytes: u64, with_length: bool) -> AnyBody {
    let body = Pattern {
        at: 0,
        bytes,
        with_length,
    };
    body.map_err(never).boxed()
}

struct Pattern {
    at: u64,
    bytes: u64,
    with_length: bool,
}

/// The length of each piece but the last; not a power of two.
const PIECE_BYTES: u64 = 50_021;

impl Body for Pattern {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = self.bytes - self.at;
        if left == 0 {
            return Poll::Ready(None);
        }
        let piece = piece(self.at, left.min(PIECE_BYTES));
        self.at += piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match self.with_length {
            true => SizeHint::with_exact(self.bytes - self.at),
            false => SizeHint::default(),
        }
    }
}

fn piece(at: u64, bytes: u64) -> Bytes {
    let mut piece = vec![0; bytes as usize];
    fastrand::Rng::with_seed(at).fill(&mut piece);
    piece.into()
}

/// Returns the hash and the length of a pattern.
pub(crate) fn hash_of_pattern(bytes: u64) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    let mut at = 0;
    while at < bytes {
        let piece = piece(at, (bytes - at).min(PIECE_BYTES));
        hasher.write(&piece);
        at += piece.len() as u64;
    }
    (hasher.finish(), bytes)
}

/// Returns the hash and the length of a body.
pub(crate) async fn hash_of(mut body: Incoming) -> Result<(u64, u64), hyper::Error> {
    let (mut hasher, mut bytes) = (DefaultHasher::new(), 0);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            hasher.write(&data);
            bytes += data.len() as u64;
        }
    }
    Ok((hasher.finish(), bytes))
}

pub(crate) async fn text_of(response: Response<Incoming>) -> io::Result<String> {
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(io::Error::other)?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

// ----- clients -----

pub(crate) async fn http1(address: SocketAddr) -> io::Result<http1::SendRequest<AnyBody>> {
    let stream = HyperStream::new(TcpStream::connect(address).await?);
    let (requests, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    drop(runtime::spawn(connection.with_upgrades()));
    Ok(requests)
}

pub(crate) async fn http2(address: SocketAddr) -> io::Result<http2::SendRequest<AnyBody>> {
    let stream = HyperStream::new(TcpStream::connect(address).await?);
    let shaken = http2::handshake(CoreExecutor, stream).await;
    let (requests, connection) = shaken.map_err(io::Error::other)?;
    drop(runtime::spawn(connection));
    Ok(requests)
}

/// Returns an HTTP/1 request.
pub(crate) fn of_path(path: &str, body: AnyBody) -> Request<AnyBody> {
    let request = Request::post(path).header("host", "localhost");
    request.body(body).unwrap()
}

/// Returns an HTTP/2 request.
pub(crate) fn of_url(path: &str, body: AnyBody) -> Request<AnyBody> {
    let url = format!("http://localhost{path}");
    Request::post(url).body(body).unwrap()
}

/// Returns everything until the server closes.
pub(crate) async fn rest_of(stream: &TcpStream) -> io::Result<String> {
    let (mut all, mut chunks) = (Vec::new(), stream.recv_multishot());
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}
