//! What a request is answered with: status, fields and body, one per request; and the same prepared as bytes,
//! one per small file in the cache. Made by the rest of `site`, written out by connections.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};

use super::load::OpenFile;

/// The methods that a file can be asked with.
pub(crate) const ALLOW: HeaderValue = HeaderValue::from_static("GET, HEAD, OPTIONS");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// What a client that met a lack of descriptors is told to wait, seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Names and values in the order of writing: without `Date`, `Connection`, `Server`, which are the connection's.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// A response. For HEAD it is the same as for GET: the connection leaves the body out, and only that.
#[derive(Debug)]
pub struct SiteResponse {
    /// The status code.
    pub status: StatusCode,
    /// With `Content-Length`, where the status may have one (not 204 and 304).
    pub fields: Fields,
    /// What follows the head.
    pub body: Body,
}

/// What is sent after the head.
#[derive(Clone, Debug)]
pub enum Body {
    /// Nothing.
    Empty,
    /// Bytes in memory; cloning shares them.
    Bytes(Bytes),
    /// A range of an open file.
    File {
        /// Open until the last response with it has gone.
        file: Rc<OpenFile>,
        /// Where the range begins.
        offset: u64,
        /// How long it is. The file may have been cut since: then the connection must end short of it.
        bytes: u64,
    },
    /// Several ranges with what stands between them (`multipart/byteranges`).
    Parts {
        /// In the order of sending; bounded by the ranges that a request may ask.
        pieces: Vec<Piece>,
        /// All of them together.
        bytes: u64,
    },
}

/// One piece of [`Body::Parts`].
#[derive(Clone, Debug)]
pub enum Piece {
    /// The head of a part, the end of all, or a range that is in memory.
    Bytes(Bytes),
    /// A range of an open file; see [`Body::File`].
    File {
        /// As there.
        file: Rc<OpenFile>,
        /// As there.
        offset: u64,
        /// As there.
        bytes: u64,
    },
}

impl Body {
    /// How many bytes it has: the value of `Content-Length`.
    pub fn bytes(&self) -> u64 {
        match self {
            Body::Empty => 0,
            Body::Bytes(body) => body.len() as u64,
            Body::File { bytes, .. } | Body::Parts { bytes, .. } => *bytes,
        }
    }
}

impl SiteResponse {
    /// The short response that says a status and nothing else: for errors, the connection's own as well.
    ///
    /// 405 says what is allowed, 503 when to come back.
    pub fn of(status: StatusCode) -> SiteResponse {
        let mut fields = Fields::with_capacity(4);
        match status {
            StatusCode::METHOD_NOT_ALLOWED => fields.push((header::ALLOW, ALLOW)),
            StatusCode::SERVICE_UNAVAILABLE => fields.push((header::RETRY_AFTER, RETRY_AFTER)),
            _ => {}
        }
        if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
            return SiteResponse {
                status,
                fields,
                body: Body::Empty,
            };
        }
        let reason = status.canonical_reason().unwrap_or("Unknown");
        let body = Bytes::from(format!("{} {reason}\n", status.as_u16()));
        SiteResponse::with_body(status, fields, PLAIN, body)
    }

    /// A response whose body is in memory, and the two fields that describe it.
    pub(crate) fn with_body(
        status: StatusCode,
        mut fields: Fields,
        content_type: HeaderValue,
        body: Bytes,
    ) -> SiteResponse {
        fields.push((header::CONTENT_TYPE, content_type));
        fields.push((header::CONTENT_LENGTH, HeaderValue::from(body.len())));
        SiteResponse {
            status,
            fields,
            body: Body::Bytes(body),
        }
    }

    /// The first field of a name.
    pub fn field(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.fields
            .iter()
            .find(|(named, _)| named == name)
            .map(|(_, value)| value)
    }
}

/// A response that needs no thought: all of it but the status line, `Date` and `Connection`, as HTTP/1.1 has it.
///
/// The connection writes its status line and those fields, and then [`tail`](Ready::tail) in one copy.
#[derive(Debug)]
pub struct Ready {
    status: StatusCode,
    fields: Fields,
    /// Fields, the empty line, the body.
    tail: Bytes,
    head_bytes: usize,
}

impl Ready {
    pub(crate) fn new(status: StatusCode, fields: Fields, body: &[u8]) -> Ready {
        let lines = fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 4);
        let head_bytes = lines.sum::<usize>() + 2;
        let mut tail = BytesMut::with_capacity(head_bytes + body.len());
        for (name, value) in &fields {
            put_field(&mut tail, name, value);
        }
        tail.put_slice(b"\r\n");
        tail.put_slice(body);
        Ready {
            status,
            fields,
            tail: tail.freeze(),
            head_bytes,
        }
    }

    /// The status, for the status line.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The other fields, the empty line and the body: for GET.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// The other fields and the empty line: for HEAD.
    pub fn head(&self) -> &[u8] {
        &self.tail[..self.head_bytes]
    }

    /// The body alone; shares the memory.
    pub fn body(&self) -> Bytes {
        self.tail.slice(self.head_bytes..)
    }

    /// The fields of [`head`](Ready::head).
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The same as a response.
    pub(crate) fn response(&self) -> SiteResponse {
        let body = match self.body() {
            body if body.is_empty() => Body::Empty,
            body => Body::Bytes(body),
        };
        SiteResponse {
            status: self.status,
            fields: self.fields.clone(),
            body,
        }
    }

    /// The memory that it takes, about.
    pub(crate) fn bytes(&self) -> usize {
        // The fields' values are small allocations of their own.
        self.tail.len() + self.head_bytes + self.fields.len() * 64
    }
}

/// Writes a field's line. Each word of the name begins with a capital, as there are programs that know it by that.
pub(crate) fn put_field(out: &mut impl BufMut, name: &HeaderName, value: &HeaderValue) {
    let mut begins = true;
    for &byte in name.as_str().as_bytes() {
        out.put_u8(match begins {
            true => byte.to_ascii_uppercase(),
            false => byte,
        });
        begins = byte == b'-';
    }
    out.put_slice(b": ");
    out.put_slice(value.as_bytes());
    out.put_slice(b"\r\n");
}
