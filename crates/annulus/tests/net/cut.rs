//! Messages that cannot be sent completely. A started send goes on for the grace period, or while the peer of a dropped
//! stream takes data. After that the stream ends in a reset, so that no peer takes a part of a message for all of it.

use std::future::{Future, pending};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream as Peer;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use annulus::net::{Descriptor, TcpStream, splice};
use annulus::runtime::{RuntimeBuilder, spawn, yield_now};
use annulus::time::sleep;
use annulus_testing::skip::skip;

use crate::fixtures::{BACKENDS, PATIENCE, Way, for_each_way};
use crate::kernel::all_gone;

/// More than both socket buffers hold.
const BYTES: usize = 24 << 20;

/// The ways to start a send of `BYTES` bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Begins {
    TrySend,
    /// The stream is closed after it.
    CloseWith,
    Awaited,
    DroppedSend,
    Vectored,
    ZeroCopy,
    Writer,
    /// On a half whose end tells the peer that nothing follows.
    WriteHalf,
    HalfWriter,
    /// In a task that is dropped at the end of the runtime.
    File,
    Spliced,
}

use Begins::*;

/// The ways whose sends go on without a future.
const GO_ON: [Begins; 9] = [
    TrySend,
    CloseWith,
    Awaited,
    DroppedSend,
    Vectored,
    ZeroCopy,
    Writer,
    WriteHalf,
    HalfWriter,
];

impl Begins {
    /// Starts the send, and drops the stream.
    async fn begin(self, stream: TcpStream) {
        let message = vec![7; BYTES];
        match self {
            TrySend => stream.try_send(message).unwrap(),
            CloseWith => assert!(stream.close_with(message, drop).is_ok()),
            Awaited => drop(spawn(async move { drop(stream.send_all(message).await) })),
            DroppedSend => {
                begun_and_dropped(stream.send_all(message)).await;
            }
            Vectored => {
                let halves = vec![message[..BYTES / 2].to_vec(), message[BYTES / 2..].to_vec()];
                begun_and_dropped(stream.send_vectored_all(halves)).await;
            }
            ZeroCopy => begun_and_dropped(stream.send_zc(message)).await,
            Writer => {
                let mut writer = stream.writer().with_limit(2 * BYTES);
                writer.write(&message[..100]).await.unwrap();
                writer.write_buf(message[100..].to_vec()).await.unwrap();
            }
            WriteHalf => {
                let (_, half) = stream.into_split();
                begun_and_dropped(half.send_all(message)).await;
            }
            HalfWriter => {
                let (_, half) = stream.into_split();
                let mut writer = half.into_writer().with_limit(2 * BYTES);
                writer.write_buf(message).await.unwrap();
            }
            File => drop(spawn(async move {
                let file = tempfile::tempfile().unwrap();
                file.set_len(BYTES as u64).unwrap();
                let sent = stream.send_file(b"head", file.as_fd(), 0, BYTES as u64, || {});
                drop(sent.await);
            })),
            Spliced => drop(spawn(async move {
                let (reader, mut writer) = io::pipe().unwrap();
                // At most as much as the pipe holds.
                let piece = 16 << 10;
                let from = Descriptor::new(reader).unwrap();
                loop {
                    writer.write_all(&vec![7; piece]).unwrap();
                    let mut left = piece;
                    while left > 0 {
                        match splice(&from, &stream, left).await {
                            Ok(moved) => left -= moved,
                            Err(_) => return,
                        }
                    }
                }
            })),
        }
    }
}

/// Polls a future once, then lets the core poll, and drops the future.
async fn begun_and_dropped(future: impl Future) {
    let _ = annulus::time::timeout(Duration::ZERO, future).await;
    yield_now().await;
}

/// Reads up to the end. Returns the number of bytes, and the result.
fn read_all(peer: &mut Peer) -> (usize, io::Result<()>) {
    let mut buf = vec![0; 1 << 16];
    let mut total = 0;
    loop {
        match peer.read(&mut buf) {
            Ok(0) => return (total, Ok(())),
            Ok(bytes) => total += bytes,
            Err(error) => return (total, Err(error)),
        }
    }
}

/// Returns a connection of the calling core, and its peer.
fn connection() -> (TcpStream, Peer) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (TcpStream::from_std(stream).unwrap(), peer)
}

/// Waits until the first bytes have arrived.
async fn until_begun(peer: &Peer) {
    peer.set_nonblocking(true).unwrap();
    while peer.peek(&mut [0]).is_err() {
        yield_now().await;
    }
    peer.set_nonblocking(false).unwrap();
}

/// Runs `test` with a builder for each backend.
fn each_builder(test: impl Fn(Way, RuntimeBuilder)) {
    for way in BACKENDS {
        match way.builder().block_on(async {}) {
            Ok(()) => test(way, way.builder()),
            Err(error) => skip(format_args!("{way:?}: {error}")),
        }
    }
}

#[test]
fn sends_in_progress_complete_within_the_grace_period_and_the_end_follows() {
    each_builder(|way, builder| {
        for begins in GO_ON {
            let (tell, receiver) = mpsc::channel::<Peer>();
            let reading = thread::spawn(move || read_all(&mut receiver.recv().unwrap()));
            let ended = builder.clone().grace(PATIENCE).block_on(async move {
                let (stream, peer) = connection();
                begins.begin(stream).await;
                until_begun(&peer).await;
                // Nothing is read before the main future has completed.
                tell.send(peer).unwrap();
            });
            ended.unwrap();
            let (bytes, end) = reading.join().unwrap();
            assert_eq!(
                (bytes, end.is_ok()),
                (BYTES, true),
                "{way:?}, {begins:?}: {end:?}"
            );
        }
    });
}

#[test]
fn sends_that_exceed_the_grace_period_end_in_a_reset() {
    each_builder(|way, builder| {
        for begins in GO_ON.into_iter().chain([File]) {
            let ended = builder.clone().block_on(async move {
                let (stream, peer) = connection();
                begins.begin(stream).await;
                until_begun(&peer).await;
                peer
            });
            let (bytes, end) = read_all(&mut ended.unwrap());
            assert!((1..BYTES).contains(&bytes), "{way:?}, {begins:?}: {bytes}");
            let error = end.expect_err(&format!("{way:?}, {begins:?}: an end after {bytes} bytes"));
            assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "{way:?}, {begins:?}"
            );
        }
    });
}

/// Some of the data has been sent by then. On a ring, a splice that waits for space may have moved a part.
#[test]
fn a_runtime_that_ends_in_a_splice_into_a_stream_ends() {
    each_builder(|way, builder| {
        let ended = builder.block_on(async move {
            let (stream, peer) = connection();
            Spliced.begin(stream).await;
            until_begun(&peer).await;
            peer
        });
        let (bytes, end) = read_all(&mut ended.unwrap());
        assert!(bytes > 0, "{way:?}: {end:?}");
    });
}

#[test]
fn data_in_the_kernel_when_the_runtime_ends_arrives_completely() {
    each_builder(|way, builder| {
        for begins in ["try_send", "close_with", "send_all"] {
            let ended = builder.clone().block_on(async move {
                let (stream, peer) = connection();
                match begins {
                    "try_send" => stream.try_send("all of it").unwrap(),
                    "close_with" => assert!(stream.close_with("all of it", drop).is_ok()),
                    _ => drop(stream.send_all("all of it").await.unwrap()),
                }
                peer
            });
            let (bytes, end) = read_all(&mut ended.unwrap());
            assert_eq!(
                (bytes, end.is_ok()),
                (9, true),
                "{way:?}, {begins}: {end:?}"
            );
        }
    });
}

#[test]
fn a_dropped_stream_whose_peer_takes_nothing_is_reset_and_its_descriptor_closed() {
    each_builder(|way, builder| {
        for begins in GO_ON {
            let builder = builder.clone().close_timeout(Duration::from_millis(5));
            let ended = builder.block_on(async move {
                let (stream, peer) = connection();
                let port = peer.local_addr().unwrap().port();
                match begins {
                    // The stream belongs to its task.
                    Awaited => return,
                    _ => begins.begin(stream).await,
                }
                let error = loop {
                    if let Some(error) = peer.take_error().unwrap() {
                        break error;
                    }
                    sleep(Duration::from_millis(1)).await;
                };
                assert_eq!(
                    error.kind(),
                    ErrorKind::ConnectionReset,
                    "{way:?}, {begins:?}"
                );
                drop(peer);
                crate::kernel::all_but(0, port).await;
            });
            ended.unwrap();
        }
    });
}

#[test]
fn a_stream_in_use_is_not_reset_however_long_its_peer_takes_nothing() {
    each_builder(|way, builder| {
        let builder = builder.close_timeout(Duration::from_millis(1));
        let ended = builder.grace(PATIENCE).block_on(async move {
            let (kept, peer) = connection();
            kept.try_send(vec![7; BYTES]).unwrap();
            let (dropped, stuck) = connection();
            dropped.try_send(vec![7; BYTES]).unwrap();
            drop(dropped);
            // The close timeout of another stream has passed.
            while stuck.take_error().unwrap().is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            let mut peer = peer;
            let reading = thread::spawn(move || read_all(&mut peer));
            kept.sent().await.unwrap();
            drop(kept);
            reading
        });
        let (bytes, end) = ended.unwrap().join().unwrap();
        assert_eq!((bytes, end.is_ok()), (BYTES, true), "{way:?}: {end:?}");
    });
}

#[test]
fn a_stream_can_have_its_own_close_timeout() {
    for_each_way(|way| async move {
        let (stream, peer) = connection();
        stream.set_close_timeout(Duration::from_millis(5));
        stream.try_send(vec![7; BYTES]).unwrap();
        drop(stream);
        let (patient, waits) = connection();
        patient.set_close_timeout(Duration::MAX);
        patient.try_send(vec![7; BYTES]).unwrap();
        drop(patient);
        while peer.take_error().unwrap().is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        let port = peer.local_addr().unwrap().port();
        drop(peer);
        crate::kernel::all_but(0, port).await;
        assert!(waits.take_error().unwrap().is_none(), "{way:?}");
        let reading = annulus::runtime::spawn_blocking(move || {
            let mut waits = waits;
            read_all(&mut waits)
        });
        let (bytes, end) = reading.await.unwrap();
        assert_eq!((bytes, end.is_ok()), (BYTES, true), "{way:?}: {end:?}");
    });
}

#[test]
fn a_file_that_is_cut_off_by_a_drop_ends_in_a_reset() {
    for_each_way(|way| async move {
        let (stream, mut peer) = connection();
        let port = peer.local_addr().unwrap().port();
        let sending = spawn(async move {
            let file = tempfile::tempfile().unwrap();
            file.set_len(BYTES as u64).unwrap();
            let sent = stream.send_file(b"", file.as_fd(), 0, BYTES as u64, || {});
            drop(sent.await);
            pending::<()>().await;
        });
        until_begun(&peer).await;
        sending.abort();
        let read = annulus::runtime::spawn_blocking(move || read_all(&mut peer));
        let (bytes, end) = read.await.unwrap();
        let error = end.expect_err(&format!("{way:?}: an end after {bytes} bytes"));
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{way:?}");
        all_gone(port);
    });
}
