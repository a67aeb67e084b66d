//! axum's routers on the cores, on both backends, beside the Tokio runtime that the clients run in.
#![cfg(feature = "axum")]

mod budget;
mod sigterm;
#[cfg(feature = "tls")]
mod tls;

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use annulus::Backend;
use annulus_hyper::axum::{App, Endpoint, Serve, serve};
use axum::body::{Body, Bytes};
use axum::extract::ConnectInfo;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{any, get, post};
use axum::{BoxError, Router, ServiceExt};
use futures_util::{SinkExt, StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite;
use tower_http::normalize_path::NormalizePath;

/// The limit of each test.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running server.
struct Site {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<io::Result<()>>,
}

impl Site {
    async fn start<A: App>(
        backend: Backend,
        app: A,
        change: impl Fn(Serve<A>) -> Serve<A>,
    ) -> Site {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, address) = oneshot::channel();
        let server = serve("127.0.0.1:0", app)
            .runtime(|runtime| runtime.backend(backend).cores(2))
            .deadline(PATIENCE)
            .with_graceful_shutdown(async { drop(stopped.await) })
            .on_listening(move |address| tell.send(address).unwrap());
        let ended = tokio::spawn(change(server).into_future());
        Site {
            address: address.await.unwrap(),
            stop,
            ended,
        }
    }

    async fn stop(self) {
        drop(self.stop);
        self.ended.await.unwrap().unwrap();
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Returns the text of a response, which closes the connection.
    async fn get(&self, path: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    /// Gives the server time for its other work, as many requests as that takes.
    async fn serve_others(&self) {
        for _ in 0..200 {
            assert!(self.get("/none").await.starts_with("HTTP/1.1 404 "));
        }
    }
}

/// Returns the backends that can run here.
fn backends() -> impl Iterator<Item = Backend> {
    let backends = [Backend::Uring, Backend::Fallback].into_iter();
    backends.filter(|&backend| {
        let builder = annulus::runtime::Runtime::builder().backend(backend);
        match builder.block_on(async {}) {
            Ok(()) => true,
            Err(error) if error.allows_fallback() => {
                println!("skip: {backend:?}: {error}");
                false
            }
            Err(error) => panic!("{backend:?}: {error}"),
        }
    })
}

/// Runs `test` with a server on each backend, and then ends the server.
fn each_way<A: App, F: Future<Output = Site>>(app: impl Fn() -> A, test: impl Fn(Site) -> F) {
    each_way_with(app, |server| server, test);
}

/// Runs `test` with a server whose options `change` sets.
fn each_way_with<A: App, F: Future<Output = Site>>(
    app: impl Fn() -> A,
    change: impl Fn(Serve<A>) -> Serve<A>,
    test: impl Fn(Site) -> F,
) {
    for backend in backends() {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        tokio.block_on(async {
            let limited = tokio::time::timeout(PATIENCE, async {
                let site = Site::start(backend, app(), &change).await;
                test(site).await.stop().await;
            });
            limited.await.unwrap();
        });
    }
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

// ----- WebSockets -----

/// Echoes messages. The text "bye" makes the server close.
async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        let sent = match message {
            Message::Text(text) if text == "bye" => {
                let frame = CloseFrame {
                    code: 4000,
                    reason: "bye".into(),
                };
                socket.send(Message::Close(Some(frame))).await
            }
            Message::Text(_) | Message::Binary(_) => socket.send(message).await,
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => Ok(()),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn websockets() -> Router {
    let upgrade = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) };
    Router::new().route("/", any(upgrade))
}

type Client = tokio_tungstenite::WebSocketStream<TcpStream>;

async fn websocket(site: &Site) -> Client {
    let url = format!("ws://{}/", site.address);
    tokio_tungstenite::client_async(url, site.connect().await)
        .await
        .unwrap()
        .0
}

#[test]
fn a_websocket_echoes_and_closes_with_a_close_frame() {
    each_way(websockets, |site| async {
        let mut socket = websocket(&site).await;
        for bytes in [0, 1, 125, 126, 65_535, 65_536, 5_000_000] {
            let message = tungstenite::Message::binary(vec![7; bytes]);
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket
            .send(tungstenite::Message::Ping("ping".into()))
            .await
            .unwrap();
        let pong = socket.next().await.unwrap().unwrap();
        assert_eq!(pong, tungstenite::Message::Pong("ping".into()));
        socket.close(None).await.unwrap();
        let close = socket.next().await.unwrap().unwrap();
        assert_eq!(close, tungstenite::Message::Close(None));
        assert!(socket.next().await.is_none());
        site
    });
}

#[test]
fn many_websockets_echo_concurrently_while_others_leave() {
    each_way(websockets, |site| async {
        let mut clients = Vec::new();
        for number in 0..40_u32 {
            let mut socket = websocket(&site).await;
            clients.push(tokio::spawn(async move {
                // Every fourth leaves early, with a message under way.
                let rounds = if number % 4 == 0 { 5 } else { 60 };
                for round in 0..rounds {
                    let text = format!("{round} of {number} {}", "x".repeat(number as usize * 40));
                    let message = tungstenite::Message::text(text);
                    socket.send(message.clone()).await.unwrap();
                    if round + 1 < rounds || rounds == 60 {
                        assert_eq!(socket.next().await.unwrap().unwrap(), message);
                    }
                }
            }));
        }
        for client in clients {
            client.await.unwrap();
        }
        site
    });
}

#[test]
fn a_websocket_that_blocks_its_thread_holds_back_no_response_of_others() {
    // The threads of all blocking handlers wait here.
    static GATE: Mutex<Option<std::sync::mpsc::Receiver<()>>> = Mutex::new(None);
    async fn block_or_echo(mut socket: WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            if message == Message::text("block") {
                tokio::task::block_in_place(|| {
                    GATE.lock().unwrap().as_ref().map(|gate| gate.recv())
                });
            }
            if socket.send(message).await.is_err() {
                return;
            }
        }
    }
    let app = || {
        let upgrade = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(block_or_echo) };
        Router::new().route("/", any(upgrade))
    };
    let beside = |serve: Serve<Router>| {
        let tokio = tokio::runtime::Handle::current();
        serve.runtime(|runtime| runtime.with_tokio_handle(tokio))
    };
    each_way_with(app, beside, |site| async {
        let mut sockets = Vec::new();
        for _ in 0..16 {
            sockets.push(websocket(&site).await);
        }
        for round in 0..20 {
            let (open, gate) = std::sync::mpsc::channel();
            *GATE.lock().unwrap() = Some(gate);
            let blocked = round % sockets.len();
            for (number, socket) in sockets.iter_mut().enumerate() {
                let text = if number == blocked { "block" } else { "echo" };
                socket.send(text.into()).await.unwrap();
            }
            for (number, socket) in sockets.iter_mut().enumerate() {
                if number != blocked {
                    assert_eq!(socket.next().await.unwrap().unwrap(), "echo".into());
                }
            }
            drop(open);
            let last = sockets[blocked].next().await.unwrap().unwrap();
            assert_eq!(last, "block".into());
        }
        drop(sockets);
        site
    });
}

#[test]
fn a_server_closes_a_websocket_with_its_code() {
    each_way(websockets, |site| async {
        let mut socket = websocket(&site).await;
        socket.send("bye".into()).await.unwrap();
        let tungstenite::Message::Close(Some(frame)) = socket.next().await.unwrap().unwrap() else {
            panic!("no close frame");
        };
        assert_eq!(
            (u16::from(frame.code), frame.reason.as_str()),
            (4000, "bye")
        );
        assert!(socket.next().await.is_none());
        site
    });
}

#[test]
fn a_client_that_leaves_without_a_close_frame_ends_its_websocket() {
    static OPEN: AtomicU64 = AtomicU64::new(0);
    let app = || {
        let upgrade = |upgrade: WebSocketUpgrade| async {
            upgrade.on_upgrade(|mut socket| async move {
                OPEN.fetch_add(1, Ordering::SeqCst);
                while let Some(Ok(_)) = socket.recv().await {}
                OPEN.fetch_sub(1, Ordering::SeqCst);
            })
        };
        Router::new().route("/", any(upgrade))
    };
    each_way(app, |site| async {
        let sockets = [websocket(&site).await, websocket(&site).await];
        until(|| OPEN.load(Ordering::SeqCst) == 2).await;
        drop(sockets);
        until(|| OPEN.load(Ordering::SeqCst) == 0).await;
        site
    });
}

#[test]
fn a_websocket_whose_peer_does_not_read_holds_up_its_sender() {
    /// More than the buffers of two sockets, the pipe and the stream.
    const MESSAGES: u64 = 2_000;
    const BYTES: usize = 64 << 10;
    let sent = Arc::new(AtomicU64::new(0));
    let app = || {
        let sent = Arc::clone(&sent);
        let upgrade = move |upgrade: WebSocketUpgrade| async move {
            upgrade.on_upgrade(|mut socket| async move {
                for _ in 0..MESSAGES {
                    socket.send(vec![1; BYTES].into()).await.unwrap();
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            })
        };
        Router::new().route("/", any(upgrade))
    };
    each_way(app, |site| async {
        sent.store(0, Ordering::SeqCst);
        let mut socket = websocket(&site).await;
        until(|| sent.load(Ordering::SeqCst) > 0).await;
        site.serve_others().await;
        assert!(sent.load(Ordering::SeqCst) < MESSAGES);
        for _ in 0..MESSAGES {
            assert_eq!(socket.next().await.unwrap().unwrap().len(), BYTES);
        }
        site
    });
}

// ----- requests -----

fn handlers() -> Router {
    let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
    let events = || async {
        let events = stream::pending::<Result<Event, Infallible>>();
        Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_millis(1)))
    };
    let trailers = || async {
        let mut trailers = HeaderMap::new();
        trailers.insert("sum", "42".parse().unwrap());
        let frames = [Frame::data(Bytes::from("body")), Frame::trailers(trailers)];
        let frames = stream::iter(frames.map(Ok::<_, Infallible>));
        Response::new(Body::new(StreamBody::new(frames)))
    };
    let panics = || async {
        if true {
            panic!("a panic for the test");
        }
    };
    let breaks = || async {
        let pieces = [Ok(Bytes::from("piece")), Err(BoxError::from("broken"))];
        Response::new(Body::from_stream(stream::iter(pieces)))
    };
    let annulus = || async {
        annulus::time::sleep(Duration::from_millis(1)).await;
        "slept"
    };
    Router::new()
        .route("/", get(|| async { "Hello, World!" }))
        .route("/peer", get(peer))
        .route("/events", get(events))
        .route("/trailers", get(trailers))
        .route("/panic", get(panics))
        .route("/breaks", get(breaks))
        .route("/annulus", get(annulus))
}

#[test]
fn handlers_get_the_address_of_the_peer() {
    let app = || handlers().into_make_service_with_connect_info::<SocketAddr>();
    each_way(app, |site| async {
        let mut stream = site.connect().await;
        let request = b"GET /peer HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(
            text.ends_with(&stream.local_addr().unwrap().to_string()),
            "{text}"
        );
        site
    });
}

/// Serves `endpoint` on each backend, with two cores, and makes a request at the address for which `connect` opens
/// streams.
fn each_endpoint<E: Endpoint<Kind>, Kind, S: Read + Write>(
    bind: impl Fn() -> (E, Box<dyn Fn() -> io::Result<S> + Send>),
) {
    for backend in backends() {
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let (server, stop, listening, connect) = {
            let _context = tokio.enter();
            let (endpoint, connect) = bind();
            let (stop, stopped) = oneshot::channel::<()>();
            let (tell, listening) = oneshot::channel();
            let app = handlers().into_make_service_with_connect_info::<SocketAddr>();
            let server = serve(endpoint, app)
                .runtime(|runtime| runtime.backend(backend).cores(2))
                .with_graceful_shutdown(async { drop(stopped.await) })
                .on_listening(|address| tell.send(address).unwrap());
            (server.into_future(), stop, listening, connect)
        };
        let ended = tokio.spawn(server);
        listening.blocking_recv().unwrap();
        for _ in 0..20 {
            let mut stream = connect().unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("Hello, World!"), "{backend:?}: {text}");
        }
        drop(stop);
        tokio.block_on(ended).unwrap().unwrap();
    }
}

#[test]
fn bound_listeners_of_std_and_tokio_are_served() {
    each_endpoint(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = move || std::net::TcpStream::connect(address);
        (listener, Box::new(connect) as _)
    });
    each_endpoint(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let connect = move || std::net::TcpStream::connect(address);
        (listener, Box::new(connect) as _)
    });
}

#[test]
fn unix_sockets_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let count = AtomicU64::new(0);
    let path = || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        dir.path().join(number.to_string())
    };
    each_endpoint(|| {
        let path = path();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let connect = move || std::os::unix::net::UnixStream::connect(&path);
        (listener, Box::new(connect) as _)
    });
    each_endpoint(|| {
        let path = path();
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let connect = move || std::os::unix::net::UnixStream::connect(&path);
        (listener, Box::new(connect) as _)
    });
}

#[test]
fn a_service_around_a_router_sees_requests_first() {
    let app = || {
        let app = NormalizePath::trim_trailing_slash(handlers());
        ServiceExt::<axum::extract::Request>::into_make_service_with_connect_info::<SocketAddr>(app)
    };
    each_way(app, |site| async {
        for path in ["/peer", "/peer/"] {
            let text = site.get(path).await;
            assert!(
                text.starts_with("HTTP/1.1 200 ") && text.contains("127.0.0.1:"),
                "{text}"
            );
        }
        site
    });
}

#[test]
fn a_service_is_called_when_it_is_ready_and_its_panics_respond_500() {
    let app = || {
        let echo = |request: axum::extract::Request| async move {
            assert_ne!(request.uri().path(), "/panic", "a panic for the test");
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, Infallible>(request.uri().path().to_owned())
        };
        // One request at a time: the others wait until the service is ready.
        let limited = tower::ServiceBuilder::new()
            .concurrency_limit(1)
            .service_fn(echo);
        ServiceExt::<axum::extract::Request>::into_make_service(limited)
    };
    each_way(app, |site| async {
        let paths: Vec<_> = (0..8).map(|number| format!("/{number}")).collect();
        let texts = futures_util::future::join_all(paths.iter().map(|path| site.get(path))).await;
        for (path, text) in paths.iter().zip(texts) {
            assert!(
                text.starts_with("HTTP/1.1 200 ") && text.ends_with(&**path),
                "{text}"
            );
        }
        assert!(site.get("/panic").await.starts_with("HTTP/1.1 500 "));
        assert!(site.get("/after").await.ends_with("/after"));
        site
    });
}

#[test]
fn a_handler_may_await_the_timers_of_its_core() {
    each_way(handlers, |site| async {
        assert!(site.get("/annulus").await.ends_with("\r\n\r\nslept"));
        site
    });
}

#[test]
fn events_are_kept_alive_by_tokios_clock() {
    each_way(handlers, |site| async {
        let mut stream = site.connect().await;
        stream
            .write_all(b"GET /events HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b":\n\n\r\n") {
            text.push(stream.read_u8().await.unwrap());
        }
        site
    });
}

#[test]
fn a_handler_that_panics_responds_500_and_its_connection_goes_on() {
    each_way(handlers, |site| async {
        let mut stream = site.connect().await;
        let requests = b"GET /panic HTTP/1.1\r\nhost: x\r\n\r\n\
                         GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(requests).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 500 "), "{text}");
        assert!(text.ends_with("\r\n\r\nHello, World!"), "{text}");
        site
    });
}

#[test]
fn a_body_that_breaks_ends_only_its_own_stream_of_http2() {
    each_way(handlers, |site| async {
        let io = TokioIo::new(site.connect().await);
        let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (mut requests, connection) = shaken.await.unwrap();
        tokio::spawn(connection);
        let mut ask = |path: &str| {
            let url = format!("http://x{path}");
            requests.send_request(Request::get(url).body(String::new()).unwrap())
        };
        let broken = match ask("/breaks").await {
            Ok(head) => head.into_body().collect().await.map(drop),
            // The reset may overtake the head.
            Err(error) => Err(error),
        };
        assert!(broken.is_err());
        let panicked = ask("/panic").await.unwrap();
        assert_eq!(panicked.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let whole = ask("/trailers")
            .await
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap();
        assert_eq!(whole.trailers().unwrap()["sum"], "42");
        assert_eq!(whole.to_bytes(), "body");
        site
    });
}

#[test]
fn an_upload_waits_for_its_handler() {
    const BYTES: usize = 64 << 20;
    let begin = Arc::new(Notify::new());
    let app = || {
        let begin = Arc::clone(&begin);
        let upload = move |body: Body| async move {
            begin.notified().await;
            let mut bytes = 0;
            let mut pieces = body.into_data_stream();
            while let Some(piece) = pieces.next().await {
                bytes += piece.unwrap().len();
            }
            bytes.to_string()
        };
        Router::new().route("/", post(upload))
    };
    each_way(app, |site| async {
        let (mut reader, mut writer) = site.connect().await.into_split();
        let all_sent = Arc::new(AtomicBool::new(false));
        let sends = {
            let all_sent = Arc::clone(&all_sent);
            tokio::spawn(async move {
                let head = format!(
                    "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {BYTES}\r\n\r\n"
                );
                writer.write_all(head.as_bytes()).await.unwrap();
                writer.write_all(&vec![1; BYTES]).await.unwrap();
                all_sent.store(true, Ordering::SeqCst);
                writer
            })
        };
        site.serve_others().await;
        // The buffers on the way hold less than the body.
        assert!(!all_sent.load(Ordering::SeqCst));
        begin.notify_one();
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with(&format!("\r\n\r\n{BYTES}")), "{text}");
        sends.await.unwrap();
        site
    });
}

// ----- the end -----

#[test]
fn if_the_tokio_runtime_ends_first_the_server_stops_and_its_cores_finish_their_requests() {
    for backend in backends() {
        let next = Arc::new(Notify::new());
        let waits = {
            let next = Arc::clone(&next);
            async move || {
                let last = async move {
                    next.notified().await;
                    Ok::<_, Infallible>("last piece")
                };
                Body::from_stream(stream::iter([Ok("first piece")]).chain(stream::once(last)))
            }
        };
        let app = websockets().route("/waits", get(waits));
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let beside = |serve: Serve<Router>| {
            serve.runtime(|runtime| runtime.with_tokio_handle(tokio.handle().clone()))
        };
        let site = tokio.block_on(Site::start(backend, app, beside));
        let open = |path: &str, more: &str, until: &str| {
            let mut stream = std::net::TcpStream::connect(site.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n").unwrap();
            let mut text = Vec::new();
            while !text.ends_with(until.as_bytes()) {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                text.extend(byte);
            }
            stream
        };
        let mut request = open("/waits", "", "first piece\r\n");
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
            sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let mut socket = open("/", upgrade, "\r\n\r\n");

        tokio.shutdown_background();
        while std::net::TcpStream::connect(site.address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The task of the WebSocket has ended with its runtime.
        drop(socket.read_to_end(&mut Vec::new()));
        next.notify_one();
        let mut rest = String::new();
        request.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("last piece\r\n0\r\n\r\n"), "{rest}");
    }
}
