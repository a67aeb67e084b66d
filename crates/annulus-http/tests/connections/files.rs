//! Bodies from files of every size, and files that change while they are sent.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use annulus_http::Options;
use annulus_http::site::SiteOptions;
use tempfile::TempDir;

use crate::server::{Server, for_each_backend, length, respond, response, rest, status};

/// Sizes around those at which the way of sending changes.
const SIZES: [usize; 9] = [
    0,
    1,
    1024,
    65_535,
    65_536,
    65_537,
    300_000,
    1 << 20,
    9_000_001,
];

fn content(seed: usize, bytes: usize) -> Vec<u8> {
    annulus_testing::pattern::bytes(seed as u64, 0, bytes)
}

fn folder() -> TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for bytes in SIZES {
        fs::write(dir.path().join(bytes.to_string()), content(bytes, bytes)).unwrap();
    }
    dir
}

fn serving(dir: &TempDir) -> Options {
    let mut options = respond();
    options.site = SiteOptions::default();
    options.site.root = dir.path().to_owned();
    options.site.recheck = Duration::from_millis(1);
    options
}

fn get(path: &str, more: &str) -> Vec<u8> {
    format!("GET /{path} HTTP/1.1\r\nHost: a\r\n{more}\r\n").into_bytes()
}

/// Requests a file and checks the whole body.
fn check_file(stream: &mut TcpStream, bytes: usize, round: usize) {
    stream.write_all(&get(&bytes.to_string(), "")).unwrap();
    let (head, body) = response(stream);
    assert_eq!(status(&head), 200);
    assert!(
        body == content(bytes, bytes),
        "{bytes} bytes, round {round}"
    );
}

#[test]
fn files_of_every_size_are_sent_completely_and_in_order() {
    let dir = folder();
    for_each_backend(&serving(&dir), |server| {
        let mut stream = server.connect();
        for round in 0..2 {
            for bytes in SIZES {
                check_file(&mut stream, bytes, round);
            }
        }
        // The same, pipelined.
        let all: Vec<u8> = SIZES
            .iter()
            .flat_map(|bytes| get(&bytes.to_string(), ""))
            .collect();
        stream.write_all(&all).unwrap();
        for bytes in SIZES {
            assert!(
                response(&mut stream).1 == content(bytes, bytes),
                "{bytes} bytes, pipelined"
            );
        }
    });
}

#[test]
fn open_files_are_sent_completely_and_in_order_from_memory_and_from_the_disk() {
    let dir = folder();
    let mut options = serving(&dir);
    options.site.recheck = Duration::from_secs(100);
    // Files that were changed recently are checked again, so wait until they are old enough.
    std::thread::sleep(Duration::from_millis(2_100));
    for_each_backend(&options, |server| {
        let mut stream = server.connect();
        for round in 0..4 {
            for bytes in SIZES {
                let path = dir.path().join(bytes.to_string());
                if round == 2 {
                    drop_from_page_cache(&path);
                }
                check_file(&mut stream, bytes, round);
            }
        }
        let lengths = [300_000, 1024, 65_536, 0, 9_000_001, 1 << 20];
        let mut all: Vec<u8> = lengths
            .iter()
            .flat_map(|bytes| get(&bytes.to_string(), ""))
            .collect();
        all.extend(b"HEAD /300000 HTTP/1.1\r\nHost: a\r\n\r\n");
        all.extend(get("65537", "Connection: close\r\n"));
        stream.write_all(&all).unwrap();
        for bytes in lengths {
            let (head, body) = response(&mut stream);
            assert!(body == content(bytes, bytes), "{bytes} bytes: {head}");
        }
        let mut left = Vec::new();
        stream.read_to_end(&mut left).unwrap();
        let head_end = left
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap()
            + 4;
        let (head, left) = left.split_at(head_end);
        assert_eq!(length(str::from_utf8(head).unwrap()), 300_000);
        let (head, body) = response(&mut &*left);
        assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
        assert!(left.ends_with(&body) && body == content(65_537, 65_537));
    });
}

/// Removes a file from the page cache, if its file system has a disk.
fn drop_from_page_cache(path: &Path) {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn ranges_are_parts_of_the_file_and_head_has_no_body() {
    let dir = folder();
    for_each_backend(&serving(&dir), |server| {
        let mut stream = server.connect();
        for (range, from, to) in [
            ("0-0", 0, 1),
            ("1000-299999", 1000, 300_000),
            ("-70000", 230_000, 300_000),
        ] {
            stream
                .write_all(&get("300000", &format!("Range: bytes={range}\r\n")))
                .unwrap();
            let (head, body) = response(&mut stream);
            assert_eq!(status(&head), 206, "{head}");
            assert!(body == content(300_000, 300_000)[from..to], "{range}");
        }
        stream
            .write_all(&get("300000", "Range: bytes=0-9,100000-199999\r\n"))
            .unwrap();
        let (head, body) = response(&mut stream);
        assert!(head.contains("multipart/byteranges"), "{head}");
        let part = &content(300_000, 300_000)[100_000..200_000];
        assert!(body.windows(part.len()).any(|window| window == part));
        let head = b"HEAD /9000001 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(head).unwrap();
        let head = rest(&mut stream);
        assert_eq!(length(&head), 9_000_001);
        assert!(head.ends_with("\r\n\r\n"));
    });
}

#[test]
fn a_client_that_reads_slowly_gets_the_whole_file() {
    let dir = folder();
    for_each_backend(&serving(&dir), |server| {
        let mut stream = server.connect();
        stream
            .write_all(&get("9000001", "Connection: close\r\n"))
            .unwrap();
        let mut received = Vec::new();
        let mut piece = vec![0; 100_000];
        loop {
            let read = stream.read(&mut piece).unwrap();
            if read == 0 {
                break;
            }
            received.extend_from_slice(&piece[..read]);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(received.ends_with(&content(9_000_001, 9_000_001)));
    });
}

/// Returns the announced and the received length of a body.
fn body_bytes(server: &Server, path: &str, meanwhile: impl FnOnce()) -> (usize, usize) {
    let mut stream = server.connect();
    stream.write_all(&get(path, "")).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let announced = length(&String::from_utf8(head).unwrap());
    meanwhile();
    let mut received = 0;
    let mut sink = vec![0; 1 << 16];
    while let Ok(read @ 1..) = stream.read(&mut sink) {
        received += read;
    }
    (announced, received)
}

#[test]
fn a_file_truncated_while_it_is_sent_ends_its_connection_early() {
    const BYTES: usize = 64 << 20;
    let dir = folder();
    let path = dir.path().join("cut");
    for_each_backend(&serving(&dir), |server| {
        fs::write(&path, vec![7; BYTES]).unwrap();
        let cut = || {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(1 << 20).unwrap();
        };
        let (announced, received) = body_bytes(server, "cut", cut);
        assert_eq!(announced, BYTES);
        assert!(received < BYTES, "more than the file had");
        let mut stream = server.connect();
        stream.write_all(&get("65537", "")).unwrap();
        assert_eq!(response(&mut stream).1.len(), 65_537, "others are served");
    });
}

#[test]
fn clients_that_disconnect_within_a_file_do_not_affect_others() {
    let dir = folder();
    for_each_backend(&serving(&dir), |server| {
        for _ in 0..50 {
            let mut stream = server.connect();
            stream.write_all(&get("9000001", "")).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
        }
        let mut stream = server.connect();
        stream.write_all(&get("1", "")).unwrap();
        assert_eq!(response(&mut stream).1.len(), 1);
    });
}
