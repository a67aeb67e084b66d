//! Clients that take their time, in every phase: each is ended when its time is up, and meanwhile costs nobody else.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use crate::server::{for_each_backend, respond, response, rest, status, statuses, with_limits};

const SHORT: Duration = Duration::from_millis(200);
/// By then it must have ended on the slowest machine.
const LATE: Duration = Duration::from_secs(20);

/// Not early, and not forever.
fn in_time(began: Instant, what: &str) {
    let took = began.elapsed();
    assert!(took >= SHORT * 9 / 10, "{what}: ended after {took:?}");
    assert!(took < LATE, "{what}: ended after {took:?}");
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    let impatient = with_limits(|limits| limits.idle_timeout = SHORT);
    for_each_backend(&impatient, |server| {
        let began = Instant::now();
        let mut fresh = server.connect();
        assert_eq!(rest(&mut fresh), "");
        in_time(began, "fresh");
        let began = Instant::now();
        let mut used = server.connect();
        used.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        response(&mut used);
        assert_eq!(rest(&mut used), "");
        in_time(began, "used");
    });
}

#[test]
fn a_request_that_comes_drop_by_drop_is_ended_in_every_phase() {
    let phases = [
        ("a target", "G"),
        ("a field", "GET / HTTP/1.1\r\nHost: a\r\nX: "),
        (
            "a length",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
        ),
        (
            "a chunk",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n",
        ),
        (
            "a trailer",
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        ),
    ];
    let impatient = with_limits(|limits| {
        limits.head_timeout = SHORT;
        limits.body_timeout = SHORT;
    });
    for_each_backend(&impatient, |server| {
        for (what, start) in phases {
            let began = Instant::now();
            let mut stream = server.connect();
            stream.write_all(start.as_bytes()).unwrap();
            // A byte now and then does not buy time.
            let mut drops = stream.try_clone().unwrap();
            let writes = std::thread::spawn(move || {
                while began.elapsed() < LATE && drops.write_all(b"a").is_ok() {
                    std::thread::sleep(SHORT / 10);
                }
            });
            let (head, _) = response(&mut stream);
            assert_eq!(status(&head), 408, "{what}");
            in_time(began, what);
            drop(stream);
            writes.join().unwrap();
        }
    });
}

#[test]
fn a_client_that_takes_nothing_is_ended_and_bounded_and_others_are_served() {
    let impatient = with_limits(|limits| limits.send_timeout = SHORT);
    for_each_backend(&impatient, |server| {
        let mut stream = server.connect();
        stream.set_write_timeout(Some(SHORT * 2)).unwrap();
        let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
        let mut taken = 0;
        // The server stops reading when its responses are not taken, so that the client can't send more.
        let began = Instant::now();
        let refused = loop {
            match stream.write(&requests) {
                Ok(written) => taken += written,
                Err(error) => break error.kind(),
            }
            assert!(taken < 64 << 20, "the server reads on without being read");
            assert!(began.elapsed() < LATE);
        };
        assert_eq!(
            statuses(
                server
                    .ask(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    .as_bytes()
            ),
            [200]
        );
        // It has been cut off, by a reset: an end would make the last response look whole. Either call may be told.
        let began = Instant::now();
        let mut sink = vec![0; 1 << 16];
        let ended = loop {
            match stream.read(&mut sink) {
                Ok(0) => break None,
                Ok(_) => assert!(began.elapsed() < LATE, "it goes on forever"),
                Err(error) => break Some(error.kind()),
            }
        };
        assert!(
            [Some(refused), ended].contains(&Some(ErrorKind::ConnectionReset)),
            "{refused:?}, then {ended:?}"
        );
    });
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_it() {
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        const COUNT: usize = 20_000;
        let one = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let mut writer = stream.try_clone().unwrap();
        let writes = std::thread::spawn(move || {
            writer
                .write_all((one.repeat(COUNT - 1) + last).as_bytes())
                .unwrap();
        });
        let mut got = Vec::new();
        let mut piece = [0; 32 << 10];
        loop {
            let read = stream.read(&mut piece).unwrap();
            if read == 0 {
                break;
            }
            got.extend_from_slice(&piece[..read]);
            if got.len() < 1 << 20 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        writes.join().unwrap();
        assert_eq!(statuses(&got), [200; COUNT]);
    });
}
