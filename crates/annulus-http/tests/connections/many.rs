//! Many connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::frames;
use crate::server::{PATIENCE, for_each_backend, respond, response, rest, status, with_limits};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn hundreds_of_connections_are_served_and_leave_no_descriptors_open() {
    for_each_backend(&respond(), |server| {
        let streams: Vec<_> = (0..400).map(|_| server.connect()).collect();
        for _ in 0..3 {
            for mut stream in &streams {
                stream.write_all(REQUEST).unwrap();
            }
            for mut stream in &streams {
                assert_eq!(status(&response(&mut stream).0), 200);
            }
        }
        let open = descriptors();
        drop(streams);
        let until = Instant::now() + PATIENCE;
        // Both ends belong to this process.
        while descriptors() > open - 800 {
            assert!(Instant::now() < until, "{} of {open}", descriptors());
            std::thread::sleep(Duration::from_millis(2));
        }
        for _ in 0..1000 {
            let mut stream = server.connect();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .unwrap();
            assert!(rest(&mut stream).starts_with("HTTP/1.1 200 "));
        }
    });
}

#[test]
fn a_full_table_closes_an_idle_connection() {
    for_each_backend(&with_limits(|limits| limits.connections = 4), |server| {
        let mut idle: Vec<_> = (0..4).map(|_| server.connect()).collect();
        for stream in &mut idle {
            stream.write_all(REQUEST).unwrap();
            response(stream);
        }
        let mut fifth = server.connect();
        fifth.write_all(REQUEST).unwrap();
        assert_eq!(status(&response(&mut fifth).0), 200);
        let has_ended = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!((&mut &*stream).read(&mut [0]), Ok(0))
        };
        let until = Instant::now() + PATIENCE;
        while !idle.iter().any(has_ended) {
            assert!(Instant::now() < until, "no connection was closed");
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

#[test]
fn a_burst_beyond_the_limit_is_served_without_waiting_for_an_idle_timeout() {
    let options = with_limits(|limits| {
        limits.connections = 2;
        // A test that waits for the idle timeout fails.
        limits.idle_timeout = 60 * PATIENCE;
    });
    for_each_backend(&options, |server| {
        for _ in 0..20 {
            // All send before any is answered, so at first there is no idle connection to close.
            let streams: Vec<_> = (0..8).map(|_| server.connect()).collect();
            for mut stream in &streams {
                stream.write_all(REQUEST).unwrap();
            }
            for mut stream in &streams {
                assert_eq!(status(&response(&mut stream).0), 200);
            }
        }
    });
}

#[test]
fn silent_connections_are_closed_to_make_room_without_waiting_for_each_other() {
    let options = with_limits(|limits| {
        limits.connections = 4;
        limits.idle_timeout = 60 * PATIENCE;
        // Shortens the tick after which a silent connection may be closed.
        limits.handshake_timeout = Duration::from_millis(80);
    });
    for_each_backend(&options, |server| {
        let silent: Vec<_> = (0..16).map(|_| server.connect()).collect();
        let mut stream = server.connect();
        stream.write_all(REQUEST).unwrap();
        assert_eq!(status(&response(&mut stream).0), 200);
        drop(silent);
    });
}

#[test]
fn a_full_table_sends_goaway_to_an_idle_http2_connection_and_closes_it() {
    let options = with_limits(|limits| {
        limits.connections = 2;
        limits.idle_timeout = 60 * PATIENCE;
        limits.send_timeout = 60 * PATIENCE;
    });
    for_each_backend(&options, |server| {
        // These clients never reply, so the server must not wait for them.
        let mut idle: Vec<_> = (0..2).map(|_| frames::connect(server, &[])).collect();
        for stream in &mut idle {
            stream.write_all(&frames::request(1, "/")).unwrap();
            frames::until(stream, frames::DATA).unwrap();
        }
        let mut third = server.connect();
        third.write_all(REQUEST).unwrap();
        assert_eq!(status(&response(&mut third).0), 200);
        let mut fourth = server.connect();
        fourth.write_all(REQUEST).unwrap();
        assert_eq!(status(&response(&mut fourth).0), 200);
        // At least one of the two was closed; the other one or the third may have been, too.
        assert!(frames::until(&mut idle[0], frames::GOAWAY).is_some());
    });
}
