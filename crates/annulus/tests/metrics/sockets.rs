//! Counters of the cores of a runtime, on rings and on epoll.

use std::sync::mpsc;
use std::time::Duration;

use annulus::Backend;
use annulus::OpenOptions;
use annulus::fs::CachedReads;
use annulus::metrics::{self, SourceKind, snapshot};
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{Runtime, RuntimeBuilder, engine, spawn, spawn_blocking, yield_now};
use annulus::support::{KernelVersion, Support};
use annulus::time::sleep;
use annulus_testing::skip::skip;

use crate::{alone, count, of_kind, since};

const ROUNDS: u64 = 30;

fn each_way(test: impl Fn(Backend, RuntimeBuilder)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        let builder = Runtime::builder().backend(backend).cores(1);
        match builder.clone().block_on(async {}) {
            Ok(()) => test(backend, builder),
            Err(error) => skip(format_args!("{backend:?}: {error}")),
        }
    }
}

/// Returns the two ends of a connection.
async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = spawn(async move { listener.accept().await.unwrap() });
    let client = TcpStream::connect(address).await.unwrap();
    (client, accepting.await.unwrap())
}

#[test]
fn the_socket_calls_of_a_core_are_counted_by_operation() {
    let _alone = alone();
    each_way(|backend, builder| {
        let run = builder.block_on(async move {
            let before = snapshot();
            let (client, server) = connection().await;
            let serving = spawn(async move {
                let mut chunks = server.recv_multishot();
                while let Some(Ok(chunk)) = chunks.next().await {
                    server.send_all(chunk).await.unwrap();
                }
            });
            let watch = metrics::watch();
            for round in 0..ROUNDS {
                client.send_all(round.to_le_bytes().to_vec()).await.unwrap();
                let (bytes, result) = client.recv(vec![0; 8]).await.unwrap();
                assert_eq!((bytes, result), (8, round.to_le_bytes().to_vec()));
            }
            drop(watch);
            if backend == Backend::Uring {
                // The server's receive is still in flight.
                assert!(since(&before).total().counters.in_flight > 0);
            }
            client.shutdown(std::net::Shutdown::Write).unwrap();
            serving.await.unwrap();
            since(&before)
        });
        let between = run.unwrap();
        let [core] = of_kind(&between, SourceKind::Core)[..] else {
            panic!("{between:?}");
        };
        assert_eq!(count(core, "send"), (2 * ROUNDS, 0), "{backend:?}");
        // Each message of either end, and the end of the server's stream.
        assert_eq!(count(core, "recv"), (2 * ROUNDS + 1, 0), "{backend:?}");
        assert_eq!(count(core, "accept").0, 1);
        assert_eq!(count(core, "connect").0, 1);
        assert_eq!(core.counters.failed, 0, "{core:?}");
        assert_eq!(core.counters.in_flight, 0, "{core:?}");
        let sends = core.operation("send").unwrap();
        assert!((1..=2 * ROUNDS).contains(&sends.latency.count()));
        let sums = sends.queue.sum_ns() + sends.device.sum_ns();
        assert_eq!(sums, sends.latency.sum_ns());
        assert_eq!(core.backend.contains("io_uring"), backend == Backend::Uring);
        assert!(core.counters.enters > 0);
        if backend == Backend::Uring {
            assert!(core.counters.entries >= 3 * ROUNDS);
        }
    });
}

#[test]
fn a_dropped_stream_that_is_reset_because_its_peer_takes_nothing_is_counted_once() {
    const STREAMS: u64 = 3;
    let _alone = alone();
    each_way(|backend, builder| {
        let builder = builder.close_timeout(Duration::from_millis(5));
        let counted = builder.block_on(async {
            let before = snapshot();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut peers = Vec::new();
            for _ in 0..STREAMS {
                peers.push(std::net::TcpStream::connect(address).unwrap());
                let (stream, _) = listener.accept().unwrap();
                let stream = TcpStream::from_std(stream).unwrap();
                stream.try_send(vec![7; 24 << 20]).unwrap();
            }
            for peer in &peers {
                while peer.take_error().unwrap().is_none() {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            since(&before).total().counters.close_timeouts
        });
        assert_eq!(counted.unwrap(), STREAMS, "{backend:?}");
    });
}

#[test]
fn a_receive_that_finds_no_buffer_is_counted_and_is_not_an_error() {
    let _alone = alone();
    let builder = Runtime::builder().backend(Backend::Uring).cores(1);
    let run = builder.receive_buffers(1, 64).block_on(async {
        let before = snapshot();
        let (client, server) = connection().await;
        client.send_all(vec![7; 6400]).await.unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut chunks = server.recv_multishot();
        let mut received = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            received += chunk.len();
        }
        assert_eq!(received, 6400);
        since(&before).total()
    });
    match run {
        Ok(total) => {
            assert!(total.counters.no_buffers > 0, "{total:?}");
            assert_eq!(count(&total, "recv").1, 0, "{total:?}");
        }
        Err(error) => skip(error),
    }
}

#[test]
fn a_burst_that_takes_all_buffers_does_not_keep_itself_alive() {
    const CONNECTIONS: u64 = 400;
    const BUFFERS: u16 = 128;
    let _alone = alone();
    let builder = Runtime::builder().backend(Backend::Uring).cores(1);
    let run = builder.receive_buffers(BUFFERS, 64).block_on(async {
        let mut ends = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, server) = connection().await;
            client.send_all(vec![7; 9]).await.unwrap();
            ends.push((client, server));
        }
        let before = snapshot();
        // All data is available before the receives are submitted, in as few enters as the queue allows.
        let readers: Vec<_> = (ends.into_iter())
            .map(|(client, server)| {
                spawn(async move {
                    let chunk = server.recv_multishot().next().await.unwrap().unwrap();
                    drop(client);
                    chunk.len()
                })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await.unwrap(), 9);
        }
        since(&before).total()
    });
    match run {
        Ok(total) => {
            let found_none = total.counters.no_buffers;
            assert!(found_none > 0, "{total:?}");
            // The first receives get a buffer each, and the others get one when they are armed again: since Linux 6.13,
            // which receives for about twenty at a time.
            let in_turn = Support::detect().kernel_version() >= KernelVersion::new(6, 13);
            let at_most = match in_turn {
                true => CONNECTIONS - u64::from(BUFFERS),
                false => 2 * CONNECTIONS,
            };
            assert!(
                found_none <= at_most,
                "{found_none} > {at_most}, again and again: {total:?}"
            );
        }
        Err(error) => skip(error),
    }
}

#[test]
fn the_file_operations_of_a_core_are_a_separate_source() {
    let _alone = alone();
    each_way(|backend, builder| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, vec![5; 4096]).unwrap();
        let run = builder.block_on(async move {
            let before = snapshot();
            let mut options = OpenOptions::new();
            options.read(true).cached_reads(CachedReads::Never);
            let file = engine().open_with(&options, &path).await.unwrap();
            for _ in 0..ROUNDS {
                file.read_at(vec![0; 4096], 0).await.unwrap();
            }
            (since(&before), snapshot())
        });
        let (between, now) = run.unwrap();
        let kind = match backend {
            Backend::Uring => SourceKind::CoreFiles,
            _ => SourceKind::Threads,
        };
        let [files] = of_kind(&between, kind)[..] else {
            panic!("{between:?}");
        };
        assert_eq!(count(files, "read_at"), (ROUNDS, 0));
        assert_eq!(files.counters.in_flight, 0);
        // It uses the core's ring, which is counted there.
        assert_eq!(files.counters.enters, 0);
        let mut cores = now
            .sources
            .iter()
            .filter(|one| one.kind == SourceKind::Core);
        assert!(cores.any(|core| core.owner == files.owner));
    });
}

/// Starts a job that blocks until the returned sender is dropped. The receiver signals that it runs.
fn stuck() -> (
    impl FnOnce() + Send + 'static,
    mpsc::Sender<()>,
    mpsc::Receiver<()>,
) {
    let (release, held) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let job = move || {
        sender.send(()).unwrap();
        let _ = held.recv();
    };
    (job, release, receiver)
}

#[test]
fn operations_leaked_at_the_end_of_a_runtime_are_counted_once() {
    let _alone = alone();
    for backend in [Backend::Uring, Backend::Fallback] {
        let before = snapshot();
        let (job, release, runs) = stuck();
        let builder = Runtime::builder().backend(backend).cores(1);
        let ended = builder
            .drain_timeout(Duration::from_millis(10))
            .block_on(async move {
                drop(spawn_blocking(job));
                while runs.try_recv().is_err() {
                    yield_now().await;
                }
            });
        match ended {
            Ok(()) => assert_eq!(since(&before).total().counters.leaked, 1, "{backend:?}"),
            Err(error) => skip(error),
        }
        drop(release);
    }
}
