//! An axum router on the cores of Annulus. Ctrl-C and SIGTERM end it gracefully:
//! `cargo run --release -p annulus-hyper --example axum -- 127.0.0.1:8080`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use hyper_util::service::TowerToHyperService;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: axum ADDRESS:PORT")?;
    let address: SocketAddr = address.parse()?;
    let router = Router::new()
        .route("/hello/{name}", get(hello))
        .route("/echo", post(|body: String| async { body }));

    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    println!("http://{address}/");
    Runtime::builder()
        // The time that requests in progress have to finish.
        .grace(Duration::from_secs(5))
        .run_with(
            |handle| {
                thread::spawn(move || {
                    signals.forever().next();
                    handle.shutdown();
                });
            },
            // Runs on each core. The kernel spreads connections over the cores' listeners.
            |_core| {
                let service = TowerToHyperService::new(router.clone());
                async move { annulus_hyper::serve(TcpListener::bind(address)?, service).await }
            },
        )?;
    Ok(())
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Hello, {name}!\n")
}
