//! Connecting by name, and to several addresses.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use annulus::net::{TcpListener, TcpStream, UdpSocket};

use crate::fixtures::for_each_way;

/// Returns a listener on the loopback interface, and its address.
fn listener() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// An address that refuses connections: its port was free a moment ago, and is bound without a listener.
fn refused() -> (std::net::UdpSocket, SocketAddr) {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    (taken, address)
}

#[test]
fn a_host_name_is_resolved_before_a_stream_connects() {
    for_each_way(|_| async {
        let (listener, address) = listener().unwrap();
        let port = address.port();
        for stream in [
            TcpStream::connect(format!("localhost:{port}")).await,
            TcpStream::connect(("localhost", port)).await,
            TcpStream::connect(format!("127.0.0.1:{port}")).await,
            TcpStream::connect(&address).await,
        ] {
            let peer = listener.accept().await.unwrap();
            assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
            drop(peer);
        }
    });
}

#[test]
fn addresses_are_tried_in_order_and_the_last_error_is_returned() {
    for_each_way(|_| async {
        let (listener, address) = listener().unwrap();
        let (_taken, dead) = refused();
        let stream = TcpStream::connect([dead, address]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        drop(listener);
        let error = TcpStream::connect(&[dead, dead][..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        let error = TcpStream::connect(Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    });
}

#[test]
fn an_error_names_the_host_that_can_not_be_resolved() {
    for_each_way(|_| async {
        // A label has at most 63 characters, so the resolver does not query a server for this name.
        let host = "a".repeat(70);
        let error = TcpStream::connect((host.as_str(), 80)).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("can't resolve") && text.contains(&host),
            "{text}"
        );
        let error = TcpStream::connect("localhost").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("host:port"), "{error}");
    });
}

#[test]
fn a_datagram_socket_connects_to_a_host_name() {
    for_each_way(|_| async {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .connect(format!("localhost:{}", address.port()))
            .await
            .unwrap();
        assert_eq!(client.peer_addr().unwrap(), address);
    });
}
