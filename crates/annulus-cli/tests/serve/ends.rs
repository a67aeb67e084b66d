//! Tests of the end of a server.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;

use crate::server::{BACKENDS, Server, TIMEOUT, command, command_as};

/// Returns an output that accepts nothing: a pipe without a reader, or a full device.
fn unusable(full: bool) -> Stdio {
    match full {
        true => OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap()
            .into(),
        false => io::pipe().unwrap().1.into(),
    }
}

#[test]
fn a_server_goes_on_if_its_outputs_are_closed_or_full() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for protocol in ["echo", "http"] {
        for full in [false, true] {
            // A killed server may hold its socket a little longer.
            let path = dir.path().join(format!("{protocol}-{full}"));
            let unix = format!("unix:{}", path.display());
            let mut command = match protocol {
                "echo" => command_as(protocol, &["--unix", path.to_str().unwrap()]),
                _ => command_as(protocol, &["--addr", &unix, "--respond", "200"]),
            };
            let started = command
                .stdout(unusable(full))
                .stderr(unusable(full))
                .spawn();
            let mut child = started.unwrap();
            let until = Instant::now() + TIMEOUT;
            let mut stream = loop {
                if let Ok(stream) = UnixStream::connect(&path) {
                    break stream;
                }
                let status = child.try_wait().unwrap();
                assert!(status.is_none(), "{protocol}, full: {full}: {status:?}");
                assert!(Instant::now() < until, "{protocol} does not listen");
                std::thread::sleep(std::time::Duration::from_millis(5));
            };
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let mut first = [0; 5];
            let read = stream.read_exact(&mut first);
            let (killed, _) = (child.kill(), child.wait());
            killed.unwrap();
            assert!(read.is_ok(), "{protocol}, full: {full}: {read:?}");
            let expected: &[u8] = if protocol == "http" {
                b"HTTP/"
            } else {
                b"GET /"
            };
            assert_eq!(first, expected);
        }
    }
}

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
                "annulus: epoll and blocking threads, as configured"
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
