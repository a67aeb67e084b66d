//! Prints the first page of a file. The task runs on Tokio, and each of Tokio's threads has a ring:
//! `cargo run --release -p annulus --features tokio --example read_tokio -- README.md`

use std::error::Error;
use std::io::Write;

use annulus::Engine;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: read_tokio FILE")?;
    let engine = Engine::new()?;
    // io_uring, or the fallback and the reason for it.
    eprintln!("{}", engine.backend());
    let file = engine.open(path).await?;
    // The buffer moves into the read and is returned with the result.
    let read = tokio::spawn(async move { file.read_at(vec![0; 4096], 0).await });
    let (bytes, page) = read.await??;
    std::io::stdout().write_all(&page[..bytes])?;
    Ok(())
}
