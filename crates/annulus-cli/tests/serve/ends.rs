//! Tests of the end of a server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;

use rustix::process::Signal;

use crate::server::{BACKENDS, Server, command};

#[test]
fn a_signal_ends_a_server_in_order_despite_open_connections() {
    for backend in BACKENDS {
        for signal in [Signal::INT, Signal::TERM] {
            let args = [
                "--addr",
                "127.0.0.1:0",
                "--threads",
                "2",
                "--backend",
                backend,
            ];
            let server = Server::start(&args);
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            server.signal(signal);
            let (status, error) = server.wait();
            assert_eq!(status.code(), Some(0), "{backend}: {error}");
            // The only line is the backend with its reason.
            assert_eq!(error.lines().count(), 1, "{error}");
            let name = if backend == "epoll" {
                "annulus: epoll, as configured"
            } else {
                "annulus: "
            };
            assert!(error.starts_with(name), "{error}");
            assert_eq!(
                stream.read(&mut [0]).unwrap_or(0),
                0,
                "the connection is closed"
            );
        }
    }
}

#[test]
fn a_killed_server_can_be_restarted_at_its_address_immediately() {
    for backend in BACKENDS {
        let mut address = "127.0.0.1:0".to_owned();
        for _ in 0..3 {
            let args = ["--addr", &address, "--threads", "2", "--backend", backend];
            let server = Server::start(&args);
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            address = server.address().to_string();
            // The connection is still open, so the kernel keeps the address for a moment.
            server.signal(Signal::KILL);
            server.wait();
        }
    }
}

#[test]
fn a_path_is_removed_at_the_end_and_a_stale_one_is_replaced() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("echo");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the socket is stale");
    let text = path.to_str().unwrap();
    let server = Server::start(&["--unix", text]);
    let taken = command(&["--unix", text]).output().unwrap();
    let error = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert_eq!(taken.status.code(), Some(1), "{error}");
    assert!(error.contains("another process does"), "{error}");
    server.signal(Signal::TERM);
    let (status, error) = server.wait();
    assert_eq!(status.code(), Some(0), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_path_with_another_file_is_not_removed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("echo");
    let server = Server::start(&["--unix", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"mine").unwrap();
    server.signal(Signal::TERM);
    server.wait();
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}
