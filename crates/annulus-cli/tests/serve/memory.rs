//! The memory of `annulus serve http` for clients that do not read, and after their end.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::server::{BACKENDS, Server};

const CONNECTIONS: usize = 30;
/// The maximum number of streams on a connection.
const STREAMS: u32 = 100;
/// The limit for all connections: 10 KiB per stream. A piece of the file for each stream would be 190 MiB.
const GROWTH_BYTES_MAX: usize = 30 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

fn serve(dir: &TempDir, backend: &str) -> Server {
    fs::write(dir.path().join("large"), vec![b'x'; 3 << 20]).unwrap();
    let root = dir.path().to_str().unwrap();
    let address = ["--addr", "127.0.0.1:0", "--backend", backend];
    Server::start_as("http", &[&[root][..], &address].concat())
}

fn resident_bytes(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() << 10
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Opens a connection that requests a large file a hundred times, with windows of N bytes for each stream.
fn request_all(server: &Server, window: u32) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    bytes.extend(frame(SETTINGS, 0, 0, &settings));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
    for number in 0..STREAMS {
        let head = b"\x82\x86\x04\x06/large\x41\x01a";
        bytes.extend(frame(HEADERS, 5, 2 * number + 1, head));
    }
    stream.write_all(&bytes).unwrap();
    stream
}

/// Reads until all streams have a response, and a later ping has one.
fn await_responses(stream: &mut TcpStream) {
    let mut served = 0;
    let mut pinged = false;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let bytes = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        stream.read_exact(&mut vec![0; bytes]).unwrap();
        served += u32::from(head[3] == HEADERS);
        if served == STREAMS && !std::mem::replace(&mut pinged, true) {
            stream.write_all(&frame(PING, 0, 0, &[7; 8])).unwrap();
        }
        if pinged && head[3] == PING {
            return;
        }
    }
}

fn check_server(server: &Server) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got.len() > 3 << 20);
}

#[test]
fn streams_without_a_window_use_no_memory_for_their_files() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = serve(&dir, backend);
        check_server(&server);
        let before = resident_bytes(&server);
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| request_all(&server, 0)).collect();
        streams.iter_mut().for_each(await_responses);
        let growth = resident_bytes(&server) - before;
        assert!(growth < GROWTH_BYTES_MAX, "{backend}: {growth} bytes");
        drop(streams);
        let until = Instant::now() + TIMEOUT;
        // Caches of the allocator and of the server remain.
        while resident_bytes(&server) > before + (GROWTH_BYTES_MAX / 6) {
            let left = resident_bytes(&server) - before;
            assert!(
                Instant::now() < until,
                "{backend}: {left} of {growth} bytes"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        check_server(&server);
    }
}

#[test]
fn clients_with_large_windows_that_do_not_read_use_little_memory() {
    for backend in BACKENDS {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = serve(&dir, backend);
        check_server(&server);
        let before = resident_bytes(&server);
        let streams: Vec<_> = (0..CONNECTIONS)
            .map(|_| request_all(&server, (1 << 31) - 1))
            .collect();
        // The server still serves other clients. Afterwards it has processed all earlier requests.
        (0..20).for_each(|_| check_server(&server));
        let growth = resident_bytes(&server).saturating_sub(before);
        assert!(growth < GROWTH_BYTES_MAX, "{backend}: {growth} bytes");
        drop(streams);
    }
}
