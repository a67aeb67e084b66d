//! Bytes of a seed, so that their receiver can check each one.

use annulus::net::TcpStream;
use annulus_testing::pattern;
pub(crate) use annulus_testing::pattern::bytes;

/// The received part of a stream, each byte compared.
#[derive(Debug)]
pub(crate) struct Expected {
    seed: u64,
    pub(crate) count: u64,
}

impl Expected {
    pub(crate) fn new(seed: u64) -> Expected {
        Expected { seed, count: 0 }
    }

    pub(crate) fn check(&mut self, got: &[u8]) {
        pattern::check(self.seed, self.count, got);
        self.count += got.len() as u64;
    }
}

/// Receives up to the end of the stream and compares all bytes. Returns their number.
pub(crate) async fn receive_all(stream: &TcpStream, seed: u64) -> u64 {
    let mut expected = Expected::new(seed);
    let mut chunks = stream.recv_multishot();
    while let Some(chunk) = chunks.next().await {
        expected.check(&chunk.unwrap());
    }
    expected.count
}

/// Sends `question` and receives the same number of bytes, which must be equal.
pub(crate) async fn ask(stream: &TcpStream, request: Vec<u8>) {
    let request = stream.send_all(request).await.unwrap();
    let mut response = Vec::new();
    while response.len() < request.len() {
        let (count, part) = stream.recv(Vec::with_capacity(4096)).await.unwrap();
        assert!(count > 0, "it ended after {} bytes", response.len());
        response.extend(part);
    }
    assert_eq!(response, request);
}
