//! UDP and Unix datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use annulus::net::{UdpSocket, UnixDatagram};
use annulus::runtime::{Runtime, spawn};
use annulus::time::{sleep, timeout};

use crate::fixtures::{Way, for_each_way};

const ANY: &str = "127.0.0.1:0";

fn two() -> (UdpSocket, UdpSocket, SocketAddr) {
    let (one, other) = (UdpSocket::bind(ANY).unwrap(), UdpSocket::bind(ANY).unwrap());
    let address = other.local_addr().unwrap();
    (one, other, address)
}

/// Returns the size of the longest datagram that a multishot receive takes.
fn capacity(way: Way) -> usize {
    let buffer = if way.is_tiny() { 64 } else { 4096 };
    buffer - 44
}

#[test]
fn a_datagram_arrives_whole_with_the_address_of_its_sender() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        for bytes in [0, 1, 1472, 9000] {
            let sent: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
            let sent = one.send_to(sent, address).await.unwrap();
            let (received, buf) = other.recv_from(vec![0xee; 9001]).await.unwrap();
            assert_eq!(received.bytes, bytes);
            assert_eq!(received.from, one.local_addr().unwrap());
            assert!(!received.is_truncated);
            assert_eq!(buf[..bytes], sent);
        }
    });
}

#[test]
fn a_buffer_that_is_too_small_gets_the_start_and_the_result_is_truncated() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        one.send_to("0123456789", address).await.unwrap();
        let (received, buf) = other.recv_from(vec![0; 4]).await.unwrap();
        assert_eq!((received.bytes, received.is_truncated), (4, true));
        assert_eq!(buf, b"0123");
        one.send_to("whole", address).await.unwrap();
        let (received, buf) = other.recv_from(Vec::with_capacity(5)).await.unwrap();
        assert_eq!((received.bytes, received.is_truncated), (5, false));
        assert_eq!(buf, b"whole");
    });
}

#[test]
fn a_connected_socket_exchanges_datagrams_with_that_address_only() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        one.connect(address).await.unwrap();
        assert_eq!(one.peer_addr().unwrap(), address);
        one.send("question").await.unwrap();
        let (received, _) = other.recv_from(vec![0; 16]).await.unwrap();
        let third = UdpSocket::bind(ANY).unwrap();
        third.send_to("noise", received.from).await.unwrap();
        other.send_to("answer", received.from).await.unwrap();
        let (bytes, buf) = one.recv(vec![0; 16]).await.unwrap();
        assert_eq!(&buf[..bytes], b"answer");
    });
}

#[test]
fn a_datagram_to_a_closed_port_fails_a_later_call_and_the_socket_keeps_working() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        drop(other);
        one.connect(address).await.unwrap();
        // A later call reports the error of the first datagram.
        let mut refused = false;
        while !refused {
            refused = one.send("anybody?").await.is_err_and(|error| {
                let kind = std::io::Error::from(error).kind();
                assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
                true
            });
            sleep(Duration::from_millis(1)).await;
        }
        let again = UdpSocket::bind(address).unwrap();
        // A send may still fail with the error of an earlier one.
        while one.send("hello").await.is_err() {}
        let (bytes, buf) = again.recv(vec![0; 16]).await.unwrap();
        assert_eq!(&buf[..bytes], b"hello");
    });
}

#[test]
fn a_multishot_receive_returns_each_datagram_with_its_sender() {
    for_each_way(|way| async move {
        let (one, other, address) = two();
        let capacity = capacity(way);
        let sender = one.local_addr().unwrap();
        let sends = spawn(async move {
            for round in 0..200usize {
                let bytes = [0, 1, capacity / 2, capacity][round % 4];
                one.send_to(vec![round as u8; bytes], address)
                    .await
                    .unwrap();
                if round % 16 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
        let mut datagrams = other.recv_multishot();
        for round in 0..200usize {
            let datagram = datagrams.next().await.unwrap().unwrap();
            assert_eq!(datagram.from, sender);
            assert!(!datagram.is_truncated, "{round}");
            assert_eq!(
                datagram.chunk.len(),
                [0, 1, capacity / 2, capacity][round % 4]
            );
            assert!(datagram.chunk.iter().all(|&byte| byte == round as u8));
        }
        sends.await.unwrap();
    });
}

#[test]
fn a_multishot_receive_marks_a_truncated_datagram() {
    for_each_way(|way| async move {
        let (one, other, address) = two();
        let mut datagrams = other.recv_multishot();
        let capacity = capacity(way);
        for bytes in [capacity + 1, capacity, 3 * capacity] {
            one.send_to(vec![7; bytes], address).await.unwrap();
            let datagram = datagrams.next().await.unwrap().unwrap();
            assert_eq!(datagram.chunk.len(), capacity);
            assert_eq!(datagram.is_truncated, bytes > capacity);
        }
    });
}

#[test]
fn a_task_that_keeps_all_chunks_still_receives() {
    for_each_way(|way| async move {
        let (one, other, address) = two();
        let mut datagrams = other.recv_multishot();
        let mut kept = Vec::new();
        for round in 0..600u32 {
            let bytes = round.to_ne_bytes().to_vec();
            one.send_to(bytes, address).await.unwrap();
            kept.push(datagrams.next().await.unwrap().unwrap());
        }
        for (round, datagram) in (0u32..).zip(&kept) {
            assert_eq!(*datagram.chunk, round.to_ne_bytes(), "{way:?}");
        }
    });
}

#[test]
fn buffers_without_space_for_a_header_are_refused_with_a_hint() {
    for backend in [annulus::Backend::Auto, annulus::Backend::Fallback] {
        let builder = Runtime::builder().backend(backend);
        let message = builder.receive_buffers(1, 64).block_on(async {
            // 16 bytes of the header and 110 of a path.
            let (one, other) = UnixDatagram::pair().unwrap();
            one.send("hello").await.unwrap();
            // A single receive does not use the group's buffers.
            let (bytes, _) = other.recv(vec![0; 16]).await.unwrap();
            bytes
        });
        assert_eq!(message.unwrap(), 5);
    }
}

#[test]
fn a_receive_that_is_dropped_leaves_its_datagram_to_the_next() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        for round in 0..50u8 {
            let dropped = timeout(Duration::ZERO, other.recv_from(vec![0; 8])).await;
            assert!(dropped.is_err(), "there is nothing yet");
            one.send_to(vec![round], address).await.unwrap();
            if round % 2 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            let (received, buf) = other.recv_from(vec![0; 8]).await.unwrap();
            assert_eq!((received.bytes, buf[0]), (1, round));
        }
    });
}

#[test]
fn a_receive_after_a_multishot_one_gets_the_datagrams_it_has_taken() {
    for_each_way(|_| async {
        let (one, other, address) = two();
        one.send_to("first", address).await.unwrap();
        let first = other.recv_multishot().next().await;
        assert_eq!(*first.unwrap().unwrap().chunk, *b"first");
        for text in ["second", "third"] {
            one.send_to(text, address).await.unwrap();
            let (received, buf) = other.recv_from(vec![0; 4]).await.unwrap();
            assert_eq!((received.bytes, received.is_truncated), (4, true));
            assert_eq!(buf, &text.as_bytes()[..4]);
        }
    });
}

#[test]
fn a_datagram_that_is_too_long_is_refused_with_its_buffer() {
    for_each_way(|_| async {
        let (one, _other, address) = two();
        let error = one.send_to(vec![1; 70_000], address).await.unwrap_err();
        let (error, buf) = error.into_parts();
        assert_eq!(error.raw_os_error(), Some(90), "EMSGSIZE: {error}");
        assert_eq!(buf.map(|buf| buf.len()), Some(70_000));
    });
}

#[test]
fn an_address_that_is_taken_is_refused_unless_both_share_it() {
    for_each_way(|_| async {
        let (_, other, address) = two();
        let taken = UdpSocket::bind(address).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        drop(other);
        let share = |options: annulus::net::SocketOptions<'_>| options.set_reuse_port(true);
        let first = UdpSocket::bind_with(ANY, share).unwrap();
        let address = first.local_addr().unwrap();
        let second = UdpSocket::bind_with(address, share).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
    });
}

#[test]
fn unix_datagrams_have_the_path_of_their_sender() {
    for_each_way(|_| async {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        let one = UnixDatagram::bind(&here).unwrap();
        let other = UnixDatagram::bind(&there).unwrap();
        one.send_to("named", &there).await.unwrap();
        let (received, buf) = other.recv_from(vec![0; 16]).await.unwrap();
        assert_eq!(received.from.as_deref(), Some(here.as_path()));
        assert_eq!(&buf[..received.bytes], b"named");
        let nobody = UnixDatagram::unbound().unwrap();
        nobody.connect(&there).await.unwrap();
        nobody.send("unnamed").await.unwrap();
        let (received, _) = other.recv_from(vec![0; 3]).await.unwrap();
        assert_eq!(received.from, None);
        assert!(received.is_truncated);
    });
}

#[test]
fn a_unix_datagram_waits_until_its_receiver_has_space() {
    for_each_way(|_| async {
        let (one, other) = UnixDatagram::pair().unwrap();
        let sends = spawn(async move {
            for round in 0..500u32 {
                let mut datagram = vec![0; 8192];
                datagram[..4].copy_from_slice(&round.to_ne_bytes());
                one.send(datagram).await.unwrap();
            }
        });
        sleep(Duration::from_millis(5)).await;
        let mut buf = vec![0; 8192];
        for round in 0..500u32 {
            let (bytes, back) = other.recv(buf).await.unwrap();
            assert_eq!((bytes, &back[..4]), (8192, &round.to_ne_bytes()[..]));
            buf = back;
        }
        sends.await.unwrap();
    });
}

#[test]
fn datagrams_of_abstract_addresses_are_replied_to() {
    for_each_way(|way| async move {
        let name = |of: &str| format!("\0annulus/{}/{way:?}/{of}", std::process::id());
        let one = UnixDatagram::bind(name("one")).unwrap();
        let other = UnixDatagram::bind(name("other")).unwrap();
        one.send_to("question", name("other")).await.unwrap();
        let (received, buf) = other.recv_from(vec![0; 8]).await.unwrap();
        assert_eq!(buf, b"question");
        let from = received.from.unwrap();
        assert_eq!(from.to_str(), Some(&*name("one")));
        other.send_to("answer", &from).await.unwrap();
        assert_eq!(one.recv(vec![0; 6]).await.unwrap().1, b"answer");
        one.connect(name("other")).await.unwrap();
        one.send("again").await.unwrap();
        assert_eq!(other.recv(vec![0; 5]).await.unwrap().1, b"again");
    });
}
