//! Buffers of a type that breaks the contract of its traits, and buffers without space.

use std::io::ErrorKind;

use annulus::net::{UdpSocket, UnixDatagram};
use annulus::{BufError, IoBuf};
use annulus_testing::broken_buffer::BrokenBuffer;

use crate::echo::connection;
use crate::fixtures::for_each_way;

/// Returns the buffer of a refused operation.
#[track_caller]
fn refused<T, B>(result: Result<T, BufError<B>>) -> B {
    let (error, buf) = result.err().expect("it was taken").into_parts();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    buf.expect("it was never lent")
}

#[test]
fn a_refused_broken_buffer_is_untouched_and_no_received_data_is_lost() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        for make in [BrokenBuffer::apart, BrokenBuffer::too_full] {
            client.send_all("abc").await.unwrap();
            assert!(refused(server.recv(make()).await).is_untouched());
            // The received data is now with the receiver, and would be copied.
            let chunk = server.recv_multishot().next().await.unwrap().unwrap();
            server.recv_multishot().unread(chunk);
            assert!(refused(server.recv(make()).await).is_untouched());
            assert!(refused(server.recv_exact(make()).await).is_untouched());
            let part = refused(server.recv_exact(make().subslice(500..900)).await);
            assert!(part.into_inner().is_untouched());
            assert_eq!(server.recv_exact(vec![0; 3]).await.unwrap(), b"abc");
        }
    });
}

#[test]
fn no_datagram_is_received_into_a_buffer_that_breaks_its_contract() {
    for_each_way(|_| async {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = udp.local_addr().unwrap();
        udp.connect(address).await.unwrap();
        let (one, other) = UnixDatagram::pair().unwrap();
        for make in [BrokenBuffer::apart, BrokenBuffer::too_full] {
            udp.send_to("abc", address).await.unwrap();
            assert!(refused(udp.recv_from(make()).await).is_untouched());
            assert!(refused(udp.recv(make()).await).is_untouched());
            assert_eq!(udp.recv_from(vec![0; 3]).await.unwrap().1, b"abc");
            one.send("abc").await.unwrap();
            assert!(refused(other.recv(make()).await).is_untouched());
            assert!(refused(other.recv_from(make()).await).is_untouched());
            assert_eq!(other.recv(vec![0; 3]).await.unwrap().1, b"abc");
        }
    });
}

/// A result of 0 means the end of the stream, so a receive without space for data is an error.
#[test]
fn a_stream_refuses_a_receive_into_a_buffer_without_space_before_with_and_after_data() {
    for_each_way(|_| async {
        let (client, server) = connection().await;
        refused(server.recv(Vec::new()).await);
        client.send_all("abc").await.unwrap();
        let part = refused(server.recv(vec![1, 2].subslice(1..1)).await);
        assert_eq!(part.into_inner(), [1, 2]);
        let chunk = server.recv_multishot().next().await.unwrap().unwrap();
        server.recv_multishot().unread(chunk);
        refused(server.recv(Vec::new()).await);
        assert_eq!(server.recv_exact(vec![]).await.unwrap(), b"");
        assert_eq!(server.recv(vec![0; 3]).await.unwrap().1, b"abc");
        drop(client);
        assert_eq!(server.recv(vec![0; 3]).await.unwrap().0, 0);
        refused(server.recv(Vec::new()).await);
        assert_eq!(server.recv_exact(vec![]).await.unwrap(), b"");
    });
}
