//! The access log of `serve http`: an idle server, rotation, and files that take nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::server::{BACKENDS, PATIENCE, Server, behind};

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn serve(log: &Path, backend: &str) -> Server {
    let log = log.to_str().unwrap();
    let common = ["--addr", "127.0.0.1:0", "--backend", backend];
    let fixed = ["--respond", "200", "--access-log", log];
    Server::start_as("http", &[&common[..], &fixed].concat())
}

/// Asks for each path, over one connection that is closed behind the last.
fn ask(server: &Server, paths: &[&str]) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for path in paths {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"Hello, World!") {
            let mut piece = [0; 1024];
            let bytes = stream.read(&mut piece).unwrap();
            assert!(bytes > 0, "{}", String::from_utf8_lossy(&response));
            response.extend_from_slice(&piece[..bytes]);
        }
    }
}

/// A file's text, as soon as it is what the caller waits for.
fn text_when(path: &Path, is_there: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if is_there(&text) {
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

/// Opened to read without waiting for a writer.
fn reader(path: &Path) -> File {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.unwrap()
}

/// The end of a server that was told to; what it said.
fn ended(server: Server) -> String {
    server.signal(Signal::TERM);
    let (status, error) = server.wait();
    assert_eq!(status.code(), Some(0), "{error}");
    error
}

/// How many lines it said are lost.
fn lost(error: &str) -> usize {
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
            ask(&server, &["a"]);
            text_when(&log, |text| text.lines().count() == number);
        }
        ended(server);
    }
}

#[test]
fn a_log_that_was_renamed_is_opened_again_at_usr1() {
    for backend in BACKENDS {
        let dir = folder();
        let (log, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let server = serve(&log, backend);
        ask(&server, &["first"]);
        text_when(&log, |text| text.ends_with('\n'));
        fs::rename(&log, &old).unwrap();
        server.signal(Signal::USR1);
        text_when(&log, |_| log.exists());
        ask(&server, &["second"]);
        let text = text_when(&log, |text| text.ends_with('\n'));
        assert!(
            text.contains("/second") && text.lines().count() == 1,
            "{text}"
        );
        assert!(!fs::read_to_string(&old).unwrap().contains("/second"));
        // Where it can't be opened again, the old one stays in use.
        fs::remove_file(&log).unwrap();
        fs::create_dir(&log).unwrap();
        server.signal(Signal::USR1);
        ask(&server, &["third"]);
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
        ask(&server, &["a"]);
        ended(server);
    }
}

#[test]
fn a_fifo_that_nobody_reads_delays_neither_start_nor_responses_nor_the_end() {
    for backend in BACKENDS {
        let dir = folder();
        let server = serve(&fifo(&dir), backend);
        ask(&server, &["a", "b", "c"]);
        let error = ended(server);
        assert_eq!(lost(&error), 3, "{error}");
    }
}

#[test]
fn a_fifo_gets_its_lines_as_soon_as_somebody_reads_it() {
    for backend in BACKENDS {
        let dir = folder();
        let path = fifo(&dir);
        let server = serve(&path, backend);
        ask(&server, &["early"]);
        let mut reader = File::open(&path).unwrap();
        let mut line = [0; 1024];
        let bytes = reader.read(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..bytes]);
        assert!(line.contains("/early") && line.ends_with('\n'), "{line}");
        drop(reader);
        // The reader has gone, and another comes.
        ask(&server, &["late"]);
        let mut reader = File::open(&path).unwrap();
        let error = ended(server);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("/late"), "{rest} {error}");
        assert_eq!(lost(&error), 0, "{error}");
    }
}

#[test]
fn a_fifo_that_is_full_costs_lines_which_are_counted_and_nothing_else() {
    for backend in BACKENDS {
        let dir = folder();
        let path = fifo(&dir);
        let mut reader = reader(&path);
        let server = serve(&path, backend);
        let long = "x".repeat(2000);
        let paths = vec![long.as_str(); 1000];
        // More than the pipe and the memory for lines hold.
        ask(&server, &paths);
        let error = ended(server);
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        let whole = got.iter().filter(|byte| **byte == b'\n').count();
        assert!(whole > 0 && whole < 1000, "{whole} {error}");
        assert_eq!(whole + lost(&error), 1000, "{error}");
    }
}

#[test]
fn a_full_disk_costs_lines_which_are_counted_and_nothing_else() {
    for backend in BACKENDS {
        let server = serve(Path::new("/dev/full"), backend);
        ask(&server, &["a", "b"]);
        let error = ended(server);
        assert!(error.contains("No space left"), "{error}");
        assert_eq!(lost(&error), 2, "{error}");
    }
}

#[test]
fn a_log_at_the_limit_on_file_sizes_costs_lines_and_not_the_server() {
    for backend in BACKENDS {
        let dir = folder();
        let log = dir.path().join("log");
        let log = log.to_str().unwrap();
        let common = ["--addr", "127.0.0.1:0", "--backend", backend];
        let fixed = ["--respond", "200", "--access-log", log];
        let args = [&common[..], &fixed].concat();
        // In blocks of 512 or 1024 bytes.
        let server = Server::start_of(behind("ulimit -f 1", "http", &args));
        ask(&server, &["x".repeat(2000).as_str(); 4]);
        let error = ended(server);
        assert!(error.contains("File too large"), "{error}");
        assert!(lost(&error) >= 3, "{error}");
    }
}
