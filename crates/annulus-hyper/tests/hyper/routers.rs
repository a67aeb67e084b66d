//! An unchanged axum router with tower layers.

use std::io;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime;
use annulus_hyper::serve;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper_util::service::TowerToHyperService;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

use crate::support::*;

fn router() -> Router {
    let server = SetResponseHeaderLayer::overriding(
        HeaderName::from_static("server"),
        HeaderValue::from_static("annulus"),
    );
    let timeout = Duration::from_millis(50);
    let timeout = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, timeout);
    let slow = get(|| async {
        tokio::time::sleep(PATIENCE).await;
        "never"
    });
    Router::new()
        .route("/", get(|| async { "Hello, World!" }))
        .route("/slow", slow.layer(timeout))
        .route("/hello/{name}", get(named))
        .route(
            "/sum",
            post(|Json(list): Json<Vec<i64>>| async move { Json(list.iter().sum::<i64>()) }),
        )
        .route("/long", get(|| async { "long ".repeat(10_000) }))
        .with_state("Hello")
        .layer(
            ServiceBuilder::new()
                .layer(server)
                .layer(CompressionLayer::new()),
        )
}

async fn named(State(word): State<&'static str>, Path(name): Path<String>) -> String {
    format!("{word}, {name}!")
}

fn start() -> io::Result<std::net::SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    drop(runtime::spawn(serve(
        listener,
        TowerToHyperService::new(router()),
    )));
    Ok(address)
}

#[test]
fn a_router_with_layers_works_over_both_versions() {
    on_each(|| async {
        let address = start()?;
        let mut requests = http1(address).await?;
        let request = |path: &str| hyper::Request::get(path.to_owned()).header("host", "x");
        let response = requests
            .send_request(request("/hello/you").body(nothing()).unwrap())
            .await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.headers()["server"], "annulus");
        assert_eq!(text_of(response).await?, "Hello, you!");

        requests.ready().await.map_err(io::Error::other)?;
        let compressed = request("/long").header("accept-encoding", "gzip");
        let response = requests
            .send_request(compressed.body(nothing()).unwrap())
            .await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.headers()["content-encoding"], "gzip");
        assert!(text_of(response).await?.len() < 1_000);

        let mut requests = http2(address).await?;
        let mut sum = of_url("/sum", whole("[1, 2, 39]"));
        let json = HeaderValue::from_static("application/json");
        sum.headers_mut().insert("content-type", json);
        let response = requests.send_request(sum).await;
        assert_eq!(text_of(response.map_err(io::Error::other)?).await?, "42");
        let response = requests.send_request(of_url("/nowhere", nothing())).await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        Ok(())
    });
}

#[test]
fn a_layer_that_needs_tokios_clock_works_with_a_tokio_runtime_entered() {
    let beside = tokio::runtime::Builder::new_multi_thread();
    let beside = { beside }.worker_threads(1).enable_all().build().unwrap();
    let _context = beside.enter();
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        let request = hyper::Request::get("/slow").header("host", "x");
        let response = requests
            .send_request(request.body(nothing()).unwrap())
            .await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
        Ok(())
    });
}
