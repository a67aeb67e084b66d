//! A TCP echo server with a ring per core. Ctrl-C and SIGTERM end it gracefully:
//! `cargo run --release -p annulus --features signal --example echo -- 127.0.0.1:7000`

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, Runtime};
use futures_lite::future::or;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: echo ADDRESS:PORT")?;
    let address: SocketAddr = address.parse()?;
    println!("echo at {address}");
    Runtime::builder()
        .shutdown_on_signals()
        .grace(Duration::from_secs(5)) // for sends in progress
        // Runs on each core. The kernel spreads connections over the cores' listeners.
        .run(|_core| serve(address))?;
    Ok(())
}

async fn serve(address: SocketAddr) -> io::Result<()> {
    let mut incoming = TcpListener::bind(address)?.accept_multishot();
    while let Some(stream) = incoming.next().await {
        let echo = echo(stream?);
        runtime::spawn(async {
            let stopping = async {
                runtime::stopping().await;
                Ok(())
            };
            if let Err(error) = or(echo, stopping).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
    Ok(())
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut chunks = stream.recv_multishot();
    // A chunk is a buffer of the core, which returns to the kernel when the chunk is dropped.
    while let Some(chunk) = chunks.next().await {
        stream.send_all(chunk?).await?;
    }
    Ok(())
}
