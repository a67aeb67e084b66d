//! nginx between a client and another server: one worker has two kinds of connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{Config, nginx};

/// Starts a server that echoes each request's body until its clients disconnect. Returns its port.
fn echo_bodies() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || echo_on(stream.unwrap()));
        }
    });
    port
}

fn echo_on(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        reader.get_mut().write_all(head.as_bytes()).ok()?;
        reader.get_mut().write_all(&body).ok()?;
    }
}

#[test]
fn a_post_reaches_the_upstream_and_its_response_returns() {
    let upstream = echo_bodies();
    let http = format!(
        "upstream back {{ server 127.0.0.1:{upstream}; keepalive 4; }}\nclient_max_body_size 20m;"
    );
    let proxied = "proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection '';";
    let server = format!(
        "location /buffered {{ {proxied} }}\n\
         location /direct {{ {proxied} proxy_request_buffering off; proxy_buffering off; }}"
    );
    let Some(nginx) = nginx(Config {
        http: &http,
        server: &server,
        ..Config::default()
    }) else {
        return;
    };
    let mut random = fastrand::Rng::with_seed(7);
    let mut client = nginx.client();
    for length in [0, 1, 1000, 70_000, 3_000_000, 9, 5000] {
        let mut body = vec![0; length];
        random.fill(&mut body);
        for path in ["/buffered", "/direct"] {
            let response = client.send_with_body("POST", path, &body);
            assert_eq!(response.status, 200);
            assert!(response.body == body, "{path}, {length} bytes");
        }
    }
    nginx.finish_served();
}

#[test]
fn many_clients_share_the_connections_to_an_upstream() {
    let upstream = echo_bodies();
    let http = format!("upstream back {{ server 127.0.0.1:{upstream}; keepalive 2; }}");
    let Some(nginx) = nginx(Config {
        http: &http,
        server: "location / { proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection ''; }",
        ..Config::default()
    }) else {
        return;
    };
    let clients: Vec<_> = (0..10)
        .map(|n| {
            let mut client = nginx.client();
            thread::spawn(move || {
                for i in 0..30 {
                    let body = format!("{n} {i} ").repeat(1 + i * 7);
                    assert_eq!(
                        client.send_with_body("POST", "/", body.as_bytes()).text(),
                        body
                    );
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    nginx.finish_served();
}

#[test]
fn an_upstream_that_is_missing_or_disconnects_gives_an_error_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let goes = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // With the request unread, this is a reset.
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; 10]).unwrap();
        }
    });
    let nowhere = crate::server::free_port();
    let server = format!(
        "location /goes {{ proxy_pass http://127.0.0.1:{goes}; }}\n\
         location /nowhere {{ proxy_pass http://127.0.0.1:{nowhere}; }}"
    );
    let Some(nginx) = nginx(Config {
        server: &server,
        ..Config::default()
    }) else {
        return;
    };
    let mut client = nginx.client();
    for _ in 0..10 {
        assert_eq!(client.get("/goes").status, 502);
        assert_eq!(client.get("/nowhere").status, 502);
    }
    nginx.finish_served();
}

/// The client has sent its request, and the upstream needs time: no thread may wake up meanwhile.
#[test]
fn a_client_that_has_ended_its_side_costs_nothing_while_its_response_is_pending() {
    /// Far more than nginx needs to start, respond and exit, and far fewer than a busy loop makes.
    const ENTERS_MAX: u64 = 500;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0; 10]).unwrap();
            thread::sleep(Duration::from_millis(500));
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate";
            stream.write_all(response).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let server = format!(
        "location / {{ proxy_ignore_client_abort on; proxy_pass http://127.0.0.1:{slow}; }}"
    );
    let Some(nginx) = nginx(Config {
        server: &server,
        ..Config::default()
    }) else {
        return;
    };
    let mut client = nginx.client();
    client.send("/", "").unwrap();
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read().unwrap().text(), "late");
    let stats = nginx.server.finish();
    stats.assert_served();
    assert!(stats.enters() < ENTERS_MAX, "{stats:?}");
}
