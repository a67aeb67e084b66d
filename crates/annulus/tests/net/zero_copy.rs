//! Zero-copy sends. On loopback the kernel copies after all, and later sends of the stream are plain ones. Each stream
//! here first sends zero-copy, then with copies.

use std::sync::Arc;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{spawn, yield_now};

use crate::fixtures::{Way, for_each_way};

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepts = spawn(async move { listener.accept().await.unwrap() });
    let one = TcpStream::connect(address).await.unwrap();
    (one, accepts.await.unwrap())
}

async fn read_all(stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunks = stream.recv_multishot();
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk.unwrap());
    }
    all
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(seed as u64, 0, bytes)
}

#[test]
fn zero_copy_sends_arrive_whole_and_in_order() {
    for_each_way(|way| async move {
        let (one, other) = pair().await;
        let reads = spawn(read_all(other));
        let large = if way.is_tiny() { 40_000 } else { 3_000_000 };
        let mut want = Vec::new();
        for (seed, bytes) in [large, 100, 0, 16 << 10, large].into_iter().enumerate() {
            let sent = pattern(bytes, seed);
            want.extend_from_slice(&sent);
            let back = one.send_zc(sent).await.unwrap();
            assert!(
                back == pattern(bytes, seed),
                "the buffer comes back as it was"
            );
            let tail = vec![seed as u8; 10];
            want.extend_from_slice(&tail);
            one.send_all(tail).await.unwrap();
        }
        drop(one);
        assert!(reads.await.unwrap() == want, "{way:?}");
    });
}

#[test]
fn memory_of_a_dropped_send_is_kept_until_the_kernel_releases_it() {
    for_each_way(|way| async move {
        let (one, other) = pair().await;
        let bytes = if way.is_tiny() { 40_000 } else { 8 << 20 };
        let kept: Arc<[u8]> = pattern(bytes, 3).into();
        let mut send = Box::pin(one.send_zc(Arc::clone(&kept)));
        let begun = std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::future::Future::poll(send.as_mut(), context))
        });
        let begun = begun.await.is_pending();
        drop(send);
        drop(one);
        if matches!(way, Way::Uring | Way::TinyUring) {
            assert!(begun);
            assert_eq!(Arc::strong_count(&kept), 2, "the kernel still reads it");
        }
        let got = read_all(other).await;
        assert!(kept.starts_with(&got), "{way:?}");
        if matches!(way, Way::Uring | Way::TinyUring) {
            assert_eq!(got.len(), bytes, "what has begun goes on");
        }
        while Arc::strong_count(&kept) > 1 {
            yield_now().await;
        }
    });
}

#[test]
fn a_zero_copy_send_to_a_closed_peer_fails() {
    for_each_way(|_| async {
        let (one, other) = pair().await;
        other.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(other);
        let mut rounds = 0;
        let error = loop {
            match one.send_zc(pattern(100_000, 0)).await {
                Ok(_) => rounds += 1,
                Err(error) => break error,
            }
            assert!(rounds < 1000, "a reset connection takes no bytes");
        };
        let (error, buf) = error.into_parts();
        let kinds = [
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
        ];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert_eq!(buf.map(|buf| buf.len()), Some(100_000));
    });
}
