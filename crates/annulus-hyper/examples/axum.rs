//! An axum router on the cores of Annulus. Ctrl-C and SIGTERM end it gracefully:
//! `cargo run --release -p annulus-hyper --features axum --example axum -- 127.0.0.1:8080`

use std::error::Error;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: axum ADDRESS:PORT")?;
    let router = Router::new()
        .route("/hello/{name}", get(hello))
        .route("/echo", post(|body: String| async { body }));

    // In place of `axum::serve`: one core per processor, beside Tokio's threads.
    let server = annulus_hyper::axum::serve(&address, router);
    let server = server.on_listening(|address| println!("http://{address}/"));
    Ok(server.await?)
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Hello, {name}!\n")
}
