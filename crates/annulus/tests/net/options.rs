//! Socket options.

use std::net::Ipv4Addr;
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use annulus_testing::skip;
use socket2::{SockRef, TcpKeepalive};

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
        }
        for bytes in [8192, 65_536] {
            options.set_send_buffer_bytes(bytes).unwrap();
            options.set_receive_buffer_bytes(bytes).unwrap();
            assert!(options.send_buffer_bytes().unwrap() >= bytes);
            assert!(options.receive_buffer_bytes().unwrap() >= bytes);
        }
        assert!(listener.options().reuse_address().unwrap());
        // Because the runtime has one core.
        assert!(!listener.options().reuse_port().unwrap());
    });
}

#[test]
fn the_crate_socket2_sets_all_other_options() {
    for_each_way(|_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let options = stream.options();
        let socket = SockRef::from(&options);
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(77));
        socket.set_tcp_keepalive(&keepalive).unwrap();
        assert!(socket.keepalive().unwrap());
        stream.set_linger(Some(Duration::from_secs(3))).unwrap();
        assert_eq!(socket.linger().unwrap(), Some(Duration::from_secs(3)));
        stream.set_linger(None).unwrap();
        assert_eq!(socket.linger().unwrap(), None);
    });
}

#[test]
fn an_option_that_a_kind_of_socket_does_not_have_is_refused() {
    for_each_way(|_| async {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(one.options().set_nodelay(true).is_err());
    });
}

#[test]
fn multicast_datagrams_are_received_until_the_group_is_left() {
    for_each_way(|_| async {
        let (group, here) = (Ipv4Addr::new(239, 255, 77, 3), Ipv4Addr::LOCALHOST);
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        let options = one.options();
        SockRef::from(&options).set_multicast_if_v4(&here).unwrap();
        let other = UdpSocket::bind((group, 0)).unwrap();
        let address = other.local_addr().unwrap();
        let options = other.options();
        let socket = SockRef::from(&options);
        socket.join_multicast_v4(&group, &here).unwrap();
        one.send_to("all", address).await.unwrap();
        let (received, buf) = other.recv_from(vec![0; 8]).await.unwrap();
        assert_eq!(received.from, one.local_addr().unwrap());
        assert_eq!(&buf[..received.bytes], b"all");
        socket.leave_multicast_v4(&group, &here).unwrap();
    });
}

#[test]
fn options_can_be_set_before_a_bind() {
    for_each_way(|_| async {
        let only =
            |options: annulus::net::SocketOptions<'_>| SockRef::from(&options).set_only_v6(true);
        let socket = match UdpSocket::bind_with("[::1]:0", only) {
            Ok(socket) => socket,
            Err(error) => return skip::skip(format_args!("no IPv6 here: {error}")),
        };
        assert!(SockRef::from(&socket.options()).only_v6().unwrap());
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
