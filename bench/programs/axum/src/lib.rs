//! One router with a route for each part, and the servers that run it.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::future::{IntoFuture, pending};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use annulus::Backend;
use annulus_hyper::Tls;
use annulus_hyper::axum::serve;
use annulus_hyper::rustls::crypto::ring;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Form, Json, Multipart, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response, Sse, sse};
use axum::routing::{any, get, post};
use futures_util::{Stream, StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use sqlx::sqlite::SqlitePool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;
use tower::ServiceBuilder;
use tower::limit::ConcurrencyLimitLayer;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::services::ServeDir;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

const SHORT: Duration = Duration::from_millis(5);

/// The server that runs the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// axum's own server.
    Tokio,
    Annulus(Kind),
}

/// A backend of Annulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uring,
    Epoll,
}

/// The servers that are compared, the reference first.
pub const ALL: [On; 3] = [
    On::Tokio,
    On::Annulus(Kind::Uring),
    On::Annulus(Kind::Epoll),
];

impl On {
    /// Returns whether this server can run here.
    pub fn is_possible(self) -> bool {
        let builder = annulus::runtime::Runtime::builder();
        self != On::Annulus(Kind::Uring)
            || builder.backend(Backend::Uring).block_on(async {}).is_ok()
    }
}

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct Site {
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Site {
    /// Starts the router in the calling Tokio runtime.
    pub async fn start(on: On, files: &Path) -> Site {
        Site::start_with(on, files, None).await
    }

    /// Starts the router, over TLS on Annulus.
    pub async fn start_with(on: On, files: &Path, tls: Option<Tls>) -> Site {
        // For the clients of the handlers and of the tests. An error means that it is installed.
        let _ = ring::default_provider().install_default();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
        let app = router(files, pool).into_make_service_with_connect_info::<SocketAddr>();
        let (address, ended) = match on {
            On::Tokio => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let server = axum::serve(listener, app).with_graceful_shutdown(stopped);
                (address, tokio::spawn(server.into_future()))
            }
            On::Annulus(backend) => {
                let backend = match backend {
                    Kind::Uring => Backend::Uring,
                    Kind::Epoll => Backend::Fallback,
                };
                let (tell, address) = oneshot::channel();
                let mut server = serve("127.0.0.1:0", app)
                    .runtime(|runtime| runtime.backend(backend).cores(2))
                    .with_graceful_shutdown(stopped)
                    .on_listening(move |address| tell.send(address).unwrap());
                if let Some(tls) = tls {
                    server = server.tls(tls);
                }
                let ended = tokio::spawn(server.into_future());
                (address.await.unwrap(), ended)
            }
        };
        Site {
            address,
            stop,
            ended,
        }
    }

    /// Stops the server, and waits for its end.
    pub async fn stop(self) {
        drop(self.stop);
        self.ended.await.unwrap().unwrap();
    }
}

fn router(files: &Path, pool: SqlitePool) -> Router {
    Router::new()
        .merge(of_tokio())
        .merge(of_axum())
        .merge(of_layers())
        .route("/reqwest", get(reqwest))
        .route("/sqlx", get(sqlx).with_state(pool))
        .route("/sqlx_fresh", get(sqlx_fresh))
        .route(
            "/ws",
            any(async |upgrade: WebSocketUpgrade| {
                upgrade.max_message_size(32 << 20).on_upgrade(echo)
            }),
        )
        .nest_service("/files", ServeDir::new(files))
        .layer(DefaultBodyLimit::max(100 << 20))
}

// ----- Tokio -----

fn of_tokio() -> Router {
    Router::new()
        .route("/sleep", get(async || tokio::time::sleep(SHORT).await))
        .route(
            "/timeout",
            get(async || {
                tokio::time::timeout(SHORT, pending::<()>())
                    .await
                    .is_err()
                    .to_string()
            }),
        )
        .route("/interval", get(interval))
        .route(
            "/spawn",
            get(async || tokio::spawn(async { 7 }).await.unwrap().to_string()),
        )
        .route("/join_set", get(join_set))
        .route(
            "/spawn_blocking",
            get(async || tokio::task::spawn_blocking(|| 8).await.unwrap().to_string()),
        )
        .route(
            "/block_in_place",
            get(async || tokio::task::block_in_place(|| 9).to_string()),
        )
        .route("/yield", get(async || tokio::task::yield_now().await))
        .route(
            "/handle",
            get(async || {
                tokio::runtime::Handle::current()
                    .spawn(async { 3 })
                    .await
                    .unwrap()
                    .to_string()
            }),
        )
        .route("/select", get(select))
        .route("/fs", get(fs))
        .route("/process", get(process))
        .route("/net", get(net))
        .route(
            "/dns",
            get(async || {
                (tokio::net::lookup_host("localhost:80")
                    .await
                    .unwrap()
                    .count()
                    > 0)
                .to_string()
            }),
        )
        .route("/mutex", get(mutex))
        .route("/semaphore", get(semaphore))
        .route("/mpsc", get(channel))
        .route("/broadcast", get(broadcasts))
        .route("/watch", get(watch))
        .route("/notify", get(notify))
        .route("/signal", get(signals))
        .route("/annulus_sleep", get(annulus_sleep))
}

async fn interval() -> &'static str {
    let mut interval = tokio::time::interval(SHORT);
    for _ in 0..3 {
        interval.tick().await;
    }
    "ticked"
}

async fn join_set() -> String {
    let mut set = JoinSet::new();
    (0..5).for_each(|number| drop(set.spawn(async move { number })));
    set.join_all().await.into_iter().sum::<i32>().to_string()
}

async fn select() -> String {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || sender.send(4));
    tokio::select! {
        value = receiver => value.unwrap().to_string(),
        () = pending() => "never".to_owned(),
    }
}

async fn fs() -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    tokio::fs::write(&path, "written").await.unwrap();
    tokio::fs::read_to_string(&path).await.unwrap()
}

async fn process() -> Vec<u8> {
    tokio::process::Command::new("echo")
        .arg("hi")
        .output()
        .await
        .unwrap()
        .stdout
}

async fn net() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let far =
        tokio::spawn(async move { listener.accept().await.unwrap().0.write_all(b"text").await });
    let mut text = String::new();
    TcpStream::connect(address)
        .await
        .unwrap()
        .read_to_string(&mut text)
        .await
        .unwrap();
    far.await.unwrap().unwrap();
    text
}

async fn mutex() -> String {
    let count = std::sync::Arc::new(tokio::sync::Mutex::new(0));
    let mut set = JoinSet::new();
    for _ in 0..10 {
        let count = std::sync::Arc::clone(&count);
        set.spawn(async move { *count.lock().await += 1 });
    }
    set.join_all().await;
    count.lock().await.to_string()
}

async fn semaphore() -> String {
    let semaphore = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
    let permit = std::sync::Arc::clone(&semaphore)
        .acquire_owned()
        .await
        .unwrap();
    std::thread::spawn(move || drop(permit));
    semaphore.acquire().await.is_ok().to_string()
}

async fn channel() -> String {
    let (sender, mut receiver) = mpsc::channel(1);
    std::thread::spawn(move || (0..5).for_each(|number| sender.blocking_send(number).unwrap()));
    let mut sum = 0;
    while let Some(number) = receiver.recv().await {
        sum += number;
    }
    sum.to_string()
}

async fn broadcasts() -> String {
    let (sender, mut receiver) = broadcast::channel(4);
    std::thread::spawn(move || sender.send(6));
    receiver.recv().await.unwrap().to_string()
}

async fn watch() -> String {
    let (sender, mut receiver) = tokio::sync::watch::channel(1);
    std::thread::spawn(move || sender.send(2));
    receiver
        .wait_for(|value| *value == 2)
        .await
        .unwrap()
        .to_string()
}

async fn notify() -> &'static str {
    let notify = std::sync::Arc::new(tokio::sync::Notify::new());
    let there = std::sync::Arc::clone(&notify);
    std::thread::spawn(move || there.notify_one());
    notify.notified().await;
    "notified"
}

async fn signals() -> &'static str {
    let kind = tokio::signal::unix::SignalKind::user_defined1();
    let mut signals = tokio::signal::unix::signal(kind).unwrap();
    let kill = tokio::process::Command::new("kill")
        .arg("-USR1")
        .arg(std::process::id().to_string())
        .status();
    assert!(kill.await.unwrap().success());
    signals.recv().await;
    "received"
}

/// Under axum's own server there is no core to sleep on.
async fn annulus_sleep() -> &'static str {
    if tokio::task::try_id().is_none() {
        annulus::time::sleep(SHORT).await;
    }
    "slept"
}

// ----- axum -----

fn of_axum() -> Router {
    Router::new()
        .route("/", get(async || "Hello"))
        .route(
            "/path/{name}",
            get(async |axum::extract::Path(name): axum::extract::Path<String>| name),
        )
        .route(
            "/query",
            get(async |Query(pairs): Query<Vec<(String, String)>>| format!("{pairs:?}")),
        )
        .route(
            "/form",
            post(async |Form(pairs): Form<Vec<(String, String)>>| format!("{pairs:?}")),
        )
        .route(
            "/json",
            post(async |Json(value): Json<serde_json::Value>| Json(value)),
        )
        .route(
            "/state",
            get(async |State(state): State<&'static str>| state).with_state("state"),
        )
        .route("/bytes", post(async |body: Bytes| body))
        .route("/multipart", post(multipart))
        .route("/upload", post(upload))
        .route("/upload_to_file", post(upload_to_file))
        .route("/stream", get(async || Body::from_stream(pieces())))
        .route("/trailers", get(trailers))
        .route("/status", get(async || StatusCode::IM_A_TEAPOT))
        .route("/panic", get(panics))
        .route(
            "/peer",
            get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.ip().to_string()),
        )
        .route("/sse", get(async || Sse::new(events())))
        .route(
            "/sse_interval",
            get(async || Sse::new(events_of_an_interval())),
        )
        .route("/sse_keep_alive", get(keep_alive))
}

async fn multipart(mut parts: Multipart) -> String {
    let mut lengths = Vec::new();
    while let Some(part) = parts.next_field().await.unwrap() {
        lengths.push(part.bytes().await.unwrap().len());
    }
    format!("{lengths:?}")
}

async fn upload(body: Body) -> String {
    let pieces = body.into_data_stream();
    let bytes = pieces.fold(0, async |bytes, piece| bytes + piece.unwrap().len());
    bytes.await.to_string()
}

async fn upload_to_file(body: Body) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("upload");
    let mut file = tokio::fs::File::create(&path).await.unwrap();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.unwrap()).await.unwrap();
    }
    file.flush().await.unwrap();
    tokio::fs::metadata(&path).await.unwrap().len().to_string()
}

fn pieces() -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::iter(0..100).map(|number| Ok(Bytes::from(vec![number; 10_000])))
}

async fn trailers() -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("sum", "42".parse().unwrap());
    let frames = [Frame::data(Bytes::from("body")), Frame::trailers(trailers)];
    let frames = stream::iter(frames.map(Ok::<_, Infallible>));
    Response::new(Body::new(StreamBody::new(frames)))
}

async fn panics() -> &'static str {
    if true {
        panic!("a panic for the test");
    }
    ""
}

fn events() -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::iter(0..3).map(|number| Ok(sse::Event::default().data(number.to_string())))
}

fn events_of_an_interval() -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let ticks = tokio_stream::wrappers::IntervalStream::new(tokio::time::interval(SHORT));
    ticks
        .take(3)
        .map(|_| Ok(sse::Event::default().data("tick")))
}

async fn keep_alive() -> impl IntoResponse {
    let silent =
        stream::once(async { tokio::time::sleep(20 * SHORT).await }).filter_map(async |()| None);
    let silent = silent.map(|event: Result<sse::Event, Infallible>| event);
    Sse::new(silent).keep_alive(sse::KeepAlive::new().interval(SHORT).text("here"))
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if matches!(message, Message::Text(_) | Message::Binary(_))
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
}

// ----- layers, clients, databases -----

fn of_layers() -> Router {
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, SHORT);
    let buffered = ServiceBuilder::new()
        .layer(axum::error_handling::HandleErrorLayer::new(async |_| {
            StatusCode::INTERNAL_SERVER_ERROR
        }))
        .buffer(4)
        .timeout(Duration::from_secs(300));
    Router::new()
        .route(
            "/timeout_layer",
            get(async || pending::<()>().await).layer(timeout),
        )
        .route(
            "/concurrency_limit",
            get(async || "in").layer(ConcurrencyLimitLayer::new(1)),
        )
        .route("/buffer", get(async || "buffered").layer(buffered))
        .route(
            "/body_limit",
            post(async |body: Bytes| body.len().to_string()).layer(RequestBodyLimitLayer::new(10)),
        )
        .route(
            "/compression",
            get(async || "long ".repeat(10_000)).layer(CompressionLayer::new()),
        )
        .route(
            "/trace",
            get(async || "traced").layer(TraceLayer::new_for_http()),
        )
}

async fn reqwest(Query(to): Query<Vec<(String, String)>>) -> String {
    let response = reqwest::get(to[0].1.as_str()).await.unwrap();
    response.text().await.unwrap()
}

async fn sqlx(State(pool): State<SqlitePool>) -> String {
    let (sum,): (i64,) = sqlx::query_as("select 40 + 2")
        .fetch_one(&pool)
        .await
        .unwrap();
    sum.to_string()
}

async fn sqlx_fresh() -> String {
    sqlx(State(SqlitePool::connect("sqlite::memory:").await.unwrap())).await
}
