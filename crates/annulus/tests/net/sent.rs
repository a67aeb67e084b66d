//! Waiting for detached sends.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::rc::Rc;

use annulus::runtime::{spawn, spawn_blocking};

use crate::bytes::{bytes, receive_all};
use crate::echo::{connection, listen};
use crate::fixtures::for_each_way;

/// More than both socket buffers hold.
const BYTES: usize = 16 << 20;

#[test]
fn a_task_that_waits_for_started_sends_may_then_end_the_direction() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        server.sent().await.unwrap();
        let serving = spawn(async move {
            server.try_send(bytes(1, 0, BYTES)).unwrap();
            server.try_send(vec![1]).expect_err("one is under way");
            server.sent().await.unwrap();
            server.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(receive_all(&client, 1).await, BYTES as u64);
        serving.await.unwrap();
    });
}

#[test]
fn a_failed_detached_send_is_reported_to_a_waiting_task() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        server.try_send(bytes(1, 0, BYTES)).unwrap();
        drop(client);
        server.sent().await.unwrap_err();
        server.send_all("more").await.unwrap_err();
    });
}

#[test]
fn a_stream_may_be_closed_with_its_last_bytes_whatever_their_number() {
    for_each_way(|_| async {
        for count in [0, 1, 100, 100_000, BYTES] {
            let (client, server) = connection().await;
            let given_back = Rc::new(Cell::new(None));
            let tell = Rc::clone(&given_back);
            let closed = server.close_with(bytes(1, 0, count), move |buf| {
                tell.set(Some(buf.len()));
            });
            assert!(closed.is_ok(), "nothing is under way");
            assert_eq!(receive_all(&client, 1).await, count as u64);
            assert_eq!(given_back.get(), Some(count));
        }
    });
}

#[test]
fn the_last_bytes_and_the_end_come_together() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let asking = std::thread::spawn(move || {
            for _ in 0..50 {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(b"ask").unwrap();
                let mut response = [0; 6];
                client.read_exact(&mut response).unwrap();
                assert_eq!(&response, b"answer");
                // The end is available together with the bytes.
                client.set_nonblocking(true).unwrap();
                assert_eq!(client.read(&mut response).unwrap(), 0);
            }
        });
        for _ in 0..50 {
            let stream = listener.accept().await.unwrap();
            let (bytes, _) = stream.recv(Vec::with_capacity(10)).await.unwrap();
            assert_eq!(bytes, 3);
            let closed = stream.close_with(&b"answer"[..], drop);
            assert!(closed.is_ok(), "nothing is under way");
        }
        spawn_blocking(move || asking.join().unwrap())
            .await
            .unwrap();
    });
}

#[test]
fn another_holder_of_the_stream_ends_it_after_the_last_bytes() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let mut writer = server.writer();
        let closed = server.close_with(&b"the last "[..], drop);
        assert!(closed.is_ok(), "nothing is under way");
        writer.write(b"but one").await.unwrap();
        writer.finish().await.unwrap();
        drop(writer);
        let mut all = Vec::new();
        while let Some(chunk) = client.recv_multishot().next().await {
            all.extend_from_slice(&chunk.unwrap());
        }
        assert_eq!(all, b"the last but one");
    });
}

#[test]
fn a_stream_is_not_closed_before_its_sends_in_progress() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        server.try_send(bytes(1, 0, BYTES)).unwrap();
        let early = server.close_with(b"early".to_vec(), |_| panic!("it was not sent"));
        let Err((server, buf)) = early else {
            panic!("one is under way");
        };
        assert_eq!(buf, b"early");
        let closing = spawn(async move {
            server.sent().await.unwrap();
            let last = server.close_with(bytes(1, BYTES as u64, 10), drop);
            assert!(last.is_ok(), "nothing is under way any more");
        });
        assert_eq!(receive_all(&client, 1).await, BYTES as u64 + 10);
        closing.await.unwrap();
    });
}
