//! Clients that take their time, in every phase: each is ended when its time is up, and meanwhile costs nobody else.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use annulus_http::Options;

use crate::frames::{self, DATA, END_STREAM, WINDOW_UPDATE, frame};
use crate::server::{
    Server, answer, for_each_backend, length, respond, rest, status, statuses, with_limits,
};
use crate::tls;

const SHORT: Duration = Duration::from_millis(200);
/// By then it must have ended on the slowest machine.
const LATE: Duration = Duration::from_secs(20);

fn impatient() -> Options {
    with_limits(|limits| {
        limits.head_timeout = SHORT;
        limits.body_timeout = SHORT;
        limits.idle_timeout = SHORT;
        limits.send_timeout = SHORT;
    })
}

/// Not early, and not for ever.
fn in_time(began: Instant, what: &str) {
    let took = began.elapsed();
    assert!(took >= SHORT * 9 / 10, "{what}: ended after {took:?}");
    assert!(took < LATE, "{what}: ended after {took:?}");
}

#[test]
fn a_connection_that_says_nothing_is_closed() {
    for_each_backend(&impatient(), |server| {
        let began = Instant::now();
        let mut fresh = server.connect();
        assert_eq!(rest(&mut fresh), "");
        in_time(began, "fresh");
        let mut used = server.connect();
        used.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        answer(&mut used);
        let began = Instant::now();
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
    for_each_backend(&impatient(), |server| {
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
            let (head, _) = answer(&mut stream);
            assert_eq!(status(&head), 408, "{what}");
            in_time(began, what);
            drop(stream);
            writes.join().unwrap();
        }
    });
}

#[test]
fn requests_that_follow_each_other_have_their_time_each() {
    for_each_backend(&impatient(), |server| {
        let mut stream = server.connect();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        // The end of one and the start of the next come together, for longer than one may take.
        stream.write_all(&request[..10]).unwrap();
        let began = Instant::now();
        while began.elapsed() < SHORT * 4 {
            std::thread::sleep(SHORT / 8);
            stream.write_all(&request[10..]).unwrap();
            stream.write_all(&request[..10]).unwrap();
            assert_eq!(status(&answer(&mut stream).0), 200);
        }
    });
}

#[test]
fn a_client_that_takes_nothing_is_ended_and_bounded_and_others_are_served() {
    for_each_backend(&impatient(), |server| {
        let mut stream = server.connect();
        stream.set_write_timeout(Some(SHORT * 2)).unwrap();
        let requests = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000);
        let mut taken = 0;
        // The server stops reading when its answers are not taken, so that the client can't send more.
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
        // It has been cut off, by a reset: an end would make the last answer look whole. Either call may be told.
        let began = Instant::now();
        let mut sink = vec![0; 1 << 16];
        let ended = loop {
            match stream.read(&mut sink) {
                Ok(0) => break None,
                Ok(_) => assert!(began.elapsed() < LATE, "it goes on for ever"),
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

/// A body that no socket's buffer holds.
const LARGE_BYTES: usize = 12 << 20;
/// A client that takes something as often as this for so many times takes longer than a send timeout.
const TAKE_EVERY: Duration = Duration::from_millis(50);
const TAKES: usize = 60;
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a body bit by bit for longer than the send timeout, and then the rest of it.
fn take_slowly(stream: &mut impl Read) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let mut left = length(&String::from_utf8(head).unwrap());
    assert_eq!(left, LARGE_BYTES);
    let mut piece = vec![0; 64 << 10];
    for _ in 0..TAKES {
        stream.read_exact(&mut piece).unwrap();
        left -= piece.len();
        thread::sleep(TAKE_EVERY);
    }
    let mut rest = vec![0; left];
    stream.read_exact(&mut rest).unwrap();
}

fn take_slowly_by_http2(server: &Server) {
    // All of it may be sent at once: INITIAL_WINDOW_SIZE, and the connection's window.
    let mut stream = frames::connect(server, &[(4, LARGE_BYTES as u32)]);
    let window = (LARGE_BYTES as u32).to_be_bytes();
    stream
        .write_all(&frame(WINDOW_UPDATE, 0, 0, &window))
        .unwrap();
    stream.write_all(&frames::request(1, "/")).unwrap();
    let (mut got, mut naps) = (0, 0);
    while got < LARGE_BYTES {
        let data = frames::until(&mut stream, DATA).expect("the connection was ended");
        got += data.payload.len();
        if naps < TAKES && got > naps * (64 << 10) {
            naps += 1;
            thread::sleep(TAKE_EVERY);
        }
        assert_eq!(data.flags & END_STREAM != 0, got == LARGE_BYTES);
    }
}

#[test]
fn a_client_that_takes_a_little_at_a_time_gets_all_of_it_however_long_a_send_takes() {
    let (mut options, trusted) = tls::certified();
    options.limits.send_timeout = SEND_TIMEOUT;
    let body = vec![b'x'; LARGE_BYTES].into();
    options.site.respond = Some((http::StatusCode::OK, body));
    let mut plain = options.clone();
    plain.tls = None;
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for_each_backend(&plain, |server| {
        thread::scope(|scope| {
            scope.spawn(|| take_slowly_by_http2(server));
            let mut stream = server.connect();
            stream.write_all(request).unwrap();
            take_slowly(&mut stream);
        });
    });
    for_each_backend(&options, |server| {
        let mut stream = tls::connect(server, &trusted);
        stream.write_all(request).unwrap();
        take_slowly(&mut stream);
    });
}
