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
fn hundreds_of_connections_are_served_and_leave_nothing_behind() {
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
        // Both ends are this process's.
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
fn where_the_table_is_full_an_idle_connection_gives_way() {
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
            assert!(Instant::now() < until, "none has given way");
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

#[test]
fn a_burst_beyond_the_limit_is_served_and_nobody_waits_for_an_idle_timeout() {
    let options = with_limits(|limits| {
        limits.connections = 2;
        // What waits for it fails by the clients' patience.
        limits.idle_timeout = 60 * PATIENCE;
    });
    for_each_backend(&options, |server| {
        for _ in 0..20 {
            // All of them ask before any is answered: at first there is no idle one to be closed.
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
fn clients_that_say_nothing_give_way_and_do_not_wait_for_each_other() {
    let options = with_limits(|limits| {
        limits.connections = 4;
        limits.idle_timeout = 60 * PATIENCE;
        // The look at which a silent connection may be closed comes the sooner.
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
fn where_the_table_is_full_an_idle_connection_of_http2_gets_goaway_and_is_closed() {
    let options = with_limits(|limits| {
        limits.connections = 2;
        limits.idle_timeout = 60 * PATIENCE;
        limits.send_timeout = 60 * PATIENCE;
    });
    for_each_backend(&options, |server| {
        // They don't answer to anything: who waits for that waits forever.
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
        // One of the two at the least was closed; the other may have been, too, or the third.
        assert!(frames::until(&mut idle[0], frames::GOAWAY).is_some());
    });
}
