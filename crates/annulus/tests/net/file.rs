//! Sends of a file's bytes within the kernel, receives of a single chunk, and files beside sockets on a core.

use std::fs::File;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::Duration;

use annulus::OpenOptions;
use annulus::fs::CachedReads;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, spawn};
use annulus::time::timeout;

use crate::bytes::{ask, bytes, receive_all};
use crate::echo::{connection, echo_all};
use crate::fixtures::for_each_way;

/// More than both socket buffers hold.
const BYTES: usize = 24 << 20;

/// Returns a file whose bytes from the 1000th on are those that `receive_all` expects of `seed`, after a head of 100.
fn file(seed: u64) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[0xee; 1000]).unwrap();
    file.write_all(&bytes(seed, 100, BYTES - 100)).unwrap();
    file
}

#[test]
fn a_head_and_a_part_of_a_file_arrive_in_order_however_slowly_they_are_read() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let sending = spawn(async move {
            let (head, file) = (bytes(5, 0, 100), file(5));
            let mut calls = 0;
            let part = (BYTES - 100) as u64;
            let sent = server.send_file(&head, file.as_fd(), 1000, part, || calls += 1);
            assert_eq!(sent.await.unwrap(), part);
            assert!(calls > 1, "the peer had to make room");
            server.send_all("end").await.unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        let got = client.recv_exact(vec![0; BYTES]).await.unwrap();
        assert!(got == bytes(5, 0, BYTES));
        assert_eq!(client.recv_exact(vec![0; 3]).await.unwrap(), b"end");
        sending.await.unwrap();
    });
}

#[test]
fn a_range_beyond_a_file_is_not_sent_and_other_tasks_continue() {
    for_each_way(|_| async {
        let (witness, other) = connection().await;
        drop(spawn(echo_all(other)));
        let (client, server) = connection().await;
        let sending = spawn(async move {
            let file = file(6);
            let sent = server.send_file(
                &[],
                file.as_fd(),
                1000 + (BYTES - 600) as u64,
                10_000,
                || {},
            );
            assert_eq!(sent.await.unwrap(), 500);
            let sent = server.send_file(b"head", file.as_fd(), 1 << 40, 10, || {});
            assert_eq!(sent.await.unwrap(), 0);
        });
        ask(&witness, bytes(1, 0, 50)).await;
        sending.await.unwrap();
        assert_eq!(
            client.recv_exact(vec![0; 504]).await.unwrap()[500..],
            *b"head"
        );
    });
}

#[test]
fn nothing_can_be_sent_after_a_part_of_a_file() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let file = file(7);
        let half = server.send_file(&[], file.as_fd(), 0, BYTES as u64, || {});
        timeout(Duration::from_millis(50), half).await.unwrap_err();
        server.send_all("more").await.unwrap_err();
        drop(server);
        drop(client);
    });
}

#[test]
fn a_part_of_a_file_from_an_offset_that_no_file_has_is_refused() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let file = file(8);
        let sending = server.send_file(&[], file.as_fd(), u64::MAX - 10, 5, || {});
        let error = sending.await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        drop(client);
    });
}

#[test]
fn a_deferring_listener_returns_connections_with_their_first_bytes() {
    for_each_way(|_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.options().set_defer_accept(1).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let early = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(early.is_err(), "the client has sent nothing yet");
        client.send_all(bytes(8, 0, 60)).await.unwrap();
        let server = listener.accept().await.unwrap();
        let mut receiving = server.recv_multishot();
        let first = receiving.next().await.unwrap().unwrap();
        assert_eq!(*first, bytes(8, 0, 60)[..]);
        // The connection works as usual.
        client.send_all(bytes(9, 0, 20_000)).await.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receive_all(&server, 9).await, 20_000);
    });
}

#[test]
fn reads_of_a_file_and_requests_of_sockets_share_a_ring_of_any_size() {
    const TASKS: u64 = 24;
    const ROUNDS: u64 = 40;
    const BLOCK: usize = 512;
    for_each_way(|_| async {
        let mut stored = tempfile::NamedTempFile::new().unwrap();
        let length = (TASKS * ROUNDS) as usize * BLOCK;
        stored.write_all(&bytes(9, 0, length)).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).cached_reads(CachedReads::Never);
        let file = runtime::engine().open_with(&options, stored.path()).await;
        let file = file.unwrap();
        let completed = || runtime::handle().file_metrics().completed;
        let before = completed();
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (client, server) = connection().await;
            drop(spawn(echo_all(server)));
            tasks.push(spawn(async move {
                for round in 0..ROUNDS {
                    ask(&client, bytes(task, round, BLOCK)).await;
                }
            }));
            let file = file.clone();
            tasks.push(spawn(async move {
                for round in 0..ROUNDS {
                    let at = (task * ROUNDS + round) * BLOCK as u64;
                    if round % 8 == 7 {
                        // Dropped before it is submitted, in the ring, or completed.
                        drop(timeout(Duration::ZERO, file.read_at(vec![0; BLOCK], at)).await);
                    }
                    let (count, block) = file.read_at(vec![0; BLOCK], at).await.unwrap();
                    assert!(count == BLOCK && block == bytes(9, at, BLOCK));
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(completed() - before >= TASKS * ROUNDS);
    });
}
