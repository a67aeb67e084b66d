//! Tests of the echo server.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::server::{BACKENDS, Server};

/// More than the socket buffers on the way hold.
const BYTES: usize = 8 << 20;

fn pattern() -> Vec<u8> {
    annulus_testing::pattern::bytes(0, 0, BYTES)
}

/// Sends all bytes while another thread reads them back.
fn echoes(mut reader: impl Read + Send, mut writer: impl Write, end: impl FnOnce()) {
    let sent = pattern();
    std::thread::scope(|scope| {
        let reads = scope.spawn(move || {
            let mut got = Vec::new();
            reader.read_to_end(&mut got).unwrap();
            got
        });
        writer.write_all(&sent).unwrap();
        end();
        assert!(reads.join().unwrap() == sent, "the echo differs");
    });
}

#[test]
fn tcp_is_echoed_on_every_backend() {
    for backend in BACKENDS {
        let server = Server::start(&["--addr", "127.0.0.1:0", "--backend", backend]);
        let stream = TcpStream::connect(server.address()).unwrap();
        echoes(&stream, &stream, || {
            stream.shutdown(Shutdown::Write).unwrap()
        });
    }
}

#[test]
fn several_cores_serve_one_address() {
    for backend in BACKENDS {
        let args = [
            "--addr",
            "127.0.0.1:0",
            "--threads",
            "3",
            "--backend",
            backend,
        ];
        let server = Server::start(&args);
        let streams: Vec<TcpStream> = (0..64)
            .map(|_| TcpStream::connect(server.address()).unwrap())
            .collect();
        for (round, mut stream) in streams.iter().enumerate() {
            let sent = [round as u8; 100];
            stream.write_all(&sent).unwrap();
            let mut got = [0; 100];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(got, sent);
        }
    }
}

#[test]
fn a_unix_socket_is_echoed_by_each_core() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("echo");
        let args = ["--threads", "2", "--backend", backend, "--unix"];
        let args = [&args[..], &[path.to_str().unwrap()]].concat();
        let server = Server::start(&args);
        assert_eq!(server.address, format!("unix:{}", path.display()));
        for _ in 0..4 {
            let stream = UnixStream::connect(&path).unwrap();
            echoes(&stream, &stream, || {
                stream.shutdown(Shutdown::Write).unwrap()
            });
        }
    }
}

#[test]
fn datagrams_of_all_lengths_are_echoed_to_their_senders() {
    for backend in BACKENDS {
        let args = ["--udp", "--addr", "127.0.0.1:0", "--threads", "2"];
        let server = Server::start(&[&args[..], &["--backend", backend]].concat());
        for bytes in [0, 1, 1472, 9000, 65_507] {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            socket.connect(server.address()).unwrap();
            let sent = vec![bytes as u8; bytes];
            socket.send(&sent).unwrap();
            let mut got = vec![0xee; 65_536];
            let received = socket.recv(&mut got).unwrap();
            assert!(got[..received] == sent, "{backend}: {bytes} bytes");
        }
    }
}

#[test]
fn sqpoll_is_used_or_the_reason_against_it_is_reported() {
    let server = Server::start(&["--addr", "127.0.0.1:0", "--sqpoll"]);
    let stream = TcpStream::connect(server.address()).unwrap();
    echoes(&stream, &stream, || {
        stream.shutdown(Shutdown::Write).unwrap()
    });
    drop(stream);
    server.signal(rustix::process::Signal::TERM);
    let (status, error) = server.wait();
    assert_eq!(status.code(), Some(0), "{error}");
    let used = error.contains("a kernel thread polls the submission queues");
    let refused = error.contains("without sqpoll") || error.contains("epoll and blocking threads");
    assert!(used || refused, "{error}");
}
