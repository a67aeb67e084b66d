//! Socket options.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use annulus_testing::skip;

use crate::fixtures::for_each_way;

#[test]
fn options_set_on_a_stream_are_read_back() {
    for_each_way(|_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let options = stream.options();
        for on in [true, false] {
            options.set_nodelay(on).unwrap();
            assert_eq!(options.nodelay().unwrap(), on);
            assert_eq!(stream.nodelay().unwrap(), on);
            options.set_keepalive(on).unwrap();
            assert_eq!(options.keepalive().unwrap(), on);
        }
        let idle = Duration::from_secs(77);
        options.set_keepalive_idle(idle).unwrap();
        options.set_keepalive_interval(2 * idle).unwrap();
        options.set_keepalive_count(5).unwrap();
        assert_eq!(options.keepalive_idle().unwrap(), idle);
        assert_eq!(options.keepalive_interval().unwrap(), 2 * idle);
        assert_eq!(options.keepalive_count().unwrap(), 5);
        options.set_linger(Some(Duration::from_secs(3))).unwrap();
        assert_eq!(options.linger().unwrap(), Some(Duration::from_secs(3)));
        options.set_linger(None).unwrap();
        assert_eq!(options.linger().unwrap(), None);
        options.set_ttl(33).unwrap();
        assert_eq!(options.ttl().unwrap(), 33);
        for bytes in [8192, 65_536] {
            options.set_send_buffer_bytes(bytes).unwrap();
            options.set_receive_buffer_bytes(bytes).unwrap();
            assert!(options.send_buffer_bytes().unwrap() >= bytes);
            assert!(options.receive_buffer_bytes().unwrap() >= bytes);
        }
        assert!(listener.options().reuse_address().unwrap());
        // Because the runtime has one core.
        assert!(!listener.options().reuse_port().unwrap());
        assert!(options.take_error().unwrap().is_none());
    });
}

#[test]
fn an_option_that_a_kind_of_socket_does_not_have_is_refused() {
    for_each_way(|_| async {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(one.options().set_nodelay(true).is_err());
        assert!(one.options().set_ttl(3).is_err());
    });
}

#[test]
fn options_set_on_a_datagram_socket_are_read_back() {
    for_each_way(|_| async {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = socket.options();
        for on in [true, false] {
            options.set_broadcast(on).unwrap();
            assert_eq!(options.broadcast().unwrap(), on);
            options.set_multicast_loop(on).unwrap();
            assert_eq!(options.multicast_loop().unwrap(), on);
        }
        options.set_multicast_ttl(9).unwrap();
        assert_eq!(options.multicast_ttl().unwrap(), 9);
    });
}

#[test]
fn multicast_datagrams_are_received_until_the_group_is_left() {
    for_each_way(|_| async {
        let (group, here) = (Ipv4Addr::new(239, 255, 77, 3), Ipv4Addr::LOCALHOST);
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        one.options().set_multicast_interface(here).unwrap();
        let other = UdpSocket::bind((group, 0)).unwrap();
        let address = other.local_addr().unwrap();
        other.options().join_multicast(group, here).unwrap();
        assert!(
            other.options().join_multicast(group, here).is_err(),
            "it is in it"
        );
        one.send_to("all", address).await.unwrap();
        let (received, buf) = other.recv_from(vec![0; 8]).await.unwrap();
        assert_eq!(received.from, one.local_addr().unwrap());
        assert_eq!(&buf[..received.bytes], b"all");
        other.options().leave_multicast(group, here).unwrap();
        assert!(
            other.options().leave_multicast(group, here).is_err(),
            "it has left"
        );
    });
}

#[test]
fn options_of_ipv6_are_set_where_the_machine_has_it() {
    for_each_way(|_| async {
        let only = |options: annulus::net::SocketOptions<'_>| options.set_only_v6(true);
        let socket = match UdpSocket::bind_with("[::1]:0", only) {
            Ok(socket) => socket,
            Err(error) => return skip::skip(format_args!("no IPv6 here: {error}")),
        };
        let options = socket.options();
        assert!(options.only_v6().unwrap());
        options.set_multicast_hops_v6(4).unwrap();
        assert_eq!(options.multicast_hops_v6().unwrap(), 4);
        options.set_multicast_loop_v6(false).unwrap();
        assert!(!options.multicast_loop_v6().unwrap());
        let group = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 0x77);
        options.join_multicast_v6(group, 1).unwrap();
        options.leave_multicast_v6(group, 1).unwrap();
        assert!(options.leave_multicast_v6(group, 1).is_err(), "it has left");
    });
}

#[test]
fn a_unix_stream_returns_the_credentials_of_its_peer() {
    for_each_way(|_| async {
        let (one, other) = UnixStream::pair().unwrap();
        let peer = one.peer_cred().unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer, other.peer_cred().unwrap());
    });
}
