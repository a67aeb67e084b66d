//! The end of the server: idle connections are closed, and requests that have begun are answered.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::server::{PATIENCE, for_each_backend, respond, response, rest, status};

/// Returns whether the server has accepted the connection; it must be in the same network
/// namespace.
fn is_accepted(client: &TcpStream) -> bool {
    let [near, far] = [client.local_addr(), client.peer_addr()].map(|end| end.unwrap().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_end = |word: usize, port: u16| words[word].ends_with(&format!(":{port:04X}"));
        is_end(1, far) && is_end(2, near) && words[9] != "0"
    })
}

#[test]
fn a_stopping_server_closes_idle_connections_and_accepts_no_more() {
    for_each_backend(&respond(), |server| {
        let mut fresh = server.connect();
        // A client that sends nothing is accepted a second later.
        let until = Instant::now() + PATIENCE;
        while !is_accepted(&fresh) {
            assert!(Instant::now() < until, "the connection is not accepted");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut used = server.connect();
        used.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        response(&mut used);
        let began = Instant::now();
        server.shut_down();
        assert_eq!(rest(&mut fresh), "");
        assert_eq!(rest(&mut used), "");
        while !server.has_ended() {
            assert!(began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Before the grace period ends.
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "{:?}",
            began.elapsed()
        );
        assert!(TcpStream::connect(server.address).is_err());
    });
}

#[test]
fn a_stopping_server_answers_a_request_that_has_begun_and_closes_its_connection() {
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        // The response shows that the connection was accepted.
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n")
            .unwrap();
        response(&mut stream);
        let mut with_body = server.connect();
        with_body
            .write_all(
                b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
            )
            .unwrap();
        assert_eq!(status(&response(&mut with_body).0), 100);
        server.shut_down();
        std::thread::sleep(Duration::from_millis(100));
        assert!(!server.has_ended());
        stream.write_all(b"Host: a\r\n\r\n").unwrap();
        let (head, _) = response(&mut stream);
        assert_eq!(status(&head), 200);
        assert!(head.contains("Connection: close"), "{head}");
        assert_eq!(rest(&mut stream), "");
        with_body.write_all(b"12345").unwrap();
        assert_eq!(status(&response(&mut with_body).0), 200);
        assert_eq!(with_body.read(&mut [0]).unwrap(), 0);
    });
}
