//! Very few receive buffers: no task starves, and nothing is lost.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::Pin;
use std::time::Duration;

use annulus::net::{RecvStream, UnixStream};
use annulus::runtime::{spawn, yield_now};
use annulus::time::sleep;

use crate::bytes::{Expected, ask, bytes, receive_all};
use crate::echo::{connection, echo_all};
use crate::fixtures::for_each_builder;

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

/// The way in which a stream ends.
#[derive(Clone, Copy, Debug)]
enum EndOf {
    Unix,
    Tcp,
    TcpReset,
}

#[test]
fn data_that_arrives_with_the_end_is_received_although_no_buffer_was_free() {
    for end in [EndOf::Unix, EndOf::Tcp, EndOf::TcpReset] {
        for count in COUNTS {
            for_each_builder(
                |builder| builder.receive_buffers(count, 256),
                move |_| async move {
                    let mut streams = Vec::new();
                    for _ in 0..40 {
                        streams.push(ended_stream(end).await);
                    }
                    // All data is available before all tasks submit their receives, in one enter.
                    sleep(Duration::from_millis(5)).await;
                    let readers: Vec<_> = streams.into_iter().map(spawn).collect();
                    for reader in readers {
                        reader.await.unwrap();
                    }
                },
            );
        }
    }
}

/// Reads a stream on which nine bytes and the end have arrived.
async fn ended_stream(end: EndOf) -> Pin<Box<dyn Future<Output = ()>>> {
    if let EndOf::Unix = end {
        let (client, server) = UnixStream::pair().unwrap();
        client.send_all(vec![7; 9]).await.unwrap();
        drop(client);
        return Box::pin(async move { nine_bytes(server.recv_multishot(), end).await });
    }
    let (client, server) = connection().await;
    client.send_all(vec![7; 9]).await.unwrap();
    if let EndOf::TcpReset = end {
        client.set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(client);
    Box::pin(async move { nine_bytes(server.recv_multishot(), end).await })
}

async fn nine_bytes(mut chunks: RecvStream<'_>, end: EndOf) {
    let mut count = 0;
    // An incrementally filled buffer may not have had enough space for all bytes.
    let after = loop {
        match chunks.next().await {
            Some(Ok(chunk)) => count += chunk.len(),
            Some(Err(error)) => break Some(error.kind()),
            None => break None,
        }
    };
    assert_eq!(count, 9);
    let reset = matches!(end, EndOf::TcpReset).then_some(ErrorKind::ConnectionReset);
    assert_eq!(after, reset);
}

#[test]
fn tasks_that_keep_chunks_starve_no_other() {
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
                        // Less than was sent, if an incrementally filled buffer has no more space.
                        let from = count;
                        count += chunk.len() as u64;
                        kept.push((seed, from, chunk));
                    }
                    hoarders.push((client, hoarder));
                }
                let (client, server) = connection().await;
                let serving = spawn(echo_all(server));
                for round in 0..200 {
                    ask(&client, bytes(round, 0, 1000)).await;
                }
                drop(client);
                serving.await.unwrap();
                // Kept chunks still have the received data.
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
