//! SIGTERM ends a server with an upload, a stream and a WebSocket open. In child processes,
//! because the signal is for the process.

use std::convert::Infallible;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use annulus::Backend;
use annulus_hyper::axum::{Serve, serve};
use annulus_testing::child_process::in_child;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::WebSocketUpgrade;
use axum::extract::ws::{Message, WebSocket};
use axum::response::Response;
use axum::routing::{any, get, post};
use futures_util::{SinkExt, StreamExt, stream};
use signal_hook::consts::SIGTERM;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio_tungstenite::tungstenite;

/// The limit of each test.
const PATIENCE: Duration = Duration::from_secs(300);

async fn upload(body: Body) -> String {
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    while let Some(Ok(piece)) = pieces.next().await {
        bytes += piece.len();
    }
    bytes.to_string()
}

/// Streams two pieces, the second after `next`.
fn pieces(next: Arc<Notify>) -> Response {
    let pieces = stream::unfold(0, move |number| {
        let next = Arc::clone(&next);
        async move {
            match number {
                0 => {}
                1 => next.notified().await,
                _ => return None,
            }
            Some((
                Ok::<_, Infallible>(Bytes::from(format!("piece {number}."))),
                number + 1,
            ))
        }
    });
    Response::new(Body::from_stream(pieces))
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(_) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

fn router(next: &Arc<Notify>) -> Router {
    let next = Arc::clone(next);
    Router::new()
        .route("/upload", post(upload))
        .route("/stream", get(async move || pieces(Arc::clone(&next))))
        .route(
            "/ws",
            any(async |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo)),
        )
}

/// Runs `test` for each backend in a Tokio runtime.
fn each_way<F: Future<Output = ()>>(name: &str, test: impl Fn(Backend) -> F) {
    in_child(name, || each_backend(test));
}

fn each_backend<F: Future<Output = ()>>(test: impl Fn(Backend) -> F) {
    for backend in [Backend::Uring, Backend::Fallback] {
        match annulus::runtime::Runtime::builder()
            .backend(backend)
            .block_on(async {})
        {
            Ok(()) => {
                let tokio = tokio::runtime::Runtime::new().unwrap();
                let limited = async { tokio::time::timeout(PATIENCE, test(backend)).await };
                tokio.block_on(limited).unwrap();
            }
            Err(error) if error.allows_fallback() => println!("skip: {backend:?}: {error}"),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

type Ended = tokio::task::JoinHandle<std::io::Result<()>>;

async fn start(server: Serve<Router>, backend: Backend) -> (SocketAddr, Ended) {
    let (tell, address) = oneshot::channel();
    let server = server
        .runtime(|runtime| runtime.backend(backend).cores(2))
        .on_listening(move |address| tell.send(address).unwrap());
    let ended = tokio::spawn(server.into_future());
    (address.await.unwrap(), ended)
}

/// Reads until the text ends so.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        text.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(text).unwrap()
}

async fn connect(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn websocket(address: SocketAddr) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let url = format!("ws://{address}/ws");
    let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    socket.send("before".into()).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), "before".into());
    socket
}

async fn until_refused(address: SocketAddr) {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn after_sigterm_everything_that_can_be_finished_is_finished() {
    each_way(
        "sigterm::after_sigterm_everything_that_can_be_finished_is_finished",
        async |backend| {
            let next = Arc::new(Notify::new());
            let server = serve("127.0.0.1:0", router(&next)).deadline(PATIENCE);
            let (address, ended) = start(server, backend).await;

            let head = "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nfirst";
            let mut uploads = connect(address, head).await;
            let mut streams = connect(address, "GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").await;
            read_until(&mut streams, "piece 0.\r\n").await;
            let mut socket = websocket(address).await;

            signal_hook::low_level::raise(SIGTERM).unwrap();
            until_refused(address).await;

            uploads.write_all(b"after").await.unwrap();
            let mut text = String::new();
            uploads.read_to_string(&mut text).await.unwrap();
            assert!(text.ends_with("\r\n\r\n10"), "{text}");
            next.notify_one();
            let mut text = String::new();
            streams.read_to_string(&mut text).await.unwrap();
            assert!(text.ends_with("piece 1.\r\n0\r\n\r\n"), "{text}");
            socket.send("after".into()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), "after".into());
            socket.close(None).await.unwrap();
            let close = socket.next().await.unwrap().unwrap();
            assert_eq!(close, tungstenite::Message::Close(None));
            assert!(socket.next().await.is_none());

            // Before the deadline, because nothing is open any more.
            ended.await.unwrap().unwrap();
        },
    );
}

#[test]
fn after_the_deadline_the_server_ends_with_everything_that_is_still_open() {
    each_way(
        "sigterm::after_the_deadline_the_server_ends_with_everything_that_is_still_open",
        async |backend| {
            let next = Arc::new(Notify::new());
            let server = serve("127.0.0.1:0", router(&next)).deadline(Duration::from_millis(1));
            let (address, ended) = start(server, backend).await;
            let mut socket = websocket(address).await;
            let mut streams = connect(address, "GET /stream HTTP/1.1\r\nhost: x\r\n\r\n").await;
            read_until(&mut streams, "piece 0.\r\n").await;
            signal_hook::low_level::raise(SIGTERM).unwrap();
            ended.await.unwrap().unwrap();
            assert!(!matches!(socket.next().await, Some(Ok(_))));
            let mut rest = Vec::new();
            let _ = streams.read_to_end(&mut rest).await;
            assert!(!rest.ends_with(b"0\r\n\r\n"));
        },
    );
}

/// The runtime itself would wait for blocking work for an hour.
#[test]
fn after_the_deadline_the_server_ends_beside_blocking_work() {
    each_way(
        "sigterm::after_the_deadline_the_server_ends_beside_blocking_work",
        async |backend| {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let released = Arc::new(Mutex::new(released));
            let begun = Arc::new(Notify::new());
            let begins = Arc::clone(&begun);
            let block = async move || {
                let (released, begins) = (Arc::clone(&released), Arc::clone(&begins));
                let work = tokio::task::spawn_blocking(move || {
                    begins.notify_one();
                    released.lock().unwrap().recv().is_ok()
                });
                work.await.unwrap().to_string()
            };
            let router = router(&Arc::default()).route("/blocking", get(block));
            let server = serve("127.0.0.1:0", router)
                .deadline(Duration::from_millis(1))
                .runtime(|runtime| runtime.drain_timeout(Duration::from_secs(3600)));
            let (address, ended) = start(server, backend).await;
            let mut socket = websocket(address).await;
            let mut blocking = connect(address, "GET /blocking HTTP/1.1\r\nhost: x\r\n\r\n").await;
            begun.notified().await;
            signal_hook::low_level::raise(SIGTERM).unwrap();
            let mut response = Vec::new();
            let _ = blocking.read_to_end(&mut response).await;
            assert!(response.is_empty());
            assert!(!matches!(socket.next().await, Some(Ok(_))));
            ended.await.unwrap().unwrap();
            release.send(()).unwrap();
        },
    );
}
