//! A monitored server, and commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

/// The limit after which a test has failed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn annulus(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_annulus"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Returns the standard error of a command, and its exit code.
pub(crate) fn errors_and_code(output: &Output) -> (String, Option<i32>) {
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    (err, output.status.code())
}

/// An echo server with a metrics endpoint, which is killed when it is dropped.
pub(crate) struct Watched {
    child: Child,
    err: BufReader<ChildStderr>,
    /// The address of the echo server.
    pub(crate) echoes: String,
    /// The address of the metrics endpoint.
    pub(crate) metrics: String,
}

impl Watched {
    pub(crate) fn start(more: &[&str]) -> Watched {
        let mut command = annulus(&[
            "serve",
            "echo",
            "--addr",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
        ]);
        let mut child = command
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut watched = Watched {
            err: BufReader::new(child.stderr.take().unwrap()),
            child,
            echoes: String::new(),
            metrics: String::new(),
        };
        let line = watched.line_with("metrics at http://");
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.strip_suffix("/metrics"));
        watched.metrics = address.unwrap().to_owned();
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        watched.echoes = line
            .trim_end()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        watched
    }

    /// Returns the next line on standard error that contains `text`.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.err.read_line(&mut line).unwrap();
            assert_ne!(count, 0, "the server ended without {text:?}");
            if line.contains(text) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Echoes a message N times.
    pub(crate) fn echo(&self, times: usize) {
        let mut stream = TcpStream::connect(&self.echoes).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        for _ in 0..times {
            stream.write_all(b"once more").unwrap();
            let mut back = [0; 9];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"once more");
        }
    }

    /// Returns the response to a request with this method and path.
    pub(crate) fn exchange(&self, start: &str, header: &str) -> String {
        request(&self.metrics, &format!("{start} HTTP/1.1"), header)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends an HTTP request with this first line, and returns the response.
pub(crate) fn request(addr: &str, first_line: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let header = if header.is_empty() {
        String::new()
    } else {
        format!("{header}\r\n")
    };
    write!(
        stream,
        "{first_line}\r\nHost: {addr}\r\n{header}Connection: close\r\n\r\n"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}
