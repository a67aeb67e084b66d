//! The progress of sends in flight.

use std::net::Shutdown;

use annulus::runtime::{spawn, yield_now};

use crate::bytes::bytes;
use crate::echo::connection;
use crate::fixtures::for_each_way;

/// More than the sockets hold with small buffers.
const BYTES: usize = 4 << 20;
const BUFFER_BYTES: usize = 64 << 10;

#[test]
fn the_bytes_taken_by_the_peer_are_reported_during_a_send() {
    for_each_way(|_| async {
        let (near, far) = connection().await;
        near.options().set_send_buffer_bytes(BUFFER_BYTES).unwrap();
        far.options()
            .set_receive_buffer_bytes(BUFFER_BYTES)
            .unwrap();
        let progress = near.send_progress();
        let start = progress.acknowledged().unwrap().unwrap();
        let sending = spawn(async move {
            near.send_all(bytes(1, 0, BYTES)).await.unwrap();
            near.shutdown(Shutdown::Write).unwrap();
            near
        });
        // A part of it has been received, and the send continues.
        let piece = far.recv_exact(vec![0; BYTES / 4]).await.unwrap();
        let mut seen = progress.acknowledged().unwrap().unwrap();
        while seen.bytes - start.bytes < piece.len() as u64 {
            yield_now().await;
            seen = progress.acknowledged().unwrap().unwrap();
        }
        // `all` says nothing yet: the kernel may have been given no more than the peer has acknowledged.
        assert!(seen.bytes - start.bytes < BYTES as u64);
        far.recv_exact(vec![0; BYTES - piece.len()]).await.unwrap();
        let near = sending.await.unwrap();
        while !progress.acknowledged().unwrap().unwrap().all {
            yield_now().await;
        }
        // One more byte for the end of the stream.
        let seen = progress.acknowledged().unwrap().unwrap().bytes - start.bytes;
        assert!((BYTES as u64..=BYTES as u64 + 1).contains(&seen), "{seen}");
        drop(near);
        while progress.acknowledged().unwrap().is_some() {
            yield_now().await;
        }
    });
}
