//! Sends of several buffers.

use std::future::Future;
use std::task::{Context, Poll};

use annulus::net::UnixStream;
use annulus::runtime::spawn;

use crate::fixtures::{Way, for_each_way};

async fn read_all(stream: UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut chunks = stream.recv_multishot();
    while let Some(chunk) = chunks.next().await {
        all.extend_from_slice(&chunk.unwrap());
    }
    all
}

/// Returns buffers of all lengths, including 0, with bytes that depend on their position.
fn buffers(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    let buffer = |i: usize| {
        let bytes = if i.is_multiple_of(5) {
            0
        } else {
            bytes + i % 7
        };
        vec![i as u8; bytes]
    };
    (0..count).map(buffer).collect()
}

#[test]
fn several_buffers_arrive_in_order_and_come_back() {
    for_each_way(|way| async move {
        // More buffers than one call takes, and more bytes than a socket holds.
        let loads = if way.is_tiny() {
            [(3, 5), (40, 30), (1500, 2)]
        } else {
            [(3, 5), (2500, 3), (40, 30_000)]
        };
        for (count, bytes) in loads {
            let (one, other) = UnixStream::pair().unwrap();
            let reads = spawn(read_all(other));
            let sent = one.send_vectored_all(buffers(count, bytes)).await.unwrap();
            assert_eq!(sent, buffers(count, bytes));
            drop(one);
            assert!(reads.await.unwrap() == sent.concat(), "{count} of {bytes}");
        }
    });
}

#[test]
fn vectored_and_single_sends_of_one_stream_keep_their_order() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        let reads = spawn(read_all(other));
        let mut want = Vec::new();
        for round in 0..20u8 {
            let single = vec![round; 1000];
            let several = buffers(10, usize::from(round));
            want.extend_from_slice(&single);
            want.extend(several.concat());
            // Both are started before either has completed.
            let both = (one.send_all(single), one.send_vectored_all(several));
            let (single, several) = smol::future::zip(both.0, both.1).await;
            single.unwrap();
            several.unwrap();
        }
        drop(one);
        assert!(reads.await.unwrap() == want);
    });
}

#[test]
fn a_vectored_send_that_is_dropped_goes_on() {
    for_each_way(|way| async move {
        let (one, other) = UnixStream::pair().unwrap();
        let bufs = buffers(30, 20_000);
        let want = bufs.concat();
        let mut send = Box::pin(one.send_vectored_all(bufs));
        let begun = |context: &mut Context<'_>| Poll::Ready(send.as_mut().poll(context));
        let begun = std::future::poll_fn(begun).await;
        assert!(begun.is_pending(), "there is room for a part of it");
        drop(send);
        drop(one);
        let got = read_all(other).await;
        if matches!(way, Way::Uring | Way::TinyUring) {
            assert!(
                got == want,
                "{way:?}: {} of {} bytes",
                got.len(),
                want.len()
            );
        } else {
            assert!(want.starts_with(&got), "{way:?}");
        }
    });
}

#[test]
fn an_empty_send_completes_immediately() {
    for_each_way(|_| async {
        let (one, _other) = UnixStream::pair().unwrap();
        let none: Vec<Vec<u8>> = Vec::new();
        assert_eq!(one.send_vectored_all(none.clone()).await.unwrap(), none);
        let empty = vec![Vec::new(), Vec::new()];
        assert_eq!(one.send_vectored_all(empty.clone()).await.unwrap(), empty);
    });
}

/// One send takes 1,024 buffers. With empty ones only, its result of 0 would look as if the peer took no more.
#[test]
fn buffers_behind_more_empty_ones_than_a_send_takes_arrive() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        let mut bufs = vec![""; 1500];
        bufs.push("ab");
        bufs.extend([""; 1500]);
        bufs.push("c");
        assert_eq!(one.send_vectored_all(bufs.clone()).await.unwrap(), bufs);
        assert_eq!(other.recv_exact(vec![0; 3]).await.unwrap(), b"abc");
    });
}

#[test]
fn a_send_to_a_closed_peer_returns_the_buffers_with_the_error() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        annulus::time::sleep(std::time::Duration::from_millis(1)).await;
        let error = one.send_vectored_all(vec!["a", "b"]).await.unwrap_err();
        let (error, bufs) = error.into_parts();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        assert_eq!(bufs, Some(vec!["a", "b"]));
    });
}
