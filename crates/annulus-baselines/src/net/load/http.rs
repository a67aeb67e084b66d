//! HTTP/1.1 GET and POST. A response whose head equals the previous one, byte by byte, is not parsed again.

use std::sync::Arc;

use httparse::{EMPTY_HEADER, Response, Status};

use super::protocol::{Completed, Protocol, Step};

/// The maximum length of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// A typical length of a head.
const HEAD_BYTES: usize = 512;
/// The maximum length of a line with a chunk's length, or of a trailer.
const LINE_BYTES_MAX: usize = 1024;

pub(super) struct Http {
    request: Vec<u8>,
    /// The expected body, if known.
    expected: Option<Arc<[u8]>>,
    /// One of N responses is compared with it byte by byte.
    compared: u64,
    /// The last head, and its meaning.
    known: Vec<u8>,
    meaning: Head,
}

/// The meaning of a head.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    status: u16,
    body: Body,
}

/// The rest of a response after its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Body {
    #[default]
    None,
    Bytes(u64),
    Chunk(Chunk),
    UntilClosed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// The line with the chunk's length.
    Length,
    /// The data and its line end.
    Data(u64),
    /// Lines after the last chunk, up to an empty one.
    Trailer,
}

/// A response that has begun to arrive.
#[derive(Debug, Default)]
pub(super) struct Reader {
    in_body: bool,
    status: u16,
    body: Body,
    /// The received bytes of the body, without chunk framing.
    received: usize,
    /// The received part of an incomplete head or line.
    part: Vec<u8>,
}

impl Http {
    pub(super) fn new(path: &str, host: &str, close: bool, expected: Option<Arc<[u8]>>) -> Http {
        let close = if close { "Connection: close\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n");
        Http {
            request: request.into_bytes(),
            expected,
            compared: 1,
            known: Vec::new(),
            meaning: Head::default(),
        }
    }

    /// Sends POST requests with a body of this length.
    pub(super) fn posting(mut self, bytes: usize) -> Http {
        self.request.splice(..b"GET".len(), *b"POST");
        self.request.truncate(self.request.len() - b"\r\n".len());
        let fields =
            format!("Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n");
        self.request.extend_from_slice(fields.as_bytes());
        self.request.resize(self.request.len() + bytes, b'x');
        self
    }

    /// Compares one of N bodies of a connection byte by byte, and only the length of the others.
    pub(super) fn comparing_one_of(self, compared: u64) -> Http {
        Http {
            compared: compared.max(1),
            ..self
        }
    }

    /// Parses the head. Returns the number of `bytes` that belong to it, or `None` if it is incomplete.
    fn head(&mut self, reader: &mut Reader, bytes: &[u8]) -> Result<Option<usize>, String> {
        if reader.part.is_empty() && !self.known.is_empty() && bytes.starts_with(&self.known) {
            reader.status = self.meaning.status;
            reader.body = self.meaning.body;
            return Ok(Some(self.known.len()));
        }
        let before = reader.part.len();
        reader.part.extend_from_slice(bytes);
        match parse(&reader.part)? {
            None if reader.part.len() > HEAD_BYTES_MAX => {
                Err(format!("a head of more than {HEAD_BYTES_MAX} bytes"))
            }
            None => Ok(None),
            Some((len, head)) => {
                self.known.clear();
                self.known.extend_from_slice(&reader.part[..len]);
                self.meaning = head;
                reader.part.clear();
                (reader.status, reader.body) = (head.status, head.body);
                // The earlier bytes were no complete head, so the head ends within `bytes`.
                Ok(Some(len - before))
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Option<(usize, Head)>, String> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let len = match response.parse(bytes) {
        Ok(Status::Complete(len)) => len,
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("not an HTTP/1.1 response: {error}")),
    };
    let status = response.code.unwrap_or(0);
    let value = |name: &str| {
        let header =
            (response.headers.iter()).find(|header| header.name.eq_ignore_ascii_case(name));
        header.map(|header| {
            String::from_utf8_lossy(header.value)
                .trim()
                .to_ascii_lowercase()
        })
    };
    let body = match (value("transfer-encoding"), value("content-length")) {
        _ if matches!(status, 204 | 304) => Body::None,
        (Some(coding), _) if coding.ends_with("chunked") => Body::Chunk(Chunk::Length),
        (_, Some(length)) => match length.parse() {
            Ok(0) => Body::None,
            Ok(length) => Body::Bytes(length),
            Err(_) => return Err(format!("Content-Length: {length}")),
        },
        _ => Body::UntilClosed,
    };
    Ok(Some((len, Head { status, body })))
}

impl Reader {
    /// Continues with the body. Returns the number of `bytes` that belong to it, and whether it is complete.
    fn body(&mut self, bytes: &[u8], expected: Option<&[u8]>) -> Result<(usize, bool), String> {
        let mut at = 0;
        loop {
            let left = bytes.len() - at;
            match self.body {
                Body::None => return Ok((at, true)),
                Body::UntilClosed => {
                    self.compare(expected, &bytes[at..])?;
                    return Ok((bytes.len(), false));
                }
                Body::Bytes(length) => {
                    let take = length.min(left as u64);
                    self.compare(expected, &bytes[at..at + take as usize])?;
                    at += take as usize;
                    self.body = Body::Bytes(length - take);
                    return Ok((at, length == take));
                }
                Body::Chunk(Chunk::Data(length)) if length > 0 => {
                    let take = length.min(left as u64);
                    // The line end is not data.
                    let data = take.min(length.saturating_sub(2));
                    self.compare(expected, &bytes[at..at + data as usize])?;
                    at += take as usize;
                    self.body = Body::Chunk(Chunk::Data(length - take));
                    if length > take {
                        return Ok((at, false));
                    }
                }
                Body::Chunk(Chunk::Data(_)) => self.body = Body::Chunk(Chunk::Length),
                Body::Chunk(chunk) => {
                    let Some(line) = self.line(&bytes[at..], &mut at)? else {
                        return Ok((bytes.len(), false));
                    };
                    self.body = match (chunk, line.is_empty()) {
                        (Chunk::Trailer, true) => Body::None,
                        (Chunk::Trailer, false) => Body::Chunk(Chunk::Trailer),
                        _ => after_length(&line)?,
                    };
                }
            }
        }
    }

    /// Compares bytes of the body with the expected ones.
    fn compare(&mut self, expected: Option<&[u8]>, bytes: &[u8]) -> Result<(), String> {
        let rest = expected.map(|expected| expected.get(self.received..).unwrap_or_default());
        if rest.is_some_and(|rest| !rest.starts_with(bytes)) {
            return Err(format!(
                "a body with other bytes than expected from byte {} on",
                self.received
            ));
        }
        self.received += bytes.len();
        Ok(())
    }

    /// Returns a complete line without its end. Stores the bytes of an incomplete line.
    fn line(&mut self, bytes: &[u8], at: &mut usize) -> Result<Option<Vec<u8>>, String> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(bytes.len(), |end| end + 1);
        self.part.extend_from_slice(&bytes[..taken]);
        *at += taken;
        if self.part.len() > LINE_BYTES_MAX {
            return Err(format!(
                "a chunk's line of more than {LINE_BYTES_MAX} bytes"
            ));
        }
        Ok(end.map(|_| {
            let mut line = std::mem::take(&mut self.part);
            line.truncate(line.trim_ascii_end().len());
            line
        }))
    }
}

/// Returns the state after the line with a chunk's length.
fn after_length(line: &[u8]) -> Result<Body, String> {
    let text = String::from_utf8_lossy(line);
    let digits = text.split(';').next().unwrap_or_default().trim();
    match u64::from_str_radix(digits, 16) {
        Ok(0) => Ok(Body::Chunk(Chunk::Trailer)),
        // The line end after the data is included.
        Ok(length) if length <= u64::MAX - 2 => Ok(Body::Chunk(Chunk::Data(length + 2))),
        _ => Err(format!("`{digits}` is no chunk's length")),
    }
}

impl Protocol for Http {
    type Reader = Reader;

    fn template(&self) -> Vec<u8> {
        self.request.clone()
    }

    fn stamp(&mut self, _connection: u32, _sequence: u64, _request: &mut [u8]) {}

    #[inline]
    fn read(&mut self, reader: &mut Reader, _connection: u32, sequence: u64, bytes: &[u8]) -> Step {
        let mut at = 0;
        if !reader.in_body {
            match self.head(reader, bytes) {
                Ok(Some(len)) => at = len,
                Ok(None) => return Step::More,
                Err(why) => return Step::Wrong(why),
            }
            // Informational, such as 100 Continue: the response follows.
            if (100..200).contains(&reader.status) {
                return match self.read(reader, 0, sequence, &bytes[at..]) {
                    Step::Done(used, response) => Step::Done(at + used, response),
                    step => step,
                };
            }
            reader.in_body = true;
            reader.received = 0;
        }
        let expected = self.expected.as_deref();
        // Another status has another body.
        let expected = expected.filter(|_| (200..300).contains(&reader.status));
        let compared = expected.filter(|_| sequence.is_multiple_of(self.compared));
        match reader.body(&bytes[at..], compared) {
            Err(why) => Step::Wrong(why),
            Ok((_, false)) => Step::More,
            Ok((used, true)) => {
                reader.in_body = false;
                if let Some(expected) =
                    expected.filter(|expected| expected.len() != reader.received)
                {
                    return Step::Wrong(format!(
                        "a body of {} bytes instead of {}",
                        reader.received,
                        expected.len()
                    ));
                }
                let response = match reader.status {
                    200..300 => Completed::Correct,
                    status => Completed::Status(status),
                };
                Step::Done(at + used, response)
            }
        }
    }

    fn response_bytes(&self) -> usize {
        (self.expected.as_ref()).map_or(0, |body| body.len() + HEAD_BYTES)
    }

    fn ends_with_connection(&self, reader: &Reader) -> bool {
        reader.in_body
            && reader.body == Body::UntilClosed
            && (self.expected.as_ref()).is_none_or(|expected| expected.len() == reader.received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::load::protocol::read_in_pieces;

    #[test]
    fn responses_are_counted_however_they_are_cut() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nworld\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: u\r\n\r\n\
            HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n\
            HTTP/1.1 204 No Content\r\n\r\n";
        let right = || Step::Done(0, Completed::Correct);
        let expected = [
            right(),
            right(),
            right(),
            Step::Done(0, Completed::Status(500)),
            right(),
        ];
        for piece in 1..=text.len() {
            let mut http = Http::new("/", "localhost", false, None);
            assert_eq!(
                read_in_pieces(&mut http, text, piece),
                expected,
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn what_is_no_response_is_seen() {
        for text in [
            "SSH-2.0-x\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n",
        ] {
            let steps =
                read_in_pieces(&mut Http::new("/", "h", false, None), text.as_bytes(), 1000);
            assert!(matches!(steps[..], [Step::Wrong(_)]), "{text}: {steps:?}");
        }
    }

    #[test]
    fn a_response_without_a_length_ends_with_its_connection() {
        let (mut http, mut reader) = (Http::new("/", "h", true, None), Reader::default());
        let step = http.read(&mut reader, 0, 0, b"HTTP/1.0 200 OK\r\n\r\nabc");
        assert_eq!(step, Step::More);
        assert!(http.ends_with_connection(&reader));
    }

    #[test]
    fn another_body_than_expected_is_wrong_however_it_is_cut() {
        let new = || Http::new("/", "h", false, Some(Arc::from(&b"hello"[..])));
        let with = |body: &str| format!("HTTP/1.1 200 OK\r\n{body}");
        for body in [
            "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ] {
            let text = with(body).repeat(2);
            for piece in 1..=text.len() {
                let steps = read_in_pieces(&mut new(), text.as_bytes(), piece);
                let right = || Step::Done(0, Completed::Correct);
                assert_eq!(steps, [right(), right()], "{body}, pieces of {piece}");
            }
        }
        for body in [
            "Content-Length: 5\r\n\r\nhellO",
            "Content-Length: 4\r\n\r\nhell",
            "Content-Length: 6\r\n\r\nhello!",
            "Content-Length: 0\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n2\r\nll\r\n0\r\n\r\n",
        ] {
            let text = with(body);
            for piece in 1..=text.len() {
                let steps = read_in_pieces(&mut new(), text.as_bytes(), piece);
                assert!(
                    matches!(steps[..], [Step::Wrong(_)]),
                    "{body}, pieces of {piece}: {steps:?}"
                );
            }
        }
    }

    #[test]
    fn of_several_responses_one_is_compared_and_all_are_counted() {
        let text = |body: &str| {
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let mut http = Http::new("/", "h", false, Some(Arc::from(&b"hello"[..])));
        http = http.comparing_one_of(3);
        let mut step = |sequence, body| {
            let (mut reader, text) = (Reader::default(), text(body));
            match http.read(&mut reader, 0, sequence, text.as_bytes()) {
                Step::Done(..) => true,
                Step::Wrong(_) => false,
                Step::More => panic!("all of it was there"),
            }
        };
        assert!(step(0, "hello") && step(1, "hello") && step(3, "hello"));
        assert!(step(1, "HELLO") && step(2, "HELLO"));
        assert!(!step(0, "HELLO") && !step(3, "HELLO"));
        assert!(!step(1, "hell") && !step(2, "hello!"));
    }
}
