//! Readiness of any descriptor.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use annulus::net::{Descriptor, UnixStream};
use annulus::runtime::spawn;
use annulus::time::{sleep, timeout};

use crate::dropped::polled;
use crate::fixtures::for_each_way;

#[test]
fn a_pipe_is_readable_when_something_has_been_written() {
    for_each_way(|_| async {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let watched = Descriptor::new(reader.try_clone().unwrap()).unwrap();
        let written = Rc::new(Cell::new(false));
        let waits = {
            let written = Rc::clone(&written);
            spawn(async move {
                watched.readable().await.unwrap();
                assert!(written.get(), "it was reported too early");
                watched
            })
        };
        sleep(Duration::from_millis(2)).await;
        written.set(true);
        writer.write_all(b"x").unwrap();
        let watched = waits.await.unwrap();
        // It stays readable until it is read.
        watched.readable().await.unwrap();
        reader.read_exact(&mut [0]).unwrap();
        let waited = timeout(Duration::from_millis(5), watched.readable()).await;
        assert!(waited.is_err(), "there is nothing to read");
        writer.write_all(b"y").unwrap();
        watched.readable().await.unwrap();
        reader.read_exact(&mut [0]).unwrap();
        drop(writer);
        watched.readable().await.unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "that is the end");
    });
}

#[test]
fn a_full_pipe_is_writable_when_it_has_been_read() {
    for_each_way(|_| async {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let watched = Descriptor::new(writer.try_clone().unwrap()).unwrap();
        watched.writable().await.unwrap();
        let bytes = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        writer.write_all(&vec![7; bytes]).unwrap();
        let waited = timeout(Duration::from_millis(5), watched.writable()).await;
        assert!(waited.is_err(), "it is full");
        reader.read_exact(&mut vec![0; bytes]).unwrap();
        watched.writable().await.unwrap();
    });
}

#[test]
fn a_descriptor_is_read_by_foreign_code_and_a_file_is_always_ready() {
    for_each_way(|_| async {
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(b"contents").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let watched = Descriptor::new(file).unwrap();
        watched.readable().await.unwrap();
        watched.writable().await.unwrap();
        let copy = watched.as_fd().try_clone_to_owned().unwrap();
        let mut got = String::new();
        std::fs::File::from(copy).read_to_string(&mut got).unwrap();
        assert_eq!(got, "contents");
    });
}

#[test]
fn a_stream_is_readable_without_anything_being_taken_from_it() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        other.writable().await.unwrap();
        let waited = timeout(Duration::from_millis(2), other.readable()).await;
        assert!(waited.is_err(), "there is nothing yet");
        one.send_all("hello").await.unwrap();
        other.readable().await.unwrap();
        let (bytes, buf) = other.recv(vec![0; 8]).await.unwrap();
        assert_eq!(&buf[..bytes], b"hello");
        drop(one);
        other.readable().await.unwrap();
        let (bytes, _) = other.recv(vec![0; 8]).await.unwrap();
        assert_eq!(bytes, 0, "that is the end");
    });
}

/// A dropped receive may still be under way. The stream is readable when that has received data.
#[test]
fn a_stream_with_a_dropped_receive_is_readable_when_there_is_data() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        for way in [0, 0, 1, 1, 2, 2] {
            let dropped = match way {
                0 => polled(other.recv_multishot().next(), 3).await.is_none(),
                1 => polled(other.recv(vec![0; 8]), 3).await.is_none(),
                _ => polled(other.recv_exact(vec![0; 8]), 3).await.is_none(),
            };
            assert!(dropped, "there is nothing yet");
            let waited = timeout(Duration::from_millis(2), other.readable()).await;
            assert!(waited.is_err(), "there is still nothing");
            let (sent, ready) =
                futures_lite::future::zip(one.send_all("hello"), other.readable()).await;
            sent.unwrap();
            ready.unwrap();
            assert_eq!(other.recv_exact(vec![0; 5]).await.unwrap(), b"hello");
        }
        drop(polled(other.recv_multishot().next(), 3).await);
        drop(one);
        other.readable().await.unwrap();
        let (bytes, _) = other.recv(vec![0; 8]).await.unwrap();
        assert_eq!(bytes, 0, "that is the end");
    });
}
