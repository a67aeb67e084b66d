//! All modes of receive buffers: received data equals sent data, for any number and size of buffers, however long a
//! task keeps chunks, and wherever they are dropped.

use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;

use annulus::Backend;
use annulus::BackendInUse;
use annulus::buf::Chunk;
use annulus::net::TcpStream;
use annulus::runtime::{ReceiveMode, Runtime, RuntimeBuilder, spawn, yield_now};
use annulus_testing::skip::skip;

use crate::bytes::{Expected, bytes};
use crate::echo::connection;

/// A mode, the number of buffers, and their size in bytes.
const GROUPS: [(ReceiveMode, u16, u32); 6] = [
    (ReceiveMode::Whole, 2, 512),
    (ReceiveMode::Whole, 64, 2048),
    (ReceiveMode::Incremental, 1, 4096),
    (ReceiveMode::Incremental, 2, 512),
    (ReceiveMode::Incremental, 4, 100),
    (ReceiveMode::Incremental, 8, 65_536),
];
const CONNECTIONS: u64 = 32;
const BYTES: u64 = 120_000;

fn builder((mode, count, bytes): (ReceiveMode, u16, u32)) -> RuntimeBuilder {
    Runtime::builder()
        .cores(1)
        .backend(Backend::Uring)
        .receive_buffers(count, bytes)
        .receive_mode(mode)
}

/// Pseudo-random numbers of a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns a size: most are small, and some exceed all buffers together.
    fn size(&mut self) -> u64 {
        match self.below(4) {
            0 => 1 + self.below(8),
            1 | 2 => 1 + self.below(600),
            _ => 1 + self.below(20_000),
        }
    }
}

async fn send(stream: TcpStream, seed: u64) {
    let mut chance = Chance(seed);
    let mut sent = 0;
    while sent < BYTES {
        let size = chance.size().min(BYTES - sent);
        let piece = bytes(seed, sent, size as usize);
        stream.send_all(piece).await.unwrap();
        sent += size;
        if chance.below(3) == 0 {
            yield_now().await;
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Keeps some of the chunks and drops them in another order, some of them on another thread.
async fn receive(stream: TcpStream, seed: u64, elsewhere: mpsc::Sender<Chunk>) -> u64 {
    let mut expected = Expected::new(seed);
    let mut chance = Chance(!seed);
    let mut kept = Vec::new();
    let mut chunks = stream.recv_multishot();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.unwrap();
        let from = expected.count;
        expected.check(&chunk);
        match chance.below(8) {
            0 => kept.push((from, chunk)),
            1 => elsewhere.send(chunk).unwrap(),
            _ => drop(chunk),
        }
        if kept.len() > 20 {
            let (from, chunk) = kept.swap_remove(chance.below(20) as usize);
            assert_eq!(&*chunk, bytes(seed, from, chunk.len()), "kept since {from}");
        }
    }
    for (from, chunk) in kept {
        assert_eq!(&*chunk, bytes(seed, from, chunk.len()), "kept since {from}");
    }
    expected.count
}

async fn all_receive_what_was_sent(elsewhere: mpsc::Sender<Chunk>) {
    let mut receiving = Vec::new();
    for number in 1..=CONNECTIONS {
        let seed = number << 40;
        let (client, server) = connection().await;
        receiving.push(spawn(receive(server, seed, elsewhere.clone())));
        drop(spawn(send(client, seed)));
    }
    for receiving in receiving {
        assert_eq!(receiving.await.unwrap(), BYTES);
    }
}

#[test]
fn streams_arrive_whole_however_long_chunks_are_kept_and_wherever_they_are_dropped() {
    for group in GROUPS {
        let (elsewhere, given) = mpsc::channel::<Chunk>();
        let dropping = thread::spawn(move || given.iter().map(|chunk| chunk.len()).sum::<usize>());
        match builder(group).block_on(all_receive_what_was_sent(elsewhere)) {
            Ok(()) => println!("{group:?}: done"),
            Err(error) if error.allows_fallback() => skip(format_args!("{group:?}: {error}")),
            Err(error) => panic!("{group:?}: {error}"),
        }
        let dropped = dropping.join().unwrap();
        println!("{dropped} bytes were dropped on another thread");
    }
}

#[test]
fn chunks_outlive_their_core() {
    for group in GROUPS {
        let seed = 7 << 40;
        let kept = builder(group).block_on(async move {
            let (client, server) = connection().await;
            drop(spawn(send(client, seed)));
            let (mut kept, mut count) = (Vec::new(), 0);
            let mut chunks = server.recv_multishot();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.unwrap();
                count += chunk.len();
                kept.push(chunk);
            }
            assert_eq!(count as u64, BYTES);
            kept
        });
        match kept {
            Ok(kept) => {
                let mut expected = Expected::new(seed);
                kept.iter().for_each(|chunk| expected.check(chunk));
                // Dropping the last one frees the memory, on any thread.
                thread::spawn(move || drop(kept)).join().unwrap();
            }
            Err(error) if error.allows_fallback() => skip(format_args!("{group:?}: {error}")),
            Err(error) => panic!("{group:?}: {error}"),
        }
    }
}

#[test]
fn a_core_reports_its_receive_mode_or_why_it_differs_from_the_configured_one() {
    let mode = ReceiveMode::Incremental;
    let builder = Runtime::builder().cores(2).receive_mode(mode);
    let ran = builder.run(move |core| async move {
        let message = core.backend().to_string();
        match core.backend() {
            BackendInUse::Uring(rings) => {
                let receive = rings.receive.as_ref().unwrap();
                assert!(message.contains("receive buffers of"), "{message}");
                if let Some(reason) = &receive.mode_refused {
                    assert_eq!(receive.mode, ReceiveMode::Whole);
                    assert!(message.contains(reason.as_str()), "{message}");
                    skip(format_args!("{mode:?}: {reason}"));
                } else {
                    assert_eq!(receive.mode, mode);
                    assert!(message.contains("incrementally"));
                }
            }
            _ => skip(format_args!("{message}")),
        }
        println!("{message}");
        Ok(())
    });
    ran.unwrap();
}
