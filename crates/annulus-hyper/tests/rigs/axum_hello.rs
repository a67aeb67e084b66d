//! An axum router on the cores of Annulus or on Tokio:
//! `axum_hello [--runtime annulus|tokio] [--backend auto|uring|epoll] [--addr ADDRESS] [--layers] [--no-timeout]`.
//!
//! `--layers` adds tower middleware. One layer uses Tokio's clock, so a Tokio runtime is started as well.
//! `--no-timeout` removes the time limit for the head of a request, as in `axum::serve`. `ci/http-bench` compares both
//! on one thread.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use annulus::Backend;
use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus_hyper::Server;
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::routing::get;
use axum::serve::ListenerExt;
use hyper_util::service::TowerToHyperService;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

const USAGE: &str = "axum_hello [--runtime annulus|tokio] [--backend auto|uring|epoll] [--addr ADDRESS] \
                     [--layers] [--no-timeout]";

#[derive(Clone, Copy)]
enum On {
    Annulus(Backend),
    Tokio,
}

struct Options {
    on: On,
    address: SocketAddr,
    layers: bool,
    no_timeout: bool,
}

fn main() -> ExitCode {
    let Some(options) = read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (address, router) = (options.address, router(options.layers));
    let mut server = Server::new();
    if options.no_timeout {
        server = server.with_header_read_timeout(None);
    }
    let served = match options.on {
        On::Annulus(backend) if options.layers => match clock() {
            Ok(clock) => {
                // Core 0 runs on this thread. With more cores, each thread would have to enter the runtime.
                let _context = clock.enter();
                on_annulus(backend, address, server, router)
            }
            Err(error) => Err(error),
        },
        On::Annulus(backend) => on_annulus(backend, address, server, router),
        On::Tokio => on_tokio(address, router),
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
    let mut is_tokio = false;
    let mut address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let (mut layers, mut no_timeout) = (false, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--layers" => layers = true,
            "--no-timeout" => no_timeout = true,
            "--runtime" => {
                is_tokio = match words.next()?.as_str() {
                    "annulus" => false,
                    "tokio" => true,
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
            "--addr" => address = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    let on = if is_tokio {
        On::Tokio
    } else {
        On::Annulus(backend)
    };
    Some(Options {
        on,
        address,
        layers,
        no_timeout,
    })
}

/// Returns the router, which is the same on both runtimes.
fn router(layers: bool) -> Router {
    let router = Router::new()
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

fn on_annulus(
    backend: Backend,
    address: SocketAddr,
    server: Server,
    router: Router,
) -> io::Result<()> {
    Runtime::builder()
        .threads(1)
        .backend(backend)
        .run(move |_core| {
            let (server, service) = (server.clone(), TowerToHyperService::new(router.clone()));
            async move {
                let listener = TcpListener::bind(address)?;
                announce(listener.local_addr()?)?;
                server.serve(listener, service).await
            }
        })
}

/// Returns a Tokio runtime that drives timers only.
fn clock() -> io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_time().build()
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
