//! Pipelined requests, split at every position.

use std::io::{Read, Write};
use std::net::Shutdown;

use crate::server::{BODY, for_each_backend, respond, response, rest, status, statuses};

fn requests(count: usize) -> String {
    let one = "GET /some/path HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    one.repeat(count - 1) + last
}

#[test]
fn requests_are_served_in_order_wherever_they_are_split() {
    let all = requests(3);
    for_each_backend(&respond(), |server| {
        for at in 0..=all.len() {
            let mut stream = server.connect();
            stream.write_all(&all.as_bytes()[..at]).unwrap();
            // The first part is then usually read separately.
            std::thread::yield_now();
            stream.write_all(&all.as_bytes()[at..]).unwrap();
            let received = rest(&mut stream);
            assert_eq!(statuses(received.as_bytes()), [200; 3], "split at {at}");
            assert_eq!(received.matches(BODY).count(), 3);
        }
        let mut stream = server.connect();
        for byte in all.as_bytes() {
            stream.write_all(&[*byte]).unwrap();
        }
        assert_eq!(statuses(rest(&mut stream).as_bytes()), [200; 3]);
    });
}

#[test]
fn ten_thousand_requests_in_one_write_are_all_served() {
    const COUNT: usize = 10_000;
    let all = requests(COUNT);
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        let mut writer = stream.try_clone().unwrap();
        let sent = all.clone();
        let writes = std::thread::spawn(move || writer.write_all(sent.as_bytes()).unwrap());
        assert_eq!(statuses(rest(&mut stream).as_bytes()), [200; COUNT]);
        writes.join().unwrap();
    });
}

#[test]
fn complete_requests_are_answered_although_the_client_has_shut_down_sending() {
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        stream
            .write_all(
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nGET /half",
            )
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(statuses(rest(&mut stream).as_bytes()), [200, 200]);
    });
}

#[test]
fn no_request_is_answered_after_the_last_one() {
    for_each_backend(&respond(), |server| {
        let close = "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n";
        let received = server.exchange(close.repeat(3).as_bytes());
        assert_eq!(statuses(received.as_bytes()), [200]);
    });
}

#[test]
fn a_connection_stays_open_until_the_client_closes_it() {
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        for _ in 0..1000 {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let (head, body) = response(&mut stream);
            assert_eq!((status(&head), &body[..]), (200, BODY.as_bytes()));
        }
        drop(stream);
        // Resets within responses do not affect the server.
        for _ in 0..20 {
            let mut stream = server.connect();
            stream.write_all(requests(200).as_bytes()).unwrap();
            stream.read_exact(&mut [0; 10]).unwrap();
            drop(stream);
        }
        assert_eq!(
            statuses(server.exchange(requests(2).as_bytes()).as_bytes()),
            [200, 200]
        );
    });
}
