//! Responses to one client: kept connections, pipelines, files, and clients that are slow or disconnect.

use std::io::Read;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use super::{Config, nginx};
use crate::server::until;

#[test]
fn a_connection_is_kept_for_many_requests() {
    let Some(nginx) = nginx(Config {
        server: "location /hello { return 200 $arg_n; }",
        ..Config::default()
    }) else {
        return;
    };
    let mut clients: Vec<_> = (0..5).map(|_| nginx.client()).collect();
    for n in 0..100 {
        for client in &mut clients {
            let response = client.get(&format!("/hello?n={n}"));
            assert_eq!(
                (response.status, response.text()),
                (200, n.to_string().as_str())
            );
            assert_eq!(response.header("Connection"), Some("keep-alive"));
        }
    }
    nginx.finish_served();
}

#[test]
fn pipelined_requests_are_served_in_order() {
    const REQUESTS: usize = 300;
    let Some(nginx) = nginx(Config {
        server: "location /hello { return 200 $arg_n; }",
        http: "keepalive_requests 100000;",
        ..Config::default()
    }) else {
        return;
    };
    let file = nginx.file("file", 1024);
    let mut client = nginx.client();
    let requests: String = (0..REQUESTS)
        .map(|n| match n % 3 {
            0 => "GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
            _ => format!("GET /hello?n={n} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        })
        .collect();
    client.send_raw(requests.as_bytes()).unwrap();
    for n in 0..REQUESTS {
        let response = client.read().unwrap();
        match n % 3 {
            0 => assert_eq!(response.body, file),
            _ => assert_eq!(response.text(), n.to_string()),
        }
    }
    nginx.finish_served();
}

#[test]
fn a_connection_without_keep_alive_ends_after_the_whole_response() {
    let Some(nginx) = nginx(Config::default()) else {
        return;
    };
    let (small, large) = (nginx.file("small", 1024), nginx.file("large", 3_000_000));
    for _ in 0..20 {
        let mut client = nginx.client();
        let response = client.get_with("/small", "Connection: close\r\n");
        assert_eq!(response.header("Connection"), Some("close"));
        assert!(response.body == small);
        client.assert_ended();
    }
    let mut client = nginx.client();
    assert!(client.get_with("/large", "Connection: close\r\n").body == large);
    client.assert_ended();
    nginx.finish_served();
}

/// nginx sends a file by `sendfile`, by reads and writes, or by a thread of its pool.
#[test]
fn files_arrive_unchanged_however_they_are_sent() {
    for http in [
        "sendfile on; tcp_nopush on;",
        "sendfile on; sendfile_max_chunk 100k;",
        "sendfile off; output_buffers 2 64k;",
        "sendfile on; aio threads;",
    ] {
        let config = Config {
            http,
            ..Config::default()
        };
        let Some(nginx) = nginx(config) else { return };
        let mut client = nginx.client();
        for (name, length) in [("small", 1024), ("middle", 70_000), ("large", 3_000_000)] {
            let file = nginx.file(name, length);
            for _ in 0..3 {
                let response = client.get(&format!("/{name}"));
                assert_eq!(response.status, 200, "{http}: {name}");
                assert_eq!(response.first_difference(&file), None, "{http}: {name}");
            }
        }
        let head = "HEAD /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.send_raw(head.as_bytes()).unwrap();
        client.stream().shutdown(Shutdown::Write).unwrap();
        let mut remaining = String::new();
        (&mut client.stream())
            .read_to_string(&mut remaining)
            .unwrap();
        assert!(
            remaining.contains("Content-Length: 3000000") && remaining.ends_with("\r\n\r\n"),
            "{remaining}"
        );
        nginx.finish_served();
    }
}

#[test]
fn ranges_of_a_file_match_the_request() {
    let Some(nginx) = nginx(Config::default()) else {
        return;
    };
    let file = nginx.file("large", 3_000_000);
    let mut client = nginx.client();
    for (range, from, to) in [
        ("0-0", 0, 1),
        ("1000-2000999", 1000, 2_001_000),
        ("2999000-", 2_999_000, 3_000_000),
        ("-5", 2_999_995, 3_000_000),
    ] {
        let response = client.get_with("/large", &format!("Range: bytes={range}\r\n"));
        assert_eq!(response.status, 206);
        assert!(response.body == file[from..to], "{range}");
    }
    let several = client.get_with("/large", "Range: bytes=5-9,100000-299999\r\n");
    assert_eq!(several.status, 206);
    let holds = |part: &[u8]| {
        several
            .body
            .windows(part.len())
            .any(|window| window == part)
    };
    assert!(holds(&file[5..10]) && holds(&file[100_000..300_000]));
    assert_eq!(
        client
            .get_with("/large", "Range: bytes=3000000-\r\n")
            .status,
        416
    );
    nginx.finish_served();
}

#[test]
fn slow_readers_get_everything_and_delay_no_other_client() {
    let Some(nginx) = nginx(Config::default()) else {
        return;
    };
    let file = nginx.file("large", 12_000_000);
    nginx.file("small", 100);
    let mut slow: Vec<_> = (0..3).map(|_| nginx.client()).collect();
    for client in &mut slow {
        client.send("/large", "").unwrap();
    }
    let mut other = nginx.client();
    for _ in 0..200 {
        assert_eq!(other.get("/small").body.len(), 100);
    }
    for mut client in slow {
        assert!(client.read().unwrap().body == file);
    }
    nginx.finish_served();
}

#[test]
fn requests_in_pieces_and_clients_that_disconnect_do_no_harm() {
    let Some(nginx) = nginx(Config {
        server: "location /hello { return 200 hello; }\nlocation = /status { stub_status; }",
        ..Config::default()
    }) else {
        return;
    };
    nginx.file("large", 3_000_000);
    let mut client = nginx.client();
    for byte in b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n" {
        client.send_raw(&[*byte]).unwrap();
        thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(client.read().unwrap().text(), "hello");
    for n in 0..30 {
        let mut leaving = nginx.client();
        match n % 3 {
            0 => leaving.send_raw(b"GET /hel").unwrap(),
            1 => leaving.send("/large", "").unwrap(),
            _ => {
                leaving.send("/large", "").unwrap();
                // Closing a socket with unread data resets the connection.
                leaving.stream().read_exact(&mut [0; 100]).unwrap();
            }
        }
    }
    until("nginx has forgotten them", || {
        let status = client.get("/status");
        status
            .text()
            .starts_with("Active connections: 1 ")
            .then_some(())
    });
    assert_eq!(client.get("/hello").text(), "hello");
    nginx.finish_served();
}
