//! An axum router on the cores of Annulus or on Tokio:
//! `axum_hello [--runtime annulus|annulus-tokio|tokio] [--backend auto|uring|epoll] [--threads N] [--addr ADDRESS]
//! [--layers] [--no-timeout]`. Only Annulus has more than one thread.
//!
//! `annulus-tokio` is Annulus with Tokio's context. `--layers` adds tower middleware. One layer uses Tokio's clock, so
//! the context is added as well. `--no-timeout` removes the time limit for the head of a request, as in `axum::serve`.
//! `bench/axum` compares them on one thread.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use annulus::Backend;
use annulus::net::TcpListener;
use annulus::runtime::{Runtime, RuntimeBuilder};
use annulus_hyper::Server;
use annulus_hyper::axum::{serve_on_core, server as axum_server};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::routing::{any, get, post};
use axum::serve::ListenerExt;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

const USAGE: &str = "axum_hello [--runtime annulus|annulus-tokio|tokio] [--backend auto|uring|epoll] [--threads N] \
                     [--addr ADDRESS] [--layers] [--no-timeout]";
/// The steps of `/compute`: about a millisecond.
const COMPUTE_STEPS: u64 = 800_000;

#[derive(Clone, Copy)]
enum On {
    /// With or without Tokio's context.
    Annulus(Backend, bool),
    Tokio,
}

struct Options {
    on: On,
    threads: usize,
    address: SocketAddr,
    layers: bool,
    no_timeout: bool,
}

fn main() -> ExitCode {
    let Some(options) = read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let address = options.address;
    let served = match options.on {
        On::Annulus(backend, has_tokio) => {
            let has_tokio = has_tokio || options.layers;
            let mut server = axum_server();
            if options.no_timeout {
                server = server.with_header_read_timeout(None);
            }
            let mut builder = Runtime::builder().cores(options.threads).backend(backend);
            if has_tokio {
                builder = builder.with_tokio();
            }
            on_annulus(builder, address, server, router(options.layers, has_tokio))
        }
        On::Tokio => on_tokio(address, router(options.layers, true)),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serving HTTP at {address} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read(mut words: impl Iterator<Item = String>) -> Option<Options> {
    let mut backend = Backend::Auto;
    let (mut on_cores, mut has_tokio) = (true, false);
    let mut address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let (mut threads, mut layers, mut no_timeout) = (1, false, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--layers" => layers = true,
            "--no-timeout" => no_timeout = true,
            "--runtime" => {
                (on_cores, has_tokio) = match words.next()?.as_str() {
                    "annulus" => (true, false),
                    "annulus-tokio" => (true, true),
                    "tokio" => (false, true),
                    _ => return None,
                }
            }
            "--backend" => {
                backend = match words.next()?.as_str() {
                    "auto" => Backend::Auto,
                    "uring" => Backend::Uring,
                    "epoll" => Backend::Fallback,
                    _ => return None,
                }
            }
            "--threads" => threads = words.next()?.parse().ok()?,
            "--addr" => address = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    let on = match on_cores {
        true => On::Annulus(backend, has_tokio),
        false => On::Tokio,
    };
    Some(Options {
        on,
        threads,
        address,
        layers,
        no_timeout,
    })
}

/// Returns the router, which is the same on both runtimes. Without Tokio, the sleep is that of the core, and there are
/// no WebSockets.
fn router(layers: bool, has_tokio: bool) -> Router {
    const SLEEP: Duration = Duration::from_millis(1);
    let sleep = move || async move {
        match has_tokio {
            true => tokio::time::sleep(SLEEP).await,
            false => annulus::time::sleep(SLEEP).await,
        }
        "slept"
    };
    let websocket = |upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) };
    let router = Router::new()
        .route("/sleep", get(sleep))
        .route("/compute", get(compute))
        .route(
            "/upload",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .route("/ws", any(websocket))
        .route("/", get(|| async { "Hello, World!" }))
        .route(
            "/hello/{name}",
            get(|Path(name): Path<String>| async move { format!("Hello, {name}!") }),
        );
    if !layers {
        return router;
    }
    let server = SetResponseHeaderLayer::overriding(
        HeaderName::from_static("server"),
        HeaderValue::from_static("annulus"),
    );
    let timeout =
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(5));
    router.layer(
        ServiceBuilder::new()
            .layer(server)
            .layer(timeout)
            .layer(CompressionLayer::new()),
    )
}

/// Each step needs the result of the one before.
async fn compute() -> &'static str {
    let steps = (0..COMPUTE_STEPS).fold(1, |hash: u64, step| {
        (hash ^ step).wrapping_mul(0x100_0000_01b3)
    });
    std::hint::black_box(steps);
    "computed"
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}

fn on_annulus(
    builder: RuntimeBuilder,
    address: SocketAddr,
    server: Server,
    router: Router,
) -> io::Result<()> {
    builder.run(move |_core| {
        let (server, router) = (server.clone(), router.clone());
        async move {
            let listener = TcpListener::bind(address)?;
            announce(listener.local_addr()?)?;
            serve_on_core(&server, listener, router).await
        }
    })
}

fn on_tokio(address: SocketAddr, router: Router) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        // As `annulus_hyper::serve` does.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router).await
    })
}

fn announce(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on {address}")?;
    out.flush()
}
