//! A task that reads slowly, or not at all, stops its own stream and no other.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::Poll;

use annulus::net::TcpStream;
use annulus::runtime::{JoinHandle, spawn, yield_now};

use crate::bytes::{Expected, ask, bytes};
use crate::echo::{connection, echo_all};
use crate::fixtures::{Way, for_each_way};

/// The size of one send.
const PIECE_BYTES: usize = 64 << 10;
/// The maximum number of bytes in both socket buffers and the library's before a sender waits.
const ON_THE_WAY_MAX: u64 = 24 << 20;

fn total(way: Way) -> u64 {
    if way.is_tiny() { 32 << 20 } else { 64 << 20 }
}

/// Sends `total` bytes, and counts those that have been accepted.
fn send(stream: TcpStream, total: u64, sent: Rc<Cell<u64>>) -> JoinHandle<()> {
    spawn(async move {
        while sent.get() < total {
            let piece = bytes(9, sent.get(), PIECE_BYTES);
            stream.send_all(piece).await.unwrap();
            sent.set(sent.get() + PIECE_BYTES as u64);
        }
        stream.shutdown(Shutdown::Write).unwrap();
    })
}

/// Waits until the sender has stopped: other connections still get responses, and the sender makes
/// no progress.
async fn until_stuck(sent: &Cell<u64>, witness: &TcpStream) {
    let mut before = u64::MAX;
    while before != sent.get() {
        before = sent.get();
        for seed in 0..100 {
            ask(witness, bytes(seed, 0, 50)).await;
        }
    }
}

#[test]
fn a_reader_that_waits_stops_its_own_sender_and_no_other() {
    for_each_way(|way| async move {
        let total = total(way);
        let (witness, other) = connection().await;
        drop(spawn(echo_all(other)));
        let (reader, writer) = connection().await;
        let sent = Rc::new(Cell::new(0));
        let sending = send(writer, total, Rc::clone(&sent));
        // The reader receives a little, so that its receive is armed, and then stops.
        let mut chunks = reader.recv_multishot();
        let mut expected = Expected::new(9);
        expected.check(&chunks.next().await.unwrap().unwrap());
        until_stuck(&sent, &witness).await;
        assert!(sent.get() < ON_THE_WAY_MAX, "{} were taken", sent.get());
        while let Some(chunk) = chunks.next().await {
            expected.check(&chunk.unwrap());
            if expected.count % 1_000_000 < 64 {
                ask(&witness, bytes(1, 0, 50)).await;
            }
        }
        assert_eq!(expected.count, total);
        sending.await.unwrap();
    });
}

#[test]
fn an_echo_that_is_not_read_takes_no_more_from_its_client() {
    for_each_way(|way| async move {
        let total = total(way);
        let (witness, other) = connection().await;
        drop(spawn(echo_all(other)));
        let (client, server) = connection().await;
        let serving = spawn(echo_all(server));
        let client = Rc::new(client);
        let sent = Rc::new(Cell::new(0));
        let (sends, counts) = (Rc::clone(&client), Rc::clone(&sent));
        let sending = spawn(async move {
            while counts.get() < total {
                sends
                    .send_all(bytes(9, counts.get(), PIECE_BYTES))
                    .await
                    .unwrap();
                counts.set(counts.get() + PIECE_BYTES as u64);
            }
            sends.shutdown(Shutdown::Write).unwrap();
        });
        until_stuck(&sent, &witness).await;
        assert!(sent.get() < 2 * ON_THE_WAY_MAX, "{} were taken", sent.get());
        let mut expected = Expected::new(9);
        let mut chunks = client.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            expected.check(&chunk.unwrap());
        }
        assert_eq!(expected.count, total);
        sending.await.unwrap();
        serving.await.unwrap();
    });
}

/// The socket stops receiving while receives are armed, and the task has many pieces to take.
#[test]
fn a_task_that_always_has_data_lets_other_tasks_run() {
    for_each_way(|way| async move {
        let (witness, other) = connection().await;
        drop(spawn(echo_all(other)));
        let (reader, writer) = connection().await;
        let sent = Rc::new(Cell::new(0));
        let sending = send(writer, total(way) / 4, sent);
        let other_polls = Rc::new(Cell::new(0));
        let counts = Rc::clone(&other_polls);
        let ticking = spawn(async move {
            loop {
                counts.set(counts.get() + 1);
                yield_now().await;
            }
        });
        let mut chunks = reader.recv_multishot();
        let mut expected = Expected::new(9);
        let mut in_a_row = 0;
        let mut last = 0;
        poll_fn(|context| {
            while let Poll::Ready(chunk) = chunks.poll_next(context) {
                let Some(chunk) = chunk else {
                    return Poll::Ready(());
                };
                expected.check(&chunk.unwrap());
                in_a_row = if last == other_polls.get() {
                    in_a_row + 1
                } else {
                    0
                };
                last = other_polls.get();
                assert!(in_a_row < 1000, "nobody else had a turn");
            }
            Poll::Pending
        })
        .await;
        assert_eq!(expected.count, total(way) / 4);
        ask(&witness, bytes(1, 0, 50)).await;
        sending.await.unwrap();
        ticking.abort();
    });
}
