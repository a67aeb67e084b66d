//! Heads that are parsed, and heads that are refused.

use super::*;

/// Verb, target, framing, and whether another request may follow.
type Read = (Verb, Vec<u8>, Framing, bool);

fn read(bytes: &[u8]) -> Result<Option<Read>, u16> {
    let mut headers = header_array();
    match parse(bytes, &mut headers, &Limits::default()) {
        Ok(Some(head)) => {
            assert_eq!(head.bytes, bytes.len(), "all of it is the head");
            Ok(Some((
                head.verb,
                head.target.to_vec(),
                head.framing,
                head.keep_alive,
            )))
        }
        Ok(None) => Ok(None),
        Err(refusal) => Err(refusal.status),
    }
}

fn with(line: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").into_bytes()
}

/// A head and its expected result.
type Case = (&'static str, Verb, &'static str, Framing, bool);

const CASES: [Case; 12] = [
    (
        "GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n",
        Verb::Get,
        "/a?b",
        Framing::Empty,
        true,
    ),
    (
        "HEAD / HTTP/1.1\r\nhOST: [::1]:80\r\nConnection: close\r\n\r\n",
        Verb::Head,
        "/",
        Framing::Empty,
        false,
    ),
    (
        "GET / HTTP/1.0\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Empty,
        false,
    ),
    (
        "GET / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Empty,
        true,
    ),
    (
        "OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n",
        Verb::Options,
        "*",
        Framing::Empty,
        true,
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
        Verb::Known,
        "/",
        Framing::Length(10),
        true,
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Empty,
        true,
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Chunked,
        true,
    ),
    (
        "GET http://a/b HTTP/1.1\r\nHost: c\r\n\r\n",
        Verb::Get,
        "/b",
        Framing::Empty,
        true,
    ),
    (
        "GET HTTPS://a:80?q HTTP/1.1\r\nHost: a\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Empty,
        true,
    ),
    (
        "BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
        Verb::Unknown,
        "/",
        Framing::Empty,
        true,
    ),
    (
        "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        Verb::Get,
        "/",
        Framing::Empty,
        true,
    ),
];

#[test]
fn a_head_is_parsed_and_an_incomplete_head_is_not() {
    for (text, verb, target, framing, keep_alive) in CASES {
        let expected = (verb, target.as_bytes().to_vec(), framing, keep_alive);
        assert_eq!(read(text.as_bytes()), Ok(Some(expected)), "{text:?}");
        for end in 0..text.len() {
            assert_eq!(
                read(&text.as_bytes()[..end]),
                Ok(None),
                "{text:?} up to {end}"
            );
        }
    }
}

#[test]
fn ambiguous_framing_is_refused() {
    let both = "Content-Length: 3\r\nTransfer-Encoding: chunked";
    let fields = [
        both,
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: +3",
        "Content-Length: -3",
        "Content-Length: 3 3",
        "Content-Length: 3, 3",
        "Content-Length: 0x3",
        "Content-Length: 3.0",
        "Content-Length:",
        "Content-Length: three",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked;a=b",
        "Transfer-Encoding : chunked",
        "Content-Length : 3",
        "Transfer-Encoding\t: chunked",
        " Content-Length: 3",
        "\tX: y",
        "X: a\r\n b",
        "Transfer-Encoding:\r\n chunked",
        "X: a\rb",
        "X: a\0b",
        "X: a\x0bb",
        "X y: a",
        "X",
        ": a",
        "Host: b",
        "X(: a",
        "Content-Length: 3\r\nX: a\nTransfer-Encoding: chunked",
    ];
    for field in fields {
        assert_eq!(read(&with(field)), Err(400), "{field:?}");
    }
}

#[test]
fn a_malformed_request_line_is_refused() {
    let cases = [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET /\r\nHost: a\r\n\r\n", 400),
        ("GET\r\n\r\n", 400),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", 400),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
        ("GET / http/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/x\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/3\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03\r\n\r\n", 400),
    ];
    for (text, status) in cases {
        assert_eq!(read(text.as_bytes()), Err(status), "{text:?}");
    }
    assert_eq!(read(&with("Expect: 200-maybe")), Err(417));
}

#[test]
fn a_head_beyond_a_limit_is_refused_before_it_is_complete() {
    let limits = Limits::default();
    let target = format!("GET /{} HTTP/1.1\r\n", "a".repeat(limits.target_bytes));
    assert_eq!(
        read(format!("{target}Host: a\r\n\r\n").as_bytes()),
        Err(414)
    );
    let endless = format!("GET /{}", "a".repeat(limits.head_bytes));
    assert_eq!(read(endless.as_bytes()), Err(414));
    let field = format!("X: {}", "a".repeat(limits.head_bytes));
    assert_eq!(read(&with(&field)), Err(431));
    assert_eq!(read(&with(&field)[..limits.head_bytes + 1]), Err(431));
    let many = vec!["X: a"; limits.fields];
    assert_eq!(read(&with(&many.join("\r\n"))), Err(431));
    assert!(read(&with(&many[1..].join("\r\n"))).is_ok());
}

#[test]
fn a_request_is_plain_unless_a_field_changes_its_response() {
    let plain = |field: &str| {
        let bytes = with(field);
        let mut headers = header_array();
        let head = parse(&bytes, &mut headers, &Limits::default())
            .unwrap()
            .unwrap();
        (head.plain, head.accept_encoding.map(<[u8]>::to_vec))
    };
    assert_eq!(
        plain("Accept-Encoding: gzip"),
        (true, Some(b"gzip".to_vec()))
    );
    assert_eq!(plain("X-If-Match: a"), (true, None));
    let fields = [
        "If-Match: a",
        "if-none-match: a",
        "If-Modified-Since: a",
        "IF-UNMODIFIED-SINCE: a",
        "If-Range: a",
        "Range: bytes=0-",
        "Content-Length: 1",
        "Expect: 100-continue",
    ];
    for field in fields {
        assert!(!plain(field).0, "{field}");
    }
}
