//! Builds the response for a file: all of it, parts of it, or an error.

use std::cell::Cell;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderValue};

use super::conditional::{self, Conditions, Outcome};
use super::load::{Head, OpenFile};
use super::range::{self, Part, Selected};
use super::response::{Body, Fields, Piece, SiteResponse};
use super::service::{Method, SiteRequest};

/// The location of a body.
pub(crate) enum Source {
    Memory(Bytes),
    File { file: Rc<OpenFile>, bytes: u64 },
}

impl Source {
    fn bytes(&self) -> u64 {
        match self {
            Source::Memory(body) => body.len() as u64,
            Source::File { bytes, .. } => *bytes,
        }
    }

    fn part(&self, part: Part) -> Piece {
        match self {
            // A part is within the body, whose length is a `usize`.
            Source::Memory(body) => {
                let begin = part.offset as usize;
                Piece::Bytes(body.slice(begin..begin + part.bytes as usize))
            }
            Source::File { file, .. } => Piece::File {
                file: Rc::clone(file),
                offset: part.offset,
                bytes: part.bytes,
            },
        }
    }

    fn body(&self, part: Part) -> Body {
        match self.part(part) {
            _ if part.bytes == 0 => Body::Empty,
            Piece::Bytes(body) => Body::Bytes(body),
            Piece::File {
                file,
                offset,
                bytes,
            } => Body::File {
                file,
                offset,
                bytes,
            },
        }
    }
}

/// Generates multipart boundaries that cannot be predicted, so that no file can contain them on purpose.
#[derive(Debug, Default)]
pub(crate) struct Boundaries {
    state: RandomState,
    count: Cell<u64>,
}

impl Boundaries {
    fn next(&self) -> String {
        let count = self.count.get();
        self.count.set(count.wrapping_add(1));
        let half = |which: u8| self.state.hash_one((count, which));
        format!("{:016x}{:016x}", half(0), half(1))
    }
}

/// Returns the response to a GET or HEAD request for a representation.
pub(crate) fn deliver(
    request: &SiteRequest<'_>,
    head: &Head,
    source: &Source,
    boundaries: &Boundaries,
) -> SiteResponse {
    let if_range = request.joined("if-range");
    let conditions = Conditions {
        if_match: request.joined("if-match"),
        if_none_match: request.joined("if-none-match"),
        if_modified_since: request.only("if-modified-since"),
        if_unmodified_since: request.only("if-unmodified-since"),
        // Several lines are no validator that can match, so the whole file is sent.
        if_range: if_range.as_deref(),
    };
    let bytes = source.bytes();
    let selected = match conditional::evaluate(&conditions, &head.validators()) {
        Outcome::NotModified => return not_modified(head),
        Outcome::Failed => return SiteResponse::of(StatusCode::PRECONDITION_FAILED),
        // Ranges apply to GET only.
        Outcome::Send if request.method == Method::Get => match request.only("range") {
            Some(value) => range::select(value, bytes),
            None => Selected::Whole,
        },
        Outcome::Send | Outcome::SendWhole => Selected::Whole,
    };
    match selected {
        Selected::Whole => SiteResponse {
            status: StatusCode::OK,
            fields: head.whole(bytes),
            body: source.body(Part { offset: 0, bytes }),
        },
        Selected::Unsatisfiable => {
            let mut response = SiteResponse::of(StatusCode::RANGE_NOT_SATISFIABLE);
            response.fields.extend(
                field(format!("bytes */{bytes}")).map(|value| (header::CONTENT_RANGE, value)),
            );
            response
        }
        Selected::Parts(parts) => match parts[..] {
            [part] => one_part(head, source, part),
            _ => several_parts(head, source, &parts, &boundaries.next()),
        },
    }
}

/// Returns a 304 with the fields that a cache needs.
fn not_modified(head: &Head) -> SiteResponse {
    let mut response = SiteResponse::of(StatusCode::NOT_MODIFIED);
    let kept = [header::ETAG, header::LAST_MODIFIED, header::VARY];
    let fields = head.fields.iter().filter(|(name, _)| kept.contains(name));
    response.fields.extend(fields.cloned());
    response
}

fn one_part(head: &Head, source: &Source, part: Part) -> SiteResponse {
    let mut fields = head.whole(part.bytes);
    let range = field(content_range(part, source.bytes()));
    fields.extend(range.map(|range| (header::CONTENT_RANGE, range)));
    SiteResponse {
        status: StatusCode::PARTIAL_CONTENT,
        fields,
        body: source.body(part),
    }
}

fn several_parts(head: &Head, source: &Source, parts: &[Part], boundary: &str) -> SiteResponse {
    let content_type = head
        .content_type
        .to_str()
        .unwrap_or("application/octet-stream");
    let mut pieces = Vec::with_capacity(parts.len() * 2 + 1);
    let mut bytes = 0;
    let mut text = String::new();
    for part in parts {
        let range = content_range(*part, source.bytes());
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {range}\r\n\r\n"
        );
        bytes += text.len() as u64 + part.bytes;
        pieces.push(Piece::Bytes(Bytes::from(std::mem::take(&mut text))));
        pieces.push(source.part(*part));
        text.push_str("\r\n");
    }
    let _ = write!(text, "--{boundary}--\r\n");
    bytes += text.len() as u64;
    pieces.push(Piece::Bytes(Bytes::from(text)));
    let kind = field(format!("multipart/byteranges; boundary={boundary}"));
    let described = head
        .whole(bytes)
        .into_iter()
        .filter(|(name, _)| *name != header::CONTENT_TYPE);
    let fields: Fields = kind
        .map(|kind| (header::CONTENT_TYPE, kind))
        .into_iter()
        .chain(described)
        .collect();
    SiteResponse {
        status: StatusCode::PARTIAL_CONTENT,
        fields,
        body: Body::Parts { pieces, bytes },
    }
}

fn content_range(part: Part, of: u64) -> String {
    // A part has at least one byte.
    format!(
        "bytes {}-{}/{of}",
        part.offset,
        part.offset + (part.bytes - 1)
    )
}

/// Converts ASCII text to a field value.
fn field(text: String) -> Option<HeaderValue> {
    HeaderValue::try_from(text).ok()
}
