//! Ambiguous requests: each is refused, and the bytes after it are not taken for a request.

use std::io::Write;
use std::net::Shutdown;

use crate::server::{for_each_backend, respond, response, rest, status, statuses, with_limits};

/// The request that a smuggling client hides behind another one.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";

/// Fields with the status of the response, which is the last of the connection.
const FIELDS: [(&str, u16); 31] = [
    ("Content-Length: 4\r\nTransfer-Encoding: chunked", 400),
    ("Transfer-Encoding: chunked\r\nContent-Length: 4", 400),
    ("Content-Length: 4\r\nContent-Length: 5", 400),
    ("Content-Length: 4\r\nContent-Length: 4", 400),
    ("Content-Length: +4", 400),
    ("Content-Length: -4", 400),
    ("Content-Length: 4 4", 400),
    ("Content-Length: 4,4", 400),
    ("Content-Length: 0x4", 400),
    ("Content-Length: 4;", 400),
    ("Content-Length: ", 400),
    ("Content-Length: 18446744073709551617", 400),
    ("Content-Length : 4", 400),
    ("Transfer-Encoding: gzip", 400),
    ("Transfer-Encoding: gzip, chunked", 400),
    ("Transfer-Encoding: chunked, identity", 400),
    (
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        400,
    ),
    ("Transfer-Encoding: xchunked", 400),
    ("Transfer-Encoding: \x0bchunked", 400),
    ("Transfer-Encoding : chunked", 400),
    ("Transfer-Encoding:\r\n chunked", 400),
    ("X: a\r\n folded", 400),
    (" X: a", 400),
    ("X: a\rb", 400),
    ("X: a\nY: b", 400),
    ("X: a\0", 400),
    ("X\0: a", 400),
    (": a", 400),
    ("no colon", 400),
    ("Host: b", 400),
    ("Expect: a miracle", 417),
];

const LINES: [(&str, u16); 20] = [
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    ("GET /\r\n\r\n", 400),
    ("GET / HTTP/1.1\n\n", 400),
    ("GET / HTTP/1.1\nHost: a\n\n", 400),
    ("GET /\rHTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET relative HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    ("GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 405),
    ("\x16\x03\x01\x01\x02\x01\0\r\n\r\n", 400),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n",
        413,
    ),
];

const BODIES: [(&str, u16); 14] = [
    ("zz\r\n", 400),
    ("-1\r\n", 400),
    ("+1\r\n", 400),
    (" 1\r\n", 400),
    ("1 \r\n", 400),
    ("\r\n", 400),
    ("1\n", 400),
    ("1\r\nab\r\n", 400),
    ("1\r\na\n", 400),
    ("11111111111111111\r\n", 400),
    ("1;a\nb\r\n", 400),
    ("0\r\nX: a\n\r\n", 400),
    ("0\r\n folded: a\r\n\r\n", 400),
    ("0\r\n\n", 400),
];

fn long() -> [(String, u16); 5] {
    [
        (
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(9000)),
            414,
        ),
        (format!("GET /{}", "a".repeat(20_000)), 414),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "a".repeat(17_000)
            ),
            431,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
                "X: a\r\n".repeat(101)
            ),
            431,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;{}\r\n",
                "a".repeat(5000)
            ),
            400,
        ),
    ]
}

fn refused() -> Vec<(Vec<u8>, u16)> {
    let of_field = |(field, status): (&str, u16)| {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        (text.into_bytes(), status)
    };
    let of_body = |(body, status): (&str, u16)| {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        (format!("{head}{body}").into_bytes(), status)
    };
    let mut all: Vec<_> = FIELDS.map(of_field).into();
    all.extend(LINES.map(|(text, status)| (text.as_bytes().to_vec(), status)));
    all.extend(BODIES.map(of_body));
    all.extend(long().map(|(text, status)| (text.into_bytes(), status)));
    all
}

#[test]
fn an_ambiguous_request_is_refused_and_ends_the_connection() {
    for_each_backend(&respond(), |server| {
        for (bytes, expected) in refused() {
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
            let received = server.exchange(&[&bytes[..], NEXT.as_bytes()].concat());
            assert_eq!(
                statuses(received.as_bytes()),
                [expected],
                "{shown:?}: {received:?}"
            );
            assert!(
                received.contains("\r\nConnection: close\r\n"),
                "{shown:?}: {received:?}"
            );
            // The same after a valid request, whose response is not lost.
            let received =
                server.exchange(&[NEXT.as_bytes(), &bytes[..], NEXT.as_bytes()].concat());
            assert_eq!(
                statuses(received.as_bytes()),
                [200, expected],
                "{shown:?}: {received:?}"
            );
        }
    });
}

#[test]
fn a_refusal_is_the_same_if_the_request_arrives_byte_by_byte() {
    for_each_backend(&respond(), |server| {
        for (bytes, expected) in refused().into_iter().filter(|(bytes, _)| bytes.len() < 200) {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let mut stream = server.connect();
            for byte in &bytes {
                // The request may already have been refused.
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
            }
            let (head, _) = response(&mut stream);
            assert_eq!(status(&head), expected, "{shown:?}");
        }
    });
}

#[test]
fn a_body_is_read_to_its_end_and_the_next_request_follows() {
    let length = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 42\r\n\r\n\
                  GET /smuggled HTTP/1.1\r\nHost: aaaaaaaa\r\n\r\n";
    let chunked = "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5;ext=\"x\"\r\n0\r\n\r\n\r\n1b\r\nGET /smuggled HTTP/1.1\r\nHos\r\n0\r\nTrailer: yes\r\n\r\n";
    for_each_backend(&respond(), |server| {
        for request in [length, chunked] {
            let all = format!(
                "{request}{NEXT}{request}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            );
            assert_eq!(
                statuses(server.exchange(all.as_bytes()).as_bytes()),
                [200; 4]
            );
            // The same, split anywhere.
            for at in (0..all.len()).step_by(7) {
                let mut stream = server.connect();
                stream.write_all(&all.as_bytes()[..at]).unwrap();
                std::thread::yield_now();
                stream.write_all(&all.as_bytes()[at..]).unwrap();
                assert_eq!(
                    statuses(rest(&mut stream).as_bytes()),
                    [200; 4],
                    "split at {at}"
                );
            }
        }
    });
}

#[test]
fn expect_100_continue_gets_an_interim_response() {
    for_each_backend(&respond(), |server| {
        let mut stream = server.connect();
        let head = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(status(&response(&mut stream).0), 100);
        stream.write_all(b"12345").unwrap();
        assert_eq!(status(&response(&mut stream).0), 200);
        // An unsupported method is refused without asking for the body.
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let (head, _) = response(&mut stream);
        assert_eq!(status(&head), 405);
        assert!(head.contains("Connection: close"), "{head}");
        assert_eq!(rest(&mut stream), "");
    });
}

#[test]
fn other_methods_have_their_own_responses() {
    for_each_backend(&respond(), |server| {
        let cases = [
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
                405,
            ),
            (
                "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
                405,
            ),
            ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
            ("BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
            ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 204),
            ("OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", 204),
        ];
        for (text, expected) in cases {
            let mut stream = server.connect();
            stream
                .write_all(format!("{text}{NEXT}").as_bytes())
                .unwrap();
            let (head, _) = response(&mut stream);
            assert_eq!(status(&head), expected, "{text}");
            assert_eq!(
                head.to_ascii_lowercase().contains("\r\nallow: "),
                expected != 501,
                "{head}"
            );
            assert!(!head.contains("Connection: close"), "{head}");
            assert_eq!(status(&response(&mut stream).0), 200, "after {text}");
        }
        let large = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n";
        let received = server.exchange(large.as_bytes());
        assert_eq!(statuses(received.as_bytes()), [405]);
    });
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    for_each_backend(&respond(), |server| {
        let get = server.exchange(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let head = server.exchange(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (fields, body) = get.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, crate::server::BODY);
        let without_date = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with("Date: "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(without_date(fields), without_date(head.trim_end()));
        assert!(
            fields
                .lines()
                .any(|line| line.starts_with("Date: ") && line.ends_with(" GMT"))
        );
    });
}

#[test]
fn an_http10_client_gets_http10_connection_handling() {
    for_each_backend(&respond(), |server| {
        let received = server.exchange(b"GET / HTTP/1.0\r\n\r\n");
        assert!(
            received.starts_with("HTTP/1.1 200 ") && received.contains("\r\nConnection: close\r\n"),
            "{received}"
        );
        let mut stream = server.connect();
        for _ in 0..3 {
            stream
                .write_all(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                .unwrap();
            let (head, _) = response(&mut stream);
            assert!(head.contains("\r\nConnection: keep-alive\r\n"), "{head}");
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut stream), "");
    });
}

#[test]
fn limits_from_the_options_apply() {
    let options = with_limits(|limits| {
        limits.head_bytes = 200;
        limits.target_bytes = 50;
        limits.fields = 3;
        limits.body_bytes = 10;
        limits.requests = 3;
    });
    for_each_backend(&options, |server| {
        let target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(50));
        assert_eq!(
            statuses(server.exchange(target.as_bytes()).as_bytes()),
            [414]
        );
        let field = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "a".repeat(200)
        );
        assert_eq!(
            statuses(server.exchange(field.as_bytes()).as_bytes()),
            [431]
        );
        let fields = "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\nX: 3\r\n\r\n";
        assert_eq!(
            statuses(server.exchange(fields.as_bytes()).as_bytes()),
            [431]
        );
        let body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n12345678901";
        assert_eq!(statuses(server.exchange(body.as_bytes()).as_bytes()), [413]);
        let chunks = "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n123456789012345\r\n";
        assert_eq!(
            statuses(server.exchange(chunks.as_bytes()).as_bytes()),
            [413]
        );
        let received = server.exchange(NEXT.repeat(5).as_bytes());
        assert_eq!(statuses(received.as_bytes()), [200; 3]);
        assert_eq!(received.matches("Connection: close").count(), 1);
    });
}
