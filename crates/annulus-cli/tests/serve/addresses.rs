//! The addresses of `serve http`: hosts, paths, and sockets from systemd.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::server::{BACKENDS, Server, TIMEOUT, behind, command_as};

fn args<'a>(addr: &'a str, backend: &'a str) -> [&'a str; 8] {
    let fixed = ["--respond", "200"];
    [
        "--addr",
        addr,
        "--threads",
        "2",
        "--backend",
        backend,
        fixed[0],
        fixed[1],
    ]
}

fn request(mut stream: impl Read + Write) -> String {
    let request = b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut got = String::new();
    stream.read_to_string(&mut got).unwrap();
    got
}

fn request_tcp(address: SocketAddr) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    request(stream)
}

fn request_unix(path: &str) -> String {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    request(stream)
}

fn end(server: Server) {
    server.signal(Signal::TERM);
    let (status, error) = server.wait();
    assert_eq!(status.code(), Some(0), "{error}");
}

/// Returns the message of a command that fails with `code`.
fn refused(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{error}");
    error
}

#[test]
fn the_server_listens_on_each_address_of_a_host_at_one_port() {
    for backend in BACKENDS {
        let server = Server::start_as("http", &args("localhost:0", backend));
        let port = server.address().port();
        // The resolver returns 127.0.0.1, ::1 or both.
        let resolved = std::net::ToSocketAddrs::to_socket_addrs(&("localhost", port)).unwrap();
        let mut count = 0;
        for address in resolved {
            let here = TcpListener::bind(SocketAddr::new(address.ip(), 0));
            if here.is_ok() {
                assert!(request_tcp(address).ends_with("Hello, World!"), "{address}");
                count += 1;
            }
        }
        assert!(count > 0);
        server.signal(Signal::TERM);
    }
}

#[test]
fn an_unknown_host_is_refused_with_its_name() {
    // A name that never exists (RFC 6761).
    let error = refused(command_as("http", &args("nowhere.invalid:80", "auto")), 1);
    assert!(error.contains("nowhere.invalid"), "{error}");
    let error = refused(command_as("http", &args("localhost", "auto")), 2);
    assert!(error.contains("port is missing"), "{error}");
    let error = refused(command_as("http", &args("::1:80", "auto")), 2);
    assert!(error.contains("brackets"), "{error}");
}

#[test]
fn a_unix_socket_serves_and_is_removed_at_the_end() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("http");
        fs::write(dir.path().join("large"), vec![b'x'; 3 << 20]).unwrap();
        // A stale socket is replaced.
        drop(UnixListener::bind(&path).unwrap());
        let path = path.to_str().unwrap();
        let addr = format!("unix:{path}");
        let log = dir.path().join("log");
        let root = dir.path().to_str().unwrap();
        let common = ["--addr", &addr, "--threads", "2", "--backend", backend];
        let files = [root, "--listing", "--access-log", log.to_str().unwrap()];
        let server = Server::start_as("http", &[&common[..], &files].concat());
        assert_eq!(server.address, addr);
        for _ in 0..8 {
            assert!(request_unix(path).starts_with("HTTP/1.1 404 "));
            let mut stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            // A cached response, then a file that is sent within the kernel.
            for name in ["", "large", "large"] {
                let request = format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n");
                stream.write_all(request.as_bytes()).unwrap();
                let mut got = Vec::new();
                let head_end = loop {
                    let mut piece = vec![0; 64 << 10];
                    let bytes = stream.read(&mut piece).unwrap();
                    assert!(bytes > 0);
                    got.extend_from_slice(&piece[..bytes]);
                    if let Some(at) = got.windows(4).position(|four| four == b"\r\n\r\n") {
                        break at + 4;
                    }
                };
                let head = String::from_utf8_lossy(&got[..head_end]).to_lowercase();
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
                let mut rest = vec![0; length - (got.len() - head_end)];
                stream.read_exact(&mut rest).unwrap();
            }
        }
        let error = refused(command_as("http", &args(&addr, backend)), 1);
        assert!(error.contains("another process does"), "{error}");
        end(server);
        assert!(!fs::exists(path).unwrap());
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!(text.lines().count(), 32, "{text}");
        assert!(
            text.lines().all(|line| line.starts_with("- - - [")),
            "{text}"
        );
    }
}

/// Returns a server that is started like a systemd service: its sockets are the descriptors from 3 on, here `count`
/// duplicates of one socket.
fn passed(socket: OwnedFd, count: usize, backend: &str) -> Command {
    let copies: String = (3..3 + count)
        .map(|number| format!("exec {number}<&0; "))
        .collect();
    let first = format!("{copies} exec </dev/null; export LISTEN_FDS={count} LISTEN_PID=$$");
    let mut command = behind(&first, "http", &args("systemd", backend));
    command.stdin(Stdio::from(socket));
    command
}

#[test]
fn the_server_listens_on_sockets_from_systemd() {
    for backend in BACKENDS {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let server = Server::start_of(passed(tcp.into(), 2, backend));
        assert_eq!(server.address(), address);
        for _ in 0..8 {
            assert!(request_tcp(address).ends_with("Hello, World!"));
        }
        server.signal(Signal::TERM);
        let (status, error, rest) = server.wait_and_read();
        assert_eq!(status.code(), Some(0), "{error}");
        assert_eq!(
            rest,
            format!("listening on {address}\n"),
            "a line for each socket"
        );

        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("http");
        let unix = UnixListener::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        let server = Server::start_of(passed(unix.into(), 1, backend));
        assert_eq!(server.address, format!("unix:{path}"));
        for _ in 0..8 {
            assert!(request_unix(path).ends_with("Hello, World!"));
        }
        end(server);
        assert!(fs::exists(path).unwrap(), "the path belongs to systemd");
    }
}

#[test]
fn passed_descriptors_that_are_not_listeners_are_refused() {
    let mut nothing = command_as("http", &args("systemd", "auto"));
    nothing.env_remove("LISTEN_FDS");
    let error = refused(nothing, 2);
    assert!(error.contains("no socket was passed"), "{error}");
    let mut closed = command_as("http", &args("systemd", "auto"));
    closed.env("LISTEN_FDS", "1").env_remove("LISTEN_PID");
    // No descriptor of the server itself is taken for it.
    let error = refused(closed, 2);
    assert!(error.contains("is not a stream listener"), "{error}");
    let (near, _far) = UnixStream::pair().unwrap();
    let error = refused(passed(near.into(), 1, "auto"), 2);
    assert!(error.contains("does not listen"), "{error}");
    let file = fs::File::open("/dev/null").unwrap();
    let error = refused(passed(file.into(), 1, "auto"), 2);
    assert!(error.contains("is not a stream listener"), "{error}");
}
