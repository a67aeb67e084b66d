//! HTTP/2 with prior knowledge: responses, and resistance to abuse.

use std::io::Write;
use std::time::{Duration, Instant};

use annulus_http::Options;

use crate::frames::{
    ACK, CONTINUATION, DATA, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, connect, frame, read, request, until,
};
use crate::server::{BODY, PATIENCE, Server, for_each_backend, respond, rest, with_limits};

/// The limit of bytes that an abusive client may send. The socket buffers take some MiB.
const TAKEN_BYTES_MAX: usize = 64 << 20;
/// The bytes of frames without a reply that are sent: at least 60,000 frames.
const UNANSWERED_BYTES: usize = 1 << 20;
const SHORT: Duration = Duration::from_millis(300);

/// Checks that the server still answers over HTTP/2 and HTTP/1.1.
fn check_server(server: &Server) {
    let mut stream = connect(server, &[]);
    stream.write_all(&request(1, "/")).unwrap();
    assert_eq!(until(&mut stream, DATA).unwrap().payload, BODY.as_bytes());
    let received = server.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(received.starts_with("HTTP/1.1 200 "), "{received}");
}

/// Writes `piece` repeatedly without reading, until the server closes or stops reading, and at most about `max` bytes.
/// Returns the bytes written.
fn flood(server: &Server, piece: &[u8], max: usize) -> usize {
    let mut stream = connect(server, &[]);
    stream
        .set_write_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    let many = piece.repeat((64 << 10) / piece.len() + 1);
    let mut taken = 0;
    while taken < max && stream.write_all(&many).is_ok() {
        taken += many.len();
    }
    taken
}

#[test]
fn streams_are_served_concurrently() {
    for_each_backend(&respond(), |server| {
        let mut stream = connect(server, &[]);
        let all: Vec<u8> = (0..50)
            .flat_map(|number| request(2 * number + 1, "/"))
            .collect();
        stream.write_all(&all).unwrap();
        let mut ended = 0;
        while ended < 50 {
            let frame = read(&mut stream).unwrap();
            if frame.kind == DATA {
                assert!(frame.payload.is_empty() || frame.payload == BODY.as_bytes());
                ended += u32::from(frame.flags & END_STREAM != 0);
            }
        }
        check_server(server);
    });
}

#[test]
fn the_start_of_http2_may_arrive_in_pieces() {
    for_each_backend(&respond(), |server| {
        for at in 1..PREFACE.len() {
            let mut stream = server.connect();
            stream.write_all(&PREFACE[..at]).unwrap();
            // The server usually receives this first.
            std::thread::sleep(Duration::from_millis(10));
            let more = [
                &PREFACE[at..],
                &frame(SETTINGS, 0, 0, &[]),
                &request(1, "/"),
            ];
            stream.write_all(&more.concat()).unwrap();
            let received = until(&mut stream, DATA).map(|data| data.payload);
            assert_eq!(received.as_deref(), Some(BODY.as_bytes()), "cut at {at}");
        }
        let mut stream = server.connect();
        for byte in PREFACE.iter().chain(&frame(SETTINGS, 0, 0, &[])) {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.write_all(&request(1, "/")).unwrap();
        assert!(until(&mut stream, DATA).is_some());
        // Other protocols may begin with the same bytes.
        let mut stream = server.connect();
        for piece in [
            &PREFACE[..1],
            b"OST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        ] {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        let received = rest(&mut stream);
        assert!(received.starts_with("HTTP/1.1 405 "), "{received}");
    });
}

#[test]
fn a_rapid_reset_ends_the_connection() {
    for_each_backend(&respond(), |server| {
        let mut stream = connect(server, &[]);
        let cancel = 8_u32.to_be_bytes();
        let pairs = (0..20_000).map(|number| {
            let id = 2 * number + 1;
            [request(id, "/"), frame(RST_STREAM, 0, id, &cancel)].concat()
        });
        let all: Vec<u8> = pairs.flatten().collect();
        // The connection may end during the write.
        let _ = stream.write_all(&all);
        let goaway = until(&mut stream, GOAWAY);
        if let Some(goaway) = goaway {
            // ENHANCE_YOUR_CALM or PROTOCOL_ERROR.
            assert!(matches!(goaway.payload[7], 1 | 11), "{:?}", goaway.payload);
        }
        check_server(server);
    });
}

#[test]
fn an_endless_head_is_cut_off() {
    for_each_backend(&respond(), |server| {
        let mut stream = connect(server, &[]);
        // Repeats a literal field without indexing, `a: aaa…`.
        let field = [&[0x00, 1, b'a', 100][..], &[b'a'; 100]].concat();
        stream
            .write_all(&frame(HEADERS, END_STREAM, 1, &[0x82, 0x86, 0x84]))
            .unwrap();
        let more = frame(CONTINUATION, 0, 1, &field.repeat(100));
        let mut taken = 0;
        while taken < TAKEN_BYTES_MAX && stream.write_all(&more).is_ok() {
            taken += more.len();
        }
        assert!(taken < TAKEN_BYTES_MAX, "the server accepted everything");
        // Empty CONTINUATION frames cost the server as much.
        let mut stream = connect(server, &[]);
        stream
            .write_all(&frame(HEADERS, END_STREAM, 1, &[0x82]))
            .unwrap();
        let empty = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
        let mut taken = 0;
        while taken < TAKEN_BYTES_MAX && stream.write_all(&empty).is_ok() {
            taken += empty.len();
        }
        assert!(taken < TAKEN_BYTES_MAX, "the server accepted everything");
        check_server(server);
    });
}

#[test]
fn unread_replies_to_pings_and_settings_are_bounded() {
    for_each_backend(&respond(), |server| {
        for piece in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
            assert!(
                flood(server, &piece, TAKEN_BYTES_MAX) < TAKEN_BYTES_MAX,
                "the server accepts them without limit"
            );
        }
        // Frames without a reply cost only processing time.
        flood(server, &frame(PING, ACK, 0, &[0; 8]), UNANSWERED_BYTES);
        flood(
            server,
            &frame(WINDOW_UPDATE, 0, 0, &0_u32.to_be_bytes()),
            UNANSWERED_BYTES,
        );
        check_server(server);
    });
}

#[test]
fn a_malformed_frame_ends_the_connection() {
    for_each_backend(&respond(), |server| {
        let cases = [
            vec![0xff; 100],
            frame(DATA, 0, 0, b"x"),
            frame(HEADERS, 5, 2, &[0x82]),
            frame(HEADERS, 5, 1, &[0xff; 20]),
            frame(SETTINGS, 0, 0, &[1]),
            frame(WINDOW_UPDATE, 0, 0, &0_u32.to_be_bytes()),
        ];
        for bytes in cases {
            let mut stream = connect(server, &[]);
            stream.write_all(&bytes).unwrap();
            let began = Instant::now();
            while read(&mut stream).is_ok() {}
            assert!(began.elapsed() < PATIENCE / 2, "{bytes:?}");
        }
        check_server(server);
    });
}

fn impatient() -> Options {
    with_limits(|limits| {
        limits.idle_timeout = SHORT;
        limits.head_timeout = SHORT;
        limits.send_timeout = SHORT;
    })
}

#[test]
fn an_empty_window_does_not_keep_a_connection_open() {
    for_each_backend(&impatient(), |server| {
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let mut stream = connect(server, &[(4, 0)]);
        stream.write_all(&request(1, "/")).unwrap();
        let began = Instant::now();
        let mut data = 0;
        while let Ok(frame) = read(&mut stream) {
            data += if frame.kind == DATA {
                frame.payload.len()
            } else {
                0
            };
        }
        assert_eq!(data, 0);
        assert!(began.elapsed() < PATIENCE / 2);
        check_server(server);
    });
}

#[test]
fn an_idle_connection_gets_goaway_and_is_closed() {
    for_each_backend(&impatient(), |server| {
        let mut stream = connect(server, &[]);
        stream.write_all(&request(1, "/")).unwrap();
        assert!(until(&mut stream, GOAWAY).is_some());
        // A client that ignores GOAWAY is closed, too.
        let began = Instant::now();
        while read(&mut stream).is_ok() {}
        assert!(began.elapsed() < PATIENCE / 2);
    });
}

#[test]
fn a_connection_waits_for_its_first_request_as_for_others() {
    let hasty = with_limits(|limits| limits.head_timeout = SHORT);
    for_each_backend(&hasty, |server| {
        let mut stream = connect(server, &[]);
        std::thread::sleep(SHORT * 4);
        stream.write_all(&request(1, "/")).unwrap();
        loop {
            let frame = read(&mut stream).unwrap();
            assert_ne!(frame.kind, GOAWAY);
            if frame.kind == DATA {
                break;
            }
        }
    });
}

#[test]
fn a_stopping_server_sends_goaway() {
    for_each_backend(&respond(), |server| {
        let mut stream = connect(server, &[]);
        stream.write_all(&request(1, "/")).unwrap();
        until(&mut stream, DATA).unwrap();
        server.shut_down();
        assert!(until(&mut stream, GOAWAY).is_some());
    });
}
