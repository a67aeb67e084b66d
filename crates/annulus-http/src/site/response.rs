//! Responses: status, fields and body; and prepared responses, one per small file in the cache.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};

use super::load::OpenFile;

/// The methods that a file supports.
pub(crate) const ALLOW: HeaderValue = HeaderValue::from_static("GET, HEAD, OPTIONS");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// The `Retry-After` of a response to a lack of descriptors, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Field names and values in the order of writing. `Date`, `Connection` and `Server` are left to
/// the connection.
pub type Fields = Vec<(HeaderName, HeaderValue)>;

/// A response. For HEAD it is the same as for GET; the connection omits only the body.
#[derive(Debug)]
pub struct SiteResponse {
    /// The status code.
    pub status: StatusCode,
    /// The header fields, with `Content-Length` unless the status forbids it (204 and 304).
    pub fields: Fields,
    /// The body.
    pub body: Body,
}

/// The body of a response.
#[derive(Clone, Debug)]
pub enum Body {
    /// No body.
    Empty,
    /// Bytes in memory. Clones share them.
    Bytes(Bytes),
    /// A range of an open file.
    File {
        /// The file. It stays open until its last response is dropped.
        file: Rc<OpenFile>,
        /// The offset of the range.
        offset: u64,
        /// The length of the range. If the file was truncated since, the connection must end before this length.
        bytes: u64,
    },
    /// Several ranges and the text between them (`multipart/byteranges`).
    Parts {
        /// The pieces in the order of sending. Their number is limited by that of the requested ranges.
        pieces: Vec<Piece>,
        /// The total length in bytes.
        bytes: u64,
    },
}

/// One piece of [`Body::Parts`].
#[derive(Clone, Debug)]
pub enum Piece {
    /// The head of a part, the end of the body, or a range that is in memory.
    Bytes(Bytes),
    /// A range of an open file; see [`Body::File`].
    File {
        /// The file.
        file: Rc<OpenFile>,
        /// The offset of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
    },
}

impl Body {
    /// Returns the length of the body in bytes, which is the value of `Content-Length`.
    pub fn bytes(&self) -> u64 {
        match self {
            Body::Empty => 0,
            Body::Bytes(body) => body.len() as u64,
            Body::File { bytes, .. } | Body::Parts { bytes, .. } => *bytes,
        }
    }
}

impl SiteResponse {
    /// Returns a short response with a status and its name as text, for errors.
    ///
    /// A 405 includes `Allow`, and a 503 `Retry-After`.
    pub fn of(status: StatusCode) -> SiteResponse {
        let mut fields = Fields::with_capacity(4);
        match status {
            StatusCode::METHOD_NOT_ALLOWED => fields.push((header::ALLOW, ALLOW)),
            StatusCode::SERVICE_UNAVAILABLE => fields.push((header::RETRY_AFTER, RETRY_AFTER)),
            _ => {}
        }
        if forbids_body(status) {
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

    /// Returns a response with a body in memory and the two fields that describe it.
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

    /// Returns the value of the first field `name`.
    pub fn field(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.fields
            .iter()
            .find(|(named, _)| named == name)
            .map(|(_, value)| value)
    }
}

/// A prepared HTTP/1.1 response: everything except the status line, `Date` and `Connection`.
///
/// The connection writes the status line and those fields, and then copies [`tail`](Ready::tail) at once.
#[derive(Debug)]
pub struct Ready {
    status: StatusCode,
    fields: Fields,
    /// The fields, the empty line and the body.
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

    /// Returns the status, for the status line.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the other fields, the empty line and the body, for GET.
    pub fn tail(&self) -> &[u8] {
        &self.tail
    }

    /// Returns the other fields and the empty line, for HEAD.
    pub fn head(&self) -> &[u8] {
        &self.tail[..self.head_bytes]
    }

    /// Returns the body. It shares the memory.
    pub fn body(&self) -> Bytes {
        self.tail.slice(self.head_bytes..)
    }

    /// Returns the fields of [`head`](Ready::head).
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns the same as a [`SiteResponse`].
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

    /// Returns the approximate memory of the response.
    pub(crate) fn bytes(&self) -> usize {
        // The values of the fields are small separate allocations.
        self.tail.len() + self.head_bytes + self.fields.len() * 64
    }
}

/// Returns whether a response with this status has neither a body nor `Content-Length`.
pub(crate) fn forbids_body(status: StatusCode) -> bool {
    status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED
}

/// Writes a field line. Each word of the name is capitalised, because some programs expect it.
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
