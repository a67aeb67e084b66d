//! Bytes that are moved within the kernel (splice).

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as BlockingStream;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use annulus::net::{Descriptor, UnixStream, splice};
use annulus::runtime::{spawn, yield_now};
use annulus::time::sleep;
use rustix::fs::{OFlags, fcntl_getfl};

use crate::echo::connection;
use crate::fixtures::for_each_way;

fn pattern(bytes: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(0, 0, bytes)
}

#[test]
fn a_stream_is_moved_through_a_pipe_to_another_stream() {
    for_each_way(|way| async move {
        let (client, inside) = UnixStream::pair().unwrap();
        let (outside, server) = UnixStream::pair().unwrap();
        let sent = pattern(if way.is_tiny() { 30_000 } else { 1_000_000 });
        let sends = {
            let sent = sent.clone();
            spawn(async move { drop(client.send_all(sent).await.unwrap()) })
        };
        let moves = spawn(async move {
            let (reader, writer) = std::io::pipe().unwrap();
            let into = Descriptor::new(writer).unwrap();
            let from = Descriptor::new(reader).unwrap();
            let mut total = 0;
            loop {
                let moved = splice(&inside, &into, 1 << 15).await.unwrap();
                if moved == 0 {
                    return total;
                }
                let mut left = moved;
                while left > 0 {
                    left -= splice(&from, &outside, left).await.unwrap();
                }
                total += moved;
            }
        });
        let mut got = Vec::new();
        let mut chunks = server.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            got.extend_from_slice(&chunk.unwrap());
        }
        sends.await.unwrap();
        assert_eq!(moves.await.unwrap(), sent.len());
        assert!(got == sent, "{way:?}");
    });
}

#[test]
fn a_file_is_moved_into_a_pipe_from_its_current_position() {
    for_each_way(|_| async {
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(b"0123456789").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let from = Descriptor::new(file).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let into = Descriptor::new(writer).unwrap();
        assert_eq!(splice(&from, &into, 4).await.unwrap(), 4);
        assert_eq!(splice(&from, &into, 100).await.unwrap(), 6);
        assert_eq!(
            splice(&from, &into, 100).await.unwrap(),
            0,
            "that is the end"
        );
        let mut got = [0; 10];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(got, *b"0123456789");
    });
}

#[test]
fn two_ends_without_a_pipe_are_refused() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        one.send_all("hello").await.unwrap();
        let error = splice(&other, &one, 5).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "EINVAL");
    });
}

#[test]
fn bytes_that_have_already_been_received_are_not_skipped() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        one.send_all("hello").await.unwrap();
        let mut chunks = other.recv_multishot();
        assert!(chunks.next().await.unwrap().is_ok());
        one.send_all("more").await.unwrap();
        let more = chunks.next().await.unwrap().unwrap();
        assert!(!more.is_empty());
        // An armed multishot receive would also take data that arrives.
        let (_reader, writer) = std::io::pipe().unwrap();
        let into = Descriptor::new(writer).unwrap();
        one.send_all("last").await.unwrap();
        let spliced = splice(&other, &into, 4).await;
        match spliced {
            Ok(moved) => assert_eq!(moved, 4),
            Err(error) => assert!(
                error.to_string().contains("read that data first"),
                "{error}"
            ),
        }
    });
}

#[test]
fn a_stream_that_sends_files_is_waited_for_both_ways() {
    for_each_way(|way| async move {
        let (client, server) = connection().await;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"file").unwrap();
        let server = Rc::new(server);
        server
            .send_file(b"", file.as_fd(), 0, 4, || {})
            .await
            .unwrap();

        // No data is available yet; a file is sent meanwhile.
        let receives = {
            let server = Rc::clone(&server);
            spawn(async move {
                let (mut reader, writer) = std::io::pipe().unwrap();
                let into = Descriptor::new(writer).unwrap();
                assert_eq!(splice(&*server, &into, 100).await.unwrap(), 5);
                let mut got = [0; 5];
                reader.read_exact(&mut got).unwrap();
                assert_eq!(got, *b"hello");
            })
        };
        for _ in 0..20 {
            sleep(Duration::from_millis(1)).await;
            let sent = server.send_file(b"", file.as_fd(), 0, 4, || {});
            assert_eq!(sent.await.unwrap(), 4);
        }
        client.send_all("hello").await.unwrap();
        receives.await.unwrap();
        assert_eq!(
            client.recv_exact(vec![0; 84]).await.unwrap(),
            b"file".repeat(21)
        );

        // More than both buffers hold, and the peer does not read yet.
        let total = if way.is_tiny() { 1 << 18 } else { 16 << 20 };
        let sends = spawn(async move {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let from = Descriptor::new(reader).unwrap();
            let mut left = total;
            while left > 0 {
                writer.write_all(&[7; 1 << 14]).unwrap();
                let mut piece = 1 << 14;
                while piece > 0 {
                    let moved = splice(&from, &*server, piece).await.unwrap();
                    (piece, left) = (piece - moved, left - moved);
                }
            }
            server.send_file(b"", file.as_fd(), 0, 4, || {}).await
        });
        sleep(Duration::from_millis(30)).await;
        let got = client.recv_exact(vec![0; total + 4]).await.unwrap();
        assert!(got[..total].iter().all(|byte| *byte == 7));
        assert_eq!(got[total..], *b"file");
        assert_eq!(sends.await.unwrap().unwrap(), 4);
    });
}

/// A blocked core is released after this time, instead of hanging the test.
const RESCUED_AFTER: Duration = Duration::from_secs(60);

/// Acts when the core signals that its other tasks have run. Returns `false` if it never did.
fn once_others_ran(
    act: impl FnOnce() + Send + 'static,
) -> (mpsc::Sender<()>, thread::JoinHandle<bool>) {
    let (sender, receiver) = mpsc::channel();
    let acting = thread::spawn(move || {
        let ran = receiver.recv_timeout(RESCUED_AFTER).is_ok();
        act();
        ran
    });
    (sender, acting)
}

#[test]
fn a_splice_from_a_descriptor_in_blocking_mode_does_not_block_the_core() {
    for_each_way(|way| async move {
        // TCP, because a Unix stream follows the flags of the splice.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut peer = std::net::TcpStream::connect(address).unwrap();
        let (blocking, _) = listener.accept().unwrap();
        let (sender, acting) = once_others_ran(move || peer.write_all(b"hello").unwrap());
        let from = Descriptor::new(blocking).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let into = Descriptor::new(writer).unwrap();
        let moving = spawn(async move { (splice(&from, &into, 100).await.unwrap(), from) });
        for _ in 0..4 {
            yield_now().await;
        }
        sender.send(()).unwrap();
        let (moved, from) = moving.await.unwrap();
        assert_eq!(moved, 5);
        let mut got = [0; 5];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(got, *b"hello");
        assert!(acting.join().unwrap(), "{way:?}: the core was blocked");
        let mode = fcntl_getfl(&from).unwrap();
        assert!(
            !mode.contains(OFlags::NONBLOCK),
            "its mode is left as it was"
        );
    });
}

#[test]
fn a_splice_into_a_descriptor_in_blocking_mode_does_not_block_the_core() {
    for_each_way(|way| async move {
        let (mut peer, mut blocking) = BlockingStream::pair().unwrap();
        // Filled completely.
        blocking.set_nonblocking(true).unwrap();
        let mut filled = 0;
        while let Ok(bytes) = blocking.write(&[7; 1 << 10]) {
            filled += bytes;
        }
        while blocking.write(&[7]).is_ok() {
            filled += 1;
        }
        blocking.set_nonblocking(false).unwrap();
        let total = filled + 5;
        let (sender, acting) = once_others_ran(move || {
            let mut all = vec![0; total];
            peer.read_exact(&mut all).unwrap();
            assert_eq!(all[filled..], *b"hello");
        });
        let into = Descriptor::new(blocking).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"hello").unwrap();
        let from = Descriptor::new(reader).unwrap();
        let moving = spawn(async move {
            let mut left = 5;
            while left > 0 {
                left -= splice(&from, &into, left).await.unwrap();
            }
        });
        for _ in 0..4 {
            yield_now().await;
        }
        sender.send(()).unwrap();
        moving.await.unwrap();
        let ran = annulus::runtime::spawn_blocking(move || acting.join().unwrap());
        assert!(ran.await.unwrap(), "{way:?}: the core was blocked");
    });
}
