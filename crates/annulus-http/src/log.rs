//! The access log: a line for each answer. Lines are gathered per core and written by a blocking thread, each second
//! or when there are enough; a disk that does not keep up costs lines, which are counted, and never an answer.

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use annulus::runtime;

use crate::clock::Clock;

/// Bytes of lines by which they are written before their time.
const WRITE_BYTES: usize = 64 << 10;
/// Bytes of lines that wait at most; further ones are lost.
const WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes of a text that comes from a client: what is longer is cut.
const TEXT_BYTES_MAX: usize = 2048;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// The format of NCSA's server, which most tools read.
    Common,
    /// The same, with where the client came from and what it calls itself.
    Combined,
    /// An object a line.
    Json,
}

/// Where lines go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LogOptions {
    /// The file, opened to append.
    pub file: Arc<File>,
    /// Its name, for messages.
    pub path: PathBuf,
    /// How a line looks.
    pub format: LogFormat,
}

impl LogOptions {
    /// Lines of `format` go to `file`, which is called `path`.
    pub fn new(file: Arc<File>, path: PathBuf, format: LogFormat) -> LogOptions {
        LogOptions { file, path, format }
    }
}

/// What there is to say of an answer.
pub(crate) struct Line<'a> {
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) method: &'a [u8],
    pub(crate) target: &'a [u8],
    pub(crate) protocol: &'static str,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
}

/// One core's.
pub(crate) struct Log {
    options: LogOptions,
    lines: RefCell<Vec<u8>>,
    /// A blocking thread writes.
    writing: Cell<bool>,
    /// Nobody will look again: whoever writes goes on until there is nothing left.
    ending: Cell<bool>,
    lost: Cell<u64>,
}

impl Log {
    pub(crate) fn new(options: LogOptions) -> Rc<Log> {
        Rc::new(Log {
            options,
            lines: RefCell::default(),
            writing: Cell::new(false),
            ending: Cell::new(false),
            lost: Cell::new(0),
        })
    }

    pub(crate) fn note(self: &Rc<Self>, clock: &Clock, line: &Line<'_>) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() >= WAITING_BYTES_MAX {
            self.lost.set(self.lost.get() + 1);
            return;
        }
        line.write(&mut lines, self.options.format, clock);
        let enough = lines.len() >= WRITE_BYTES;
        drop(lines);
        if enough {
            self.write();
        }
    }

    /// Has what there is written. Nothing happens while the last is being written.
    pub(crate) fn write(self: &Rc<Self>) {
        if self.lines.borrow().is_empty() || self.writing.replace(true) {
            return;
        }
        let log = Rc::clone(self);
        drop(runtime::spawn(async move {
            loop {
                let lines = log.lines.take();
                let file = Arc::clone(&log.options.file);
                // One write: lines of several cores and processes stay whole.
                let written = runtime::spawn_blocking(move || (&*file).write_all(&lines)).await;
                log.told(written.unwrap_or_else(|error| Err(io::Error::other(error.to_string()))));
                let left = log.lines.borrow().len();
                if left < WRITE_BYTES && (left == 0 || !log.ending.get()) {
                    break;
                }
            }
            log.writing.set(false);
        }));
    }

    /// No line follows: what there is is written before the core ends.
    pub(crate) fn end(self: &Rc<Self>) {
        self.ending.set(true);
        self.write();
    }

    /// What could not be written is lost: it would be in the way of what comes.
    fn told(&self, written: io::Result<()>) {
        let path = self.options.path.display();
        if let Err(error) = written {
            eprintln!("annulus: {path}: {error}; lines of the access log are lost");
        }
        match self.lost.take() {
            0 => {}
            lost => eprintln!("annulus: {path}: too slow; {lost} lines of the access log are lost"),
        }
    }
}

impl Line<'_> {
    fn write(&self, out: &mut Vec<u8>, format: LogFormat, clock: &Clock) {
        match format {
            LogFormat::Common => self.common(out, clock),
            LogFormat::Combined => {
                self.common(out, clock);
                for text in [self.referer, self.user_agent] {
                    out.extend_from_slice(b" \"");
                    escape(out, text.unwrap_or(b"-"), hex);
                    out.push(b'"');
                }
            }
            LogFormat::Json => self.json(out, clock),
        }
        out.push(b'\n');
    }

    fn common(&self, out: &mut Vec<u8>, clock: &Clock) {
        self.peer(out, b"-");
        out.extend_from_slice(b" - - [");
        clock.with_log_time(|time| out.extend_from_slice(time.common.as_bytes()));
        out.extend_from_slice(b"] \"");
        escape(out, self.method, hex);
        out.push(b' ');
        escape(out, self.target, hex);
        // To memory: it can't fail.
        let _ = write!(out, " {}\" {} ", self.protocol, self.status);
        let _ = match self.bytes {
            0 => write!(out, "-"),
            bytes => write!(out, "{bytes}"),
        };
    }

    fn json(&self, out: &mut Vec<u8>, clock: &Clock) {
        out.extend_from_slice(b"{\"time\":\"");
        clock.with_log_time(|time| out.extend_from_slice(time.iso.as_bytes()));
        out.extend_from_slice(b"\",\"peer\":\"");
        self.peer(out, b"");
        let texts = [
            ("method", Some(self.method)),
            ("target", Some(self.target)),
            ("protocol", Some(self.protocol.as_bytes())),
            ("referer", self.referer),
            ("user_agent", self.user_agent),
        ];
        for (name, text) in texts {
            let Some(text) = text else { continue };
            let _ = write!(out, "\",\"{name}\":\"");
            escape(out, text, json);
        }
        let _ = write!(
            out,
            "\",\"status\":{},\"bytes\":{}}}",
            self.status, self.bytes
        );
    }

    fn peer(&self, out: &mut Vec<u8>, unknown: &[u8]) {
        match self.peer {
            Some(peer) => {
                let _ = write!(out, "{}", peer.ip().to_canonical());
            }
            None => out.extend_from_slice(unknown),
        }
    }
}

/// Writes a client's text so that it can't end a line or a string, or speak to a terminal.
fn escape(out: &mut Vec<u8>, text: &[u8], special: fn(&mut String, u8)) {
    let mut escaped = String::new();
    for &byte in &text[..text.len().min(TEXT_BYTES_MAX)] {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                escaped.clear();
                special(&mut escaped, byte);
                out.extend_from_slice(escaped.as_bytes());
            }
            _ => out.push(byte),
        }
    }
}

/// As Apache and nginx do.
fn hex(out: &mut String, byte: u8) {
    // To memory: it can't fail.
    let _ = write!(out, "\\x{byte:02X}");
}

/// A byte that is no ASCII is the character of that number: what a client sends need not be UTF-8.
fn json(out: &mut String, byte: u8) {
    let _ = write!(out, "\\u{byte:04x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(format: LogFormat) -> String {
        let line = Line {
            peer: Some("[::ffff:192.0.2.1]:80".parse().unwrap()),
            method: b"GET",
            target: b"/a\"b\\\x1b[31m\n\xff",
            protocol: "HTTP/1.1",
            status: 200,
            bytes: 5,
            referer: None,
            user_agent: Some(b"curl/8 \"x\""),
        };
        let mut out = Vec::new();
        line.write(&mut out, format, &Clock::new());
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        assert!(text.ends_with('\n') && text.is_ascii());
        text
    }

    #[test]
    fn what_a_client_says_stays_in_its_line_and_its_quotes() {
        let core = line(LogFormat::Common);
        assert!(core.starts_with("192.0.2.1 - - ["), "{core}");
        let request = r#"] "GET /a\x22b\x5C\x1B[31m\x0A\xFF HTTP/1.1" 200 5"#;
        assert!(core.contains(request), "{core}");
        let combined = line(LogFormat::Combined);
        assert!(
            combined
                .trim_end()
                .ends_with(r#"200 5 "-" "curl/8 \x22x\x22""#),
            "{combined}"
        );
        let json = line(LogFormat::Json);
        assert!(
            json.contains(r#","target":"/a\u0022b\u005c\u001b[31m\u000a\u00ff","#),
            "{json}"
        );
        assert!(
            json.trim_end().ends_with(r#","status":200,"bytes":5}"#),
            "{json}"
        );
        assert!(!json.contains("referer"), "{json}");
    }
}
