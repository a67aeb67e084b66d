//! `Bytes` and `BytesMut` as buffers of sockets. A receive appends to a `BytesMut`; a send takes the contents of both.

use std::io::ErrorKind;

use annulus::IoBuf;
use annulus::net::{UdpSocket, UnixDatagram, UnixStream};
use annulus::runtime::yield_now;
use bytes::{Bytes, BytesMut};

use crate::dropped::polled;
use crate::echo::connection;
use crate::fixtures::for_each_way;

/// Returns `head` with exactly `spare` bytes of spare capacity.
fn with_spare(head: &[u8], spare: usize) -> BytesMut {
    let mut buf = BytesMut::with_capacity(head.len() + spare);
    buf.extend_from_slice(head);
    assert_eq!(buf.capacity(), head.len() + spare);
    buf
}

#[test]
fn a_receive_appends_and_a_send_takes_the_contents() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        let shared = Bytes::from_static(b"0123456789");
        client.send_all(shared.slice(2..8)).await.unwrap();
        let (n, buf) = server.recv(with_spare(b"head", 4)).await.unwrap();
        assert_eq!((n, &buf[..]), (4, &b"head2345"[..]));
        let buf = server.recv_exact(with_spare(b"", 2)).await.unwrap();
        assert_eq!(buf, b"67"[..]);
        let part = client.send_all(shared.clone().subslice(8..)).await.unwrap();
        assert_eq!(part.into_inner(), shared);
        let back = client.send_all(with_spare(b"mut", 100)).await.unwrap();
        assert_eq!(back, b"mut"[..]);
        let parts = vec![shared.slice(..1), Bytes::new(), shared.slice(9..)];
        client.send_vectored_all(parts).await.unwrap();
        let buf = server.recv_exact(with_spare(b"ab", 7)).await.unwrap();
        assert_eq!(buf, b"ab89mut09"[..]);
    });
}

#[test]
fn bytes_that_are_buffered_are_appended() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        client.send_all("abcdef").await.unwrap();
        let chunk = server.recv_multishot().next().await.unwrap().unwrap();
        server.recv_multishot().unread(chunk);
        let (n, buf) = server.recv(with_spare(b"x", 2)).await.unwrap();
        assert_eq!((n, &buf[..]), (2, &b"xab"[..]));
        let buf = server.recv_exact(with_spare(b"yz", 4)).await.unwrap();
        assert_eq!(buf, b"yzcdef"[..]);
    });
}

#[test]
fn a_buffer_without_spare_capacity_is_refused() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        client.send_all("abc").await.unwrap();
        let (error, buf) = server
            .recv(with_spare(b"full", 0))
            .await
            .unwrap_err()
            .into_parts();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(buf.unwrap(), b"full"[..]);
        let buf = server.recv_exact(with_spare(b"full", 0)).await.unwrap();
        assert_eq!(buf, b"full"[..]);
        assert_eq!(server.recv_exact(vec![0; 3]).await.unwrap(), b"abc");
    });
}

#[test]
fn a_receive_that_is_dropped_keeps_what_was_appended_and_nothing_before_it() {
    for_each_way(|_| async {
        for polls in 1..6 {
            let (one, other) = UnixStream::pair().unwrap();
            let received = polled(other.recv(with_spare(b"head", 3)), polls).await;
            assert!(received.is_none());
            one.send_all("abcdef").await.unwrap();
            let received = polled(other.recv(with_spare(b"head", 3)), polls).await;
            let mut all =
                received.map_or_else(BytesMut::new, |result| result.unwrap().1.split_off(4));
            yield_now().await;
            let rest = 6 - all.len();
            all.unsplit(other.recv_exact(with_spare(b"", rest)).await.unwrap());
            assert_eq!(all, b"abcdef"[..], "{polls} polls");
        }
    });
}

#[test]
fn datagrams_are_appended() {
    for_each_way(|_| async {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = udp.local_addr().unwrap();
        udp.send_to(Bytes::from_static(b"abc"), address)
            .await
            .unwrap();
        let (info, buf) = udp.recv_from(with_spare(b"head", 10)).await.unwrap();
        assert_eq!((info.bytes, &buf[..]), (3, &b"headabc"[..]));
        let (one, other) = UnixDatagram::pair().unwrap();
        one.send(with_spare(b"xyz", 5)).await.unwrap();
        let (n, buf) = other.recv(with_spare(b"head", 2)).await.unwrap();
        assert_eq!((n, &buf[..]), (2, &b"headxy"[..]));
    });
}
