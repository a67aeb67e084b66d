//! Halves of streams, exact receives, and writers. Every test runs on every backend, or prints why it does not.
#![cfg(feature = "net")]

mod dropped;
mod order;
mod split;
mod writer;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::Runtime;
use annulus_testing::skip;

/// The time limit of a test that hangs.
const STANDSTILL: Duration = Duration::from_secs(300);

/// Runs a test on a core of each kind.
fn on_each<F>(test: impl Fn() -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    for backend in [Backend::Fallback, Backend::Uring] {
        let name = format!("{backend:?}");
        let future = test();
        let run = Runtime::builder()
            .backend(backend)
            .block_on(async move { annulus::time::timeout(STANDSTILL, future).await });
        match run {
            Ok(Ok(outcome)) => outcome.unwrap_or_else(|error| panic!("{name}: {error}")),
            Ok(Err(_)) => panic!("{name}: at a standstill after {STANDSTILL:?}"),
            Err(error) if error.allows_fallback() => skip::skip(error),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// Returns the two ends of a connection.
async fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let far = listener.accept().await?;
    Ok((near, far))
}

/// Returns bytes that depend on their position in a stream.
fn pattern(from: u64, bytes: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(0, from, bytes)
}

/// Checks that `bytes` are those of the pattern from `from` on.
fn check(from: u64, bytes: &[u8]) {
    annulus_testing::pattern::check(0, from, bytes);
}
