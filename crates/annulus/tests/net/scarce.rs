//! Hardly any receive buffers: nobody starves, and nothing is lost.

use std::net::Shutdown;

use annulus::runtime::{spawn, yield_now};

use crate::bytes::{Expected, ask, bytes, receive_all};
use crate::echo::{answer, connection};
use crate::grounds::for_each_builder;

const COUNTS: [u16; 3] = [1, 2, 4];

#[test]
fn many_connections_that_all_send_share_a_few_buffers() {
    for count in COUNTS {
        for_each_builder(
            |builder| builder.receive_buffers(count, 256),
            |_| async {
                let mut readers = Vec::new();
                for seed in 0..48 {
                    let (client, server) = connection().await;
                    readers.push(spawn(async move { receive_all(&server, seed).await }));
                    drop(spawn(async move {
                        for piece in 0..100 {
                            let piece = bytes(seed, piece * 300, 300);
                            client.send_all(piece).await.unwrap();
                            yield_now().await;
                        }
                        client.shutdown(Shutdown::Write).unwrap();
                    }));
                }
                for reader in readers {
                    assert_eq!(reader.await.unwrap(), 30_000);
                }
            },
        );
    }
}

#[test]
fn those_who_keep_what_they_receive_starve_nobody() {
    for count in COUNTS {
        for_each_builder(
            |builder| builder.receive_buffers(count, 256),
            |_| async {
                let mut kept = Vec::new();
                let mut hoarders = Vec::new();
                for seed in 0..8 {
                    let (client, hoarder) = connection().await;
                    let mut count = 0;
                    for piece in 0..20 {
                        client.send_all(bytes(seed, piece * 10, 10)).await.unwrap();
                        let chunk = hoarder.recv_multishot().next().await.unwrap().unwrap();
                        // Less than was sent, where a buffer that is filled bit by bit has no more room.
                        let from = count;
                        count += chunk.len() as u64;
                        kept.push((seed, from, chunk));
                    }
                    hoarders.push((client, hoarder));
                }
                let (client, server) = connection().await;
                let serving = spawn(answer(server));
                for round in 0..200 {
                    ask(&client, bytes(round, 0, 1000)).await;
                }
                drop(client);
                serving.await.unwrap();
                // What was kept is still what was received.
                for (seed, from, chunk) in kept {
                    let mut expected = Expected::new(seed);
                    expected.count = from;
                    expected.check(&chunk);
                }
                drop(hoarders);
            },
        );
    }
}
