//! The access log.

use std::fs;
use std::io::Write;

use annulus_http::{AccessLog, LogFormat};

use crate::frames;
use crate::server::{for_each_backend, respond, response, statuses};

#[test]
fn each_response_is_logged_by_the_end_of_the_server() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("access.log");
    for (format, expected) in [
        (LogFormat::Common, r#"] "GET /a HTTP/1.1" 200 13"#),
        (
            LogFormat::Combined,
            r#"] "GET /a HTTP/1.1" 200 13 "-" "me \x22\x5C""#,
        ),
        (
            LogFormat::Json,
            concat!(
                r#""method":"GET","target":"/a","protocol":"HTTP/1.1","#,
                r#""user_agent":"me \u0022\u005c","status":200,"bytes":13}"#
            ),
        ),
    ] {
        let mut options = respond();
        let log = AccessLog::open(&path, format).unwrap();
        options.log = Some(log.clone());
        fs::write(&path, "").unwrap();
        for_each_backend(&options, |server| {
            let one = "GET /a HTTP/1.1\r\nHost: a\r\nUser-Agent: me \"\\\r\n\r\n";
            let mut stream = server.connect();
            for _ in 0..500 {
                stream.write_all(one.as_bytes()).unwrap();
                response(&mut stream);
            }
            let wrong = server.exchange(b"GET / HTTP/7.0\r\n\r\n");
            assert_eq!(statuses(wrong.as_bytes()), [505]);
            let mut second = frames::connect(server, &[]);
            second.write_all(&frames::request(1, "/h2")).unwrap();
            frames::until(&mut second, frames::DATA).unwrap();
        });
        log.finish();
        let text = fs::read_to_string(&path).unwrap();
        let backends = text.matches("HTTP/2.0").count();
        assert!(backends >= 1, "{text}");
        assert_eq!(text.lines().count(), 502 * backends);
        assert_eq!(
            text.lines().filter(|line| line.ends_with(expected)).count(),
            500 * backends,
            "{text}"
        );
        assert_eq!(
            text.lines().filter(|line| line.contains("505")).count(),
            backends
        );
    }
}
