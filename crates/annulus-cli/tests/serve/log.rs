//! The access log of `serve http`: an idle server, rotation, and files that cannot be written.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{BACKENDS, Server, TIMEOUT, behind};

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn serve(log: &Path, backend: &str) -> Server {
    let log = log.to_str().unwrap();
    let common = ["--addr", "127.0.0.1:0", "--backend", backend];
    let fixed = ["--respond", "200", "--access-log", log];
    Server::start_as("http", &[&common[..], &fixed].concat())
}

/// Requests each path over one connection, and closes it.
fn request(server: &Server, paths: &[&str]) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    for path in paths {
        let head = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"Hello, World!") {
            let mut piece = [0; 1024];
            let bytes = stream.read(&mut piece).unwrap();
            assert!(bytes > 0, "{}", String::from_utf8_lossy(&response));
            response.extend_from_slice(&piece[..bytes]);
        }
    }
}

/// Returns the text of a file as soon as it matches.
fn text_when(path: &Path, matches: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + TIMEOUT;
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if matches(&text) {
            return text;
        }
        assert!(Instant::now() < until, "{}: {text:?}", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn fifo(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
    path
}

/// Opens a FIFO for reading, without waiting for a writer.
fn reader(path: &Path) -> File {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.unwrap()
}

/// Ends a server, and returns its standard error.
fn ended(server: Server) -> String {
    server.signal(Signal::TERM);
    let (status, error) = server.wait();
    assert_eq!(status.code(), Some(0), "{error}");
    error
}

/// Returns the number of lost lines that the server has reported.
fn lost_lines(error: &str) -> usize {
    let counts = error.lines().filter_map(|line| {
        let (before, _) = line.split_once(" lines are lost")?;
        before.rsplit(' ').next()?.parse::<usize>().ok()
    });
    counts.sum()
}

#[test]
fn a_line_is_written_while_no_connection_is_open() {
    for backend in BACKENDS {
        let dir = folder();
        let log = dir.path().join("log");
        let server = serve(&log, backend);
        for number in 1..=3 {
            request(&server, &["a"]);
            text_when(&log, |text| text.lines().count() == number);
        }
        ended(server);
    }
}

#[test]
fn usr1_reopens_a_renamed_log() {
    for backend in BACKENDS {
        let dir = folder();
        let (log, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let server = serve(&log, backend);
        request(&server, &["first"]);
        text_when(&log, |text| text.ends_with('\n'));
        fs::rename(&log, &old).unwrap();
        server.signal(Signal::USR1);
        text_when(&log, |_| log.exists());
        request(&server, &["second"]);
        let text = text_when(&log, |text| text.ends_with('\n'));
        assert!(
            text.contains("/second") && text.lines().count() == 1,
            "{text}"
        );
        assert!(!fs::read_to_string(&old).unwrap().contains("/second"));
        // If the file cannot be reopened, the old one stays in use.
        fs::remove_file(&log).unwrap();
        fs::create_dir(&log).unwrap();
        server.signal(Signal::USR1);
        request(&server, &["third"]);
        let error = ended(server);
        assert!(error.contains("the old file stays in use"), "{error}");
    }
}

#[test]
fn usr1_does_not_end_a_server_without_a_log() {
    for backend in BACKENDS {
        let args = [
            "--addr",
            "127.0.0.1:0",
            "--respond",
            "200",
            "--backend",
            backend,
        ];
        let server = Server::start_as("http", &args);
        server.signal(Signal::USR1);
        request(&server, &["a"]);
        ended(server);
    }
}

#[test]
fn a_fifo_without_a_reader_delays_neither_start_nor_responses_nor_the_end() {
    for backend in BACKENDS {
        let dir = folder();
        let server = serve(&fifo(&dir), backend);
        request(&server, &["a", "b", "c"]);
        let error = ended(server);
        assert_eq!(lost_lines(&error), 3, "{error}");
    }
}

#[test]
fn a_fifo_gets_its_lines_as_soon_as_it_has_a_reader() {
    for backend in BACKENDS {
        let dir = folder();
        let path = fifo(&dir);
        let server = serve(&path, backend);
        request(&server, &["early"]);
        let mut reader = File::open(&path).unwrap();
        let mut line = [0; 1024];
        let bytes = reader.read(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..bytes]);
        assert!(line.contains("/early") && line.ends_with('\n'), "{line}");
        drop(reader);
        // The reader has closed the FIFO, and another one opens it.
        request(&server, &["late"]);
        let mut reader = File::open(&path).unwrap();
        let error = ended(server);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("/late"), "{rest} {error}");
        assert_eq!(lost_lines(&error), 0, "{error}");
    }
}

#[test]
fn a_full_fifo_only_loses_lines_and_they_are_counted() {
    for backend in BACKENDS {
        let dir = folder();
        let path = fifo(&dir);
        let mut reader = reader(&path);
        let server = serve(&path, backend);
        let long = "x".repeat(2000);
        let paths = vec![long.as_str(); 1000];
        // More than the pipe and the line buffer hold.
        request(&server, &paths);
        let error = ended(server);
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        let whole = got.iter().filter(|byte| **byte == b'\n').count();
        assert!(whole > 0 && whole < 1000, "{whole} {error}");
        assert_eq!(whole + lost_lines(&error), 1000, "{error}");
    }
}

#[test]
fn a_full_disk_only_loses_lines_and_they_are_counted() {
    for backend in BACKENDS {
        let server = serve(Path::new("/dev/full"), backend);
        request(&server, &["a", "b"]);
        let error = ended(server);
        assert!(error.contains("No space left"), "{error}");
        assert_eq!(lost_lines(&error), 2, "{error}");
    }
}

#[test]
fn a_log_at_the_file_size_limit_only_loses_lines() {
    for backend in BACKENDS {
        let dir = folder();
        let log = dir.path().join("log");
        let log = log.to_str().unwrap();
        let common = ["--addr", "127.0.0.1:0", "--backend", backend];
        let fixed = ["--respond", "200", "--access-log", log];
        let args = [&common[..], &fixed].concat();
        // The unit is 512 or 1024 bytes.
        let server = Server::start_of(behind("ulimit -f 1", "http", &args));
        request(&server, &["x".repeat(2000).as_str(); 4]);
        let error = ended(server);
        assert!(error.contains("File too large"), "{error}");
        assert!(lost_lines(&error) >= 3, "{error}");
    }
}
