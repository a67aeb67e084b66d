//! What the tests share: a server whose paths do what is tested, and clients of several kinds.

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

/// No test waits longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) type AnyBody = BoxBody<Bytes, hyper::Error>;

/// Runs a test on a core of either kind.
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

/// A server that answers as [`answer`] does.
pub(crate) fn start() -> io::Result<SocketAddr> {
    start_as(Server::new())
}

pub(crate) fn start_as(server: Server) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(runtime::spawn(async move {
        server.serve(listener, service_fn(answer)).await
    }));
    Ok(address)
}

/// Answers that wait for the end of their runtime.
pub(crate) static LAST_BEGUN: AtomicUsize = AtomicUsize::new(0);

/// A path for each thing that is tested.
pub(crate) async fn answer(request: Request<Incoming>) -> Result<Response<AnyBody>, hyper::Error> {
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
            // By then the server has been told, too.
            annulus::time::sleep(Duration::from_millis(1)).await;
            whole("last")
        }
        ("panic", "") => panic!("as this test asked for"),
        ("upgrade", "") => return Ok(upgrade(request)),
        _ => {
            let mut answer = Response::new(whole("no such path"));
            *answer.status_mut() = StatusCode::NOT_FOUND;
            return Ok(answer);
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

/// Becomes a stream of bytes, each of which comes back.
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
    let mut answer = Response::new(nothing());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
        let value = value.parse().unwrap();
        answer.headers_mut().insert(name, value);
    }
    answer
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

/// Bytes that say where they belong.
pub(crate) fn pattern(bytes: u64, says_length: bool) -> AnyBody {
    let body = Pattern {
        at: 0,
        bytes,
        says_length,
    };
    body.map_err(never).boxed()
}

struct Pattern {
    at: u64,
    bytes: u64,
    says_length: bool,
}

/// Pieces of this length, but for the last; no power of two.
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
        match self.says_length {
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

/// The hash of a pattern, and its length.
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

/// The hash of a body, and its length.
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

pub(crate) async fn text_of(answer: Response<Incoming>) -> io::Result<String> {
    let body = answer
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

/// A request of HTTP/1.
pub(crate) fn of_path(path: &str, body: AnyBody) -> Request<AnyBody> {
    let request = Request::post(path).header("host", "localhost");
    request.body(body).unwrap()
}

/// A request of HTTP/2.
pub(crate) fn of_url(path: &str, body: AnyBody) -> Request<AnyBody> {
    let url = format!("http://localhost{path}");
    Request::post(url).body(body).unwrap()
}

/// All that comes until the server closes.
pub(crate) async fn rest_of(stream: &TcpStream) -> io::Result<String> {
    let (mut all, mut chunks) = (Vec::new(), stream.recv_multishot());
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk?);
    }
    Ok(String::from_utf8_lossy(&all).into_owned())
}
