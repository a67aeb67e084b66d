//! The ends of connections: of one direction, by a reset, by the death of the peer.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream, UnixStream};
use annulus::runtime::{spawn, yield_now};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::bytes::{Expected, ask, bytes, receive_all};
use crate::dropped::polled;
use crate::echo::{connection, listen, serve};
use crate::fixtures::for_each_way;
use crate::kernel::{all_but, close_wait};

#[test]
fn a_client_that_has_ended_its_direction_still_receives_the_whole_response() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let serving = spawn(async move {
            assert_eq!(receive_all(&server, 1).await, 100_000);
            server.send_all(bytes(2, 0, 100_000)).await.unwrap();
        });
        client.send_all(bytes(1, 0, 100_000)).await.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receive_all(&client, 2).await, 100_000);
        serving.await.unwrap();
    });
}

#[test]
fn a_server_that_has_ended_its_direction_still_receives_from_the_client() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let serving = spawn(async move {
            server.send_all(bytes(2, 0, 5000)).await.unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(receive_all(&server, 1).await, 100_000);
        });
        assert_eq!(receive_all(&client, 2).await, 5000);
        client.send_all(bytes(1, 0, 100_000)).await.unwrap();
        drop(client);
        serving.await.unwrap();
    });
}

/// Returns a connection whose other end is std's, so that calls on it take effect immediately.
async fn with_std(listener: &TcpListener) -> (std::net::TcpStream, TcpStream) {
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().await.unwrap())
}

/// With epoll one event reports both: the task that takes the data must not miss the end.
#[test]
fn an_end_that_comes_together_with_the_last_data_is_reported() {
    for_each_way(|_| async {
        let (listener, _) = listen();
        for seed in 0..20 {
            let (mut client, server) = with_std(&listener).await;
            let serving = spawn(async move { receive_all(&server, seed).await });
            // The task waits by now.
            yield_now().await;
            yield_now().await;
            client.write_all(&bytes(seed, 0, 10)).unwrap();
            drop(client);
            assert_eq!(serving.await.unwrap(), 10);
        }
    });
}

/// Closes the stream with a reset.
async fn reset(client: std::net::TcpStream) {
    let client = TcpStream::from_std(client).unwrap();
    client.set_linger(Some(Duration::ZERO)).unwrap();
}

#[test]
fn a_reset_is_reported_once_after_the_data_before_it_and_then_the_end() {
    for_each_way(|_| async {
        let (listener, _) = listen();
        for seed in 0..20 {
            let (mut client, server) = with_std(&listener).await;
            let serving = spawn(async move {
                let mut expected = Expected::new(seed);
                let mut chunks = server.recv_multishot();
                let error = loop {
                    match chunks.next().await {
                        Some(Ok(chunk)) => expected.check(&chunk),
                        Some(Err(error)) => break error,
                        None => panic!("a reset is no end"),
                    }
                };
                assert!(chunks.next().await.is_none(), "it is reported once");
                assert!(server.send_all(vec![1]).await.is_err());
                error
            });
            yield_now().await;
            yield_now().await;
            client.write_all(&bytes(seed, 0, 10)).unwrap();
            reset(client).await;
            let error = serving.await.unwrap();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{error}");
        }
    });
}

/// The connection belongs to a child when it is killed: a part of a request has arrived, and nothing follows.
#[test]
fn a_client_that_is_killed_in_mid_request_disturbs_no_other() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let serving = spawn(serve(listener));
        let witness = TcpStream::connect(address).await.unwrap();
        for seed in 0..5 {
            let mut client = std::net::TcpStream::connect(address).unwrap();
            client.write_all(&bytes(seed, 0, 100)).unwrap();
            let mut child = Command::new("sleep")
                .arg("600")
                .stdin(Stdio::from(OwnedFd::from(client)))
                .spawn()
                .unwrap();
            ask(&witness, bytes(seed, 0, 100)).await;
            child.kill().unwrap();
            child.wait().unwrap();
            ask(&witness, bytes(seed, 0, 100)).await;
        }
        // The listener, and both ends of the witness connection.
        all_but(3, address.port()).await;
        serving.abort();
    });
}

#[test]
fn thousands_of_resets_disturb_no_other_and_leave_nothing() {
    for_each_way(|_| async {
        let (listener, address) = listen();
        let serving = spawn(serve(listener));
        let witness = TcpStream::connect(address).await.unwrap();
        for round in 0..20 {
            for number in 0..100 {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                // Some without a request, some with a response in progress.
                if number % 3 > 0 {
                    client.write_all(&bytes(number, 0, 1000)).unwrap();
                }
                if number % 3 > 1 {
                    yield_now().await;
                }
                reset(client).await;
            }
            ask(&witness, bytes(round, 0, 100)).await;
        }
        all_but(3, address.port()).await;
        assert_eq!(close_wait(address.port()), 0);
        serving.abort();
    });
}

/// Receives `bytes` in one of the three ways.
async fn receive_by(way: u32, stream: &TcpStream, bytes: usize) -> Vec<u8> {
    match way {
        0 => stream.recv_exact(vec![0; bytes]).await.unwrap(),
        1 => {
            let mut got = Vec::new();
            while got.len() < bytes {
                let chunk = stream.recv_multishot().next().await.unwrap().unwrap();
                got.extend_from_slice(&chunk);
            }
            got
        }
        _ => {
            let mut got = Vec::new();
            while got.len() < bytes {
                let (more, buf) = stream.recv(vec![0; bytes]).await.unwrap();
                got.extend_from_slice(&buf[..more]);
            }
            got
        }
    }
}

/// A receive stops at urgent data. With epoll one event reports what is before and behind it.
#[test]
fn data_behind_urgent_data_is_received() {
    for_each_way(|_| async {
        let (listener, _) = listen();
        for way in 0..6 {
            let (mut client, server) = with_std(&listener).await;
            client.set_nodelay(true).unwrap();
            for _ in 0..3 {
                let mut receive = Box::pin(receive_by(way % 3, &server, 10));
                assert!(polled(receive.as_mut(), 3).await.is_none());
                client.write_all(b"first").unwrap();
                rustix::net::send(&client, b"!", SendFlags::OOB).unwrap();
                client.write_all(b"later").unwrap();
                assert_eq!(receive.await, b"firstlater");
            }
        }
    });
}

/// A receive on a Unix stream stops behind a message with descriptors.
#[test]
fn data_behind_a_message_with_descriptors_is_received() {
    for_each_way(|_| async {
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let far = UnixStream::from_std(far).unwrap();
        for _ in 0..3 {
            let mut receive = Box::pin(far.recv_exact(vec![0; 10]));
            assert!(polled(receive.as_mut(), 3).await.is_none());
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = [near.as_fd()];
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let first = [IoSlice::new(b"first")];
            sendmsg(&near, &first, &mut control, SendFlags::empty()).unwrap();
            near.write_all(b"later").unwrap();
            assert_eq!(receive.await.unwrap(), b"firstlater");
        }
    });
}
