//! Bytes that are moved within the kernel.

use std::io::{Read, Write};

use annulus::net::{Descriptor, UnixStream, splice};
use annulus::runtime::spawn;

use crate::grounds::for_each_way;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
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
fn a_file_is_moved_into_a_pipe_from_where_it_is() {
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
fn bytes_that_have_been_received_already_are_not_passed_over() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        one.send_all("hello").await.unwrap();
        let mut chunks = other.recv_multishot();
        assert!(chunks.next().await.unwrap().is_ok());
        one.send_all("more").await.unwrap();
        let more = chunks.next().await.unwrap().unwrap();
        assert!(!more.is_empty());
        // A multishot receive that is armed would take what comes, too.
        let (_reader, writer) = std::io::pipe().unwrap();
        let into = Descriptor::new(writer).unwrap();
        one.send_all("last").await.unwrap();
        let spliced = splice(&other, &into, 4).await;
        match spliced {
            Ok(moved) => assert_eq!(moved, 4),
            Err(error) => assert!(error.to_string().contains("read them first"), "{error}"),
        }
    });
}
