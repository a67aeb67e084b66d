//! Writes responses as HTTP/1.1, after those in the connection's buffer.

use bytes::Bytes;
use http::StatusCode;
use http::header;

use super::head::{Head, Refusal, Verb};
use crate::clock::Clock;
use crate::site::{Body, Ready, SiteResponse, put_field};

/// The response that requests the body from a client that waits for it.
pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The `Connection` field of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The connection goes on, which is the default of HTTP/1.1.
    GoesOn,
    /// The connection goes on, as an HTTP/1.0 client has requested.
    KeepsAlive,
    Closes,
}

impl Manner {
    pub(crate) fn of(head: &Head<'_, '_>, goes_on: bool) -> Manner {
        match (goes_on && head.keep_alive, head.minor) {
            (false, _) => Manner::Closes,
            (true, 0) => Manner::KeepsAlive,
            (true, _) => Manner::GoesOn,
        }
    }

    fn line(self) -> &'static [u8] {
        match self {
            Manner::GoesOn => b"",
            Manner::KeepsAlive => b"Connection: keep-alive\r\n",
            Manner::Closes => b"Connection: close\r\n",
        }
    }
}

/// Writes a prepared response. This is the hot path: three copies and no formatting.
#[inline]
pub(crate) fn write_ready(
    out: &mut Vec<u8>,
    clock: &Clock,
    manner: Manner,
    ready: &Ready,
    verb: Verb,
) {
    let tail = match verb {
        Verb::Head => ready.head(),
        _ => ready.tail(),
    };
    // One allocation. 128 bytes suffice for the status line, the date and `Connection`.
    out.reserve(tail.len() + 128);
    write_start(out, clock, manner, ready.status());
    out.extend_from_slice(tail);
}

/// Writes a response without its body.
pub(crate) fn write_head(
    out: &mut Vec<u8>,
    clock: &Clock,
    manner: Manner,
    response: &SiteResponse,
) {
    write_start(out, clock, manner, response.status);
    for (name, value) in &response.fields {
        put_field(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn write_start(out: &mut Vec<u8>, clock: &Clock, manner: Manner, status: StatusCode) {
    if status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        let reason = status.canonical_reason().unwrap_or("Unknown");
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(reason.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(&clock.date_line());
    out.extend_from_slice(manner.line());
}

/// Returns an error response whose body is a line of text with the reason.
pub(crate) fn refused(refusal: Refusal) -> SiteResponse {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
    let reason = status.canonical_reason().unwrap_or("Unknown");
    let body = format!("{} {reason}: {}\n", refusal.status, refusal.message);
    let mut response = SiteResponse::of(status);
    for (name, value) in &mut response.fields {
        if *name == header::CONTENT_LENGTH {
            *value = body.len().into();
        }
    }
    response.body = Body::Bytes(Bytes::from(body));
    response
}
