//! A line of the access log, in three formats.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;

use super::LogFormat;
use crate::clock::Clock;

/// The number of bytes after which a text from a client is truncated.
const TEXT_BYTES_MAX: usize = 2048;

/// The data of a line.
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

impl Line<'_> {
    pub(super) fn write(&self, out: &mut Vec<u8>, format: LogFormat, clock: &Clock) {
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
        // Writing to memory cannot fail.
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

/// Writes a client's text without characters that could end a line or a string, or control a
/// terminal.
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

/// Escapes like Apache and nginx.
fn hex(out: &mut String, byte: u8) {
    // Writing to memory cannot fail.
    let _ = write!(out, "\\x{byte:02X}");
}

/// Writes a non-ASCII byte as the character with its number, because the text may not be UTF-8.
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
    fn text_from_a_client_cannot_end_its_line_or_its_quotes() {
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
