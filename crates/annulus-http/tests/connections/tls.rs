//! HTTPS: both versions of HTTP, and connections that do not speak TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_http::Options;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::server::{
    BODY, PATIENCE, Server, for_each_backend, respond, response, status, statuses,
};

/// Returns a server's options, and a configuration for clients that trust it.
pub(crate) fn certified() -> (Options, Arc<ClientConfig>) {
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let dir: TempDir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    fs::write(&cert, certificate.cert.pem()).unwrap();
    fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    let mut options = respond();
    options.tls = Some(annulus_http::tls_config(&cert, &key).unwrap());
    options.limits.handshake_timeout = Duration::from_millis(500);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (options, Arc::new(config))
}

pub(crate) fn connect(
    server: &Server,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(connection, server.connect())
}

#[test]
fn requests_are_served_over_tls_as_over_tcp() {
    let (options, config) = certified();
    for_each_backend(&options, |server| {
        let mut stream = connect(server, &config);
        for _ in 0..100 {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            assert_eq!(response(&mut stream).1, BODY.as_bytes());
        }
        let all = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1999) + "GET / HTTP/1.0\r\n\r\n";
        stream.write_all(all.as_bytes()).unwrap();
        let mut received = Vec::new();
        // The server ends with `close_notify`.
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(statuses(&received), [200; 2000]);
        let mut stream = connect(server, &config);
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert_eq!(statuses(&received), [200]);
    });
}

/// The server waits for each send over TLS, with another time limit.
#[test]
fn a_body_has_its_whole_time_after_the_interim_response() {
    let (options, config) = certified();
    for_each_backend(&options, |server| {
        let mut stream = connect(server, &config);
        let head = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(status(&response(&mut stream).0), 100);
        // Many ticks, and a small part of the body timeout.
        std::thread::sleep(Duration::from_secs(1));
        stream.write_all(b"12345").unwrap();
        assert_eq!(status(&response(&mut stream).0), 200);
    });
}

#[test]
fn a_client_that_offers_http2_gets_it() {
    let (options, config) = certified();
    for_each_backend(&options, |server| {
        for (offered, chosen) in [
            (vec!["h2", "http/1.1"], Some("h2")),
            (vec!["http/1.1"], Some("http/1.1")),
            (vec![], None),
        ] {
            let mut config = ClientConfig::clone(&config);
            config.alpn_protocols = offered
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect();
            let mut stream = connect(server, &Arc::new(config));
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            let received = stream
                .conn
                .alpn_protocol()
                .map(|name| String::from_utf8_lossy(name).into_owned());
            assert_eq!(received.as_deref(), chosen);
            if chosen == Some("h2") {
                stream
                    .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                    .unwrap();
                let mut head = [0; 9];
                stream.read_exact(&mut head).unwrap();
                assert_eq!(head[3], 4, "the server's settings");
            }
        }
    });
}

#[test]
fn connections_that_do_not_speak_tls_or_stall_are_closed() {
    let (options, config) = certified();
    for_each_backend(&options, |server| {
        let cases: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            &[0; 1000],
            &[0xff; 1000],
            b"\x16\x03\x01\xff\xff",
            b"\x16\x03\x01\0\x05\x01\0\0\x01\0",
            b"",
        ];
        for bytes in cases {
            let began = Instant::now();
            let mut stream = server.connect();
            stream.write_all(bytes).unwrap();
            // There may be an alert, followed by the end, or by a reset if bytes were left.
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received);
            assert!(received.len() < 100, "{received:?}");
            assert!(began.elapsed() < PATIENCE / 2, "{bytes:?}");
        }
        let mut stream = connect(server, &config);
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        assert_eq!(response(&mut stream).1, BODY.as_bytes());
    });
}

#[test]
fn a_client_with_a_small_buffer_that_reads_steadily_is_served_for_many_send_timeouts() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    const TIMEOUTS: u32 = 8;
    /// In bytes per timeout. The client's kernel closes the window until 64 KiB are read, on a loopback device.
    const RATE: usize = 50_000;
    let (mut options, config) = certified();
    options.limits.send_timeout = TIMEOUT;
    options.site.respond = Some((http::StatusCode::OK, vec![0; 8 << 20].into()));
    for_each_backend(&options, |server| {
        let mut stream = connect(server, &config);
        set_socket_recv_buffer_size(&stream.sock, 64 << 10).unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let began = Instant::now();
        let mut received = 0;
        let mut piece = vec![0; RATE / 50];
        while began.elapsed() < TIMEOUT * TIMEOUTS {
            let bytes = stream.read(&mut piece).unwrap();
            assert!(bytes > 0, "closed after {received} bytes");
            received += bytes;
            let due = TIMEOUT.mul_f64(received as f64 / RATE as f64);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
    });
}

/// The content type of an alert record.
const ALERT: u8 = 21;
/// More bytes than the server reads before it detects the error.
const FOLLOWING: usize = 100_000;

#[test]
fn a_connection_that_does_not_speak_tls_gets_an_alert() {
    let (options, _) = certified();
    for_each_backend(&options, |server| {
        for begins in [
            &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            b"\x16\x03\x01\0\x05\x01\0\0\x01\0",
        ] {
            let mut stream = server.connect();
            stream
                .write_all(&[begins, &[b'x'; FOLLOWING]].concat())
                .unwrap();
            let mut received = Vec::new();
            // An orderly end: a reset could have overtaken the alert.
            stream.read_to_end(&mut received).unwrap();
            assert_eq!(received.first(), Some(&ALERT), "{begins:?}: {received:?}");
        }
    });
}

#[test]
fn a_modified_record_gets_an_alert() {
    let (options, config) = certified();
    for_each_backend(&options, |server| {
        for after_a_request in [false, true] {
            let mut stream = connect(server, &config);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            if after_a_request {
                stream
                    .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                    .unwrap();
                assert_eq!(response(&mut stream).1, BODY.as_bytes());
            }
            let record = [&b"\x17\x03\x03\0\x20"[..], &[7; 32], &[7; FOLLOWING]].concat();
            stream.sock.write_all(&record).unwrap();
            let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains("BadRecordMac"),
                "{after_a_request}: {message}"
            );
        }
    });
}

#[test]
fn an_invalid_certificate_or_key_file_is_named_in_the_error() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key, wrong) = (
        dir.path().join("c"),
        dir.path().join("k"),
        dir.path().join("w"),
    );
    fs::write(&cert, certificate.cert.pem()).unwrap();
    fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    fs::write(&wrong, "nothing").unwrap();
    let missing = dir.path().join("missing");
    for (cert, key, named) in [
        (&wrong, &key, &wrong),
        (&cert, &wrong, &wrong),
        (&missing, &key, &missing),
        (&cert, &missing, &missing),
    ] {
        let error = annulus_http::tls_config(cert, key).unwrap_err().to_string();
        assert!(
            error.contains(&named.display().to_string()) && error.contains("PEM"),
            "{error}"
        );
    }
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    let error = annulus_http::tls_config(&cert, &key)
        .unwrap_err()
        .to_string();
    assert!(error.contains("key of that certificate"), "{error}");
}
