//! Slow clients, in every phase: each is closed after its timeout and does not affect others.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use annulus_http::Options;

use crate::server::{for_each_backend, respond, response, rest, status, statuses, with_limits};

const SHORT: Duration = Duration::from_millis(200);
/// The latest end, also on a slow machine.
const LATE: Duration = Duration::from_secs(20);

/// Checks that the end was neither early nor late.
fn in_time(began: Instant, phase: &str) {
    let took = began.elapsed();
    assert!(took >= SHORT * 9 / 10, "{phase}: ended after {took:?}");
    assert!(took < LATE, "{phase}: ended after {took:?}");
}

#[test]
fn a_silent_connection_is_closed() {
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
fn a_request_that_arrives_byte_by_byte_times_out_in_every_phase() {
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
        for (phase, start) in phases {
            let began = Instant::now();
            let mut stream = server.connect();
            stream.write_all(start.as_bytes()).unwrap();
            // Further bytes do not extend the time.
            let mut drops = stream.try_clone().unwrap();
            let writes = std::thread::spawn(move || {
                while began.elapsed() < LATE && drops.write_all(b"a").is_ok() {
                    std::thread::sleep(SHORT / 10);
                }
            });
            let (head, _) = response(&mut stream);
            assert_eq!(status(&head), 408, "{phase}");
            in_time(began, phase);
            drop(stream);
            writes.join().unwrap();
        }
    });
}

#[test]
fn a_client_that_reads_nothing_is_reset_and_bounded_and_others_are_served() {
    let impatient = with_limits(|limits| limits.send_timeout = SHORT);
    for_each_backend(&impatient, |server| {
        let mut stream = server.connect();
        // Longer than the send timeout, which many acknowledged bytes extend to four times.
        stream.set_write_timeout(Some(SHORT * 8)).unwrap();
        let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
        let mut taken = 0;
        // The server stops reading while its responses are not read, so the client cannot send more.
        let began = Instant::now();
        let refused = loop {
            match stream.write(&requests) {
                Ok(written) => taken += written,
                Err(error) => break error.kind(),
            }
            assert!(taken < 64 << 20, "the server reads without limit");
            assert!(began.elapsed() < LATE);
        };
        assert_eq!(
            statuses(
                server
                    .exchange(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    .as_bytes()
            ),
            [200]
        );
        // The server resets the connection, so that the last response does not look complete. Either call may return
        // the error.
        let began = Instant::now();
        let mut sink = vec![0; 1 << 16];
        let ended = loop {
            match stream.read(&mut sink) {
                Ok(0) => break None,
                Ok(_) => assert!(began.elapsed() < LATE, "the connection does not end"),
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
fn a_client_that_reads_slowly_gets_everything() {
    reads_slowly(&respond());
}

#[test]
fn the_longest_duration_is_no_limit() {
    reads_slowly(&with_limits(|limits| {
        limits.head_timeout = Duration::MAX;
        limits.body_timeout = Duration::MAX;
        limits.idle_timeout = Duration::MAX;
        limits.send_timeout = Duration::MAX;
        // Sends are checked more often.
        limits.handshake_timeout = SHORT;
    }));
}

fn reads_slowly(options: &Options) {
    for_each_backend(options, |server| {
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
        let mut received = Vec::new();
        let mut piece = [0; 32 << 10];
        loop {
            let read = stream.read(&mut piece).unwrap();
            if read == 0 {
                break;
            }
            received.extend_from_slice(&piece[..read]);
            if received.len() < 1 << 20 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        writes.join().unwrap();
        assert_eq!(statuses(&received), [200; COUNT]);
    });
}
