//! A complete site on Annulus's cores: accounts, uploads, pictures and video, and live metrics. README.md explains it.

#![forbid(unsafe_code)]

mod accounts;
mod attempts;
mod config;
mod database;
mod form;
mod hashing;
mod live;
mod media;
mod pages;
mod visitor;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use annulus_hyper::Tls;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tower_http::services::ServeDir;
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutLayer};

use attempts::{Attempts, PerUser};
use config::Config;
use database::Database;
use hashing::Hashing;
use pages::{Failure, View};
use visitor::Visitor;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The time for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest pause within a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for open uploads and downloads after SIGTERM.
const DEADLINE: Duration = Duration::from_secs(20);
/// The length of a form without a file.
const FORM_BYTES_MAX: usize = 4 << 10;
const STATIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/static");

/// Headers of all responses.
const HEADERS: [(HeaderName, &str); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
];

/// The state that all handlers share.
struct Site {
    config: Config,
    database: Database,
    hashing: Hashing,
    /// Logins and registrations.
    attempts: Attempts,
    started: Instant,
    requests: AtomicU64,
    /// WebSockets.
    watchers: Arc<PerUser>,
    /// `true` when the site shuts down.
    stopping: watch::Receiver<bool>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).init();
    if let Err(error) = run().await {
        tracing::error!("{error}");
        return ExitCode::FAILURE;
    }
    tracing::info!("stopped");
    ExitCode::SUCCESS
}

async fn run() -> Result<(), Error> {
    let config = Config::from_environment()?;
    let media = config.media();
    let created = tokio::fs::create_dir_all(&media).await;
    created.map_err(|error| format!("cannot create {}: {error}", media.display()))?;
    let tls = config.load_tls()?.map(Tls::new);
    let database = Database::open(&config.database_url).await;
    let database = database.map_err(|error| format!("cannot open the database: {error}"))?;
    let (stop, stopping) = watch::channel(false);
    let site = Arc::new(Site {
        database,
        hashing: Hashing::new(),
        attempts: Attempts::default(),
        started: Instant::now(),
        requests: AtomicU64::new(0),
        watchers: Arc::new(PerUser::new(live::WATCHERS_PER_USER, live::WATCHERS_MAX)),
        stopping,
        config,
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let app = router(&site).into_make_service_with_connect_info::<SocketAddr>();
    let mut server = annulus_hyper::axum::serve(&site.config.address[..], app)
        .deadline(DEADLINE)
        .on_listening(move |address| tracing::info!("listening on {scheme}://{address}"))
        .with_graceful_shutdown(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping");
            stop.send_replace(true);
        });
    if let Some(tls) = tls {
        tokio::spawn(reload(tls.clone(), Arc::clone(&site)));
        server = server.tls(tls);
    }
    let served = server.await;
    served.map_err(|error| format!("cannot serve {}: {error}", site.config.address))?;
    site.database.close().await;
    Ok(())
}

/// Replaces the certificate at each SIGHUP.
async fn reload(tls: Tls, site: Arc<Site>) -> std::io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    while hangups.recv().await.is_some() {
        match site.config.load_tls() {
            Ok(config) => config.into_iter().for_each(|config| tls.replace(config)),
            Err(error) => tracing::error!("the certificate is not replaced: {error}"),
        }
    }
    Ok(())
}

fn router(site: &Arc<Site>) -> Router {
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, PAGE_TIMEOUT);
    // Pages that show nothing but the visitor.
    let view = |view| get(async move |Extension(visitor): Extension<Visitor>| visitor.page(view));
    let user = from_fn(visitor::require_user);
    let identify = from_fn_with_state(Arc::clone(site), visitor::identify);
    let upload_limit = DefaultBodyLimit::max(site.config.upload_bytes);
    let private = Router::new()
        .route("/gallery", get(media::gallery))
        .route("/metrics", view(View::Metrics))
        .route("/logout", post(accounts::log_out))
        .route_layer(user.clone());
    // The timeout includes the look-up of the session.
    let pages = Router::new()
        .route("/", view(View::Home))
        .route("/register", view(View::Register).post(accounts::register))
        .route("/login", view(View::Login).post(accounts::log_in))
        .merge(private)
        .layer(identify.clone())
        .layer(timeout);
    let long = Router::new()
        .route("/upload", post(media::upload).layer(upload_limit))
        .route("/metrics/live", any(live::connect))
        .nest_service("/media", ServeDir::new(site.config.media()))
        .route_layer(user)
        .fallback(async || Failure(StatusCode::NOT_FOUND, "There is no such page."))
        .layer(identify);
    pages
        .merge(long)
        .nest_service("/static", ServeDir::new(STATIC))
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT))
        .layer(from_fn_with_state(Arc::clone(site), observe))
        .with_state(Arc::clone(site))
}

/// Counts and logs a request, and adds the headers that all responses have.
async fn observe(
    State(site): State<Arc<Site>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = Instant::now();
    let mut response = next.run(request).await;
    site.requests.fetch_add(1, Ordering::Relaxed);
    let (status, ms) = (response.status().as_u16(), began.elapsed().as_millis());
    tracing::info!(%peer, %method, path, status, ms, "request");
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if site.config.uses_tls() {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(header::STRICT_TRANSPORT_SECURITY, year);
    }
    // Pages depend on the visitor.
    if !path.starts_with("/static/") {
        let value = HeaderValue::from_static("private, no-cache");
        headers.insert(header::CACHE_CONTROL, value);
    }
    response
}
