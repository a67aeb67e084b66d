//! Counts the lines of a file, and compares the time with that of `std::io::BufReader`:
//! `cargo run --release -p annulus --features tokio --example lines -- FILE 7`

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

use annulus::Engine;
use tokio::io::AsyncBufReadExt;

/// Counts the lines, and the bytes without line ends.
async fn by_cursor(engine: &Engine, path: &Path) -> io::Result<(u64, u64)> {
    let mut lines = engine.open(path).await?.cursor().lines();
    let (mut count, mut bytes) = (0, 0);
    while let Some(line) = lines.next_line().await? {
        count += 1;
        bytes += line.len() as u64;
    }
    Ok((count, bytes))
}

/// Counts them with std. Blocks the thread.
fn by_std(path: &Path) -> io::Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for line in BufReader::new(File::open(path)?).lines() {
        count += 1;
        bytes += line?.len() as u64;
    }
    Ok((count, bytes))
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), rounds) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: lines FILE [ROUNDS]"));
    };
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let (path, engine) = (Path::new(&path), Engine::new()?);
    for _ in 0..rounds {
        let start = Instant::now();
        let expected = by_std(path)?;
        let std = start.elapsed();
        let start = Instant::now();
        assert_eq!(by_cursor(&engine, path).await?, expected);
        let cursor = start.elapsed();
        let ratio = std.as_secs_f64() / cursor.as_secs_f64();
        println!(
            "{} lines; throughput: {ratio:.2} of BufReader's",
            expected.0
        );
    }
    Ok(())
}
