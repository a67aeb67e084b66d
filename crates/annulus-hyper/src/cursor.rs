//! # Safety
//!
//! Receives directly into hyper's read buffer. hyper has no safe access to its memory without zeroing it. The stream
//! writes to the memory during the call only, and at most as many bytes as it reports are taken as initialised
//! (Written).
#![allow(unsafe_code)]

use std::io;
use std::task::{Context, Poll};

use annulus::net::{AsyncStream, ConnectedStream};
use hyper::rt::ReadBufCursor;

/// Receives directly into the unfilled part of `buf`, if [`AsyncStream::poll_direct`] does.
#[inline]
pub(crate) fn receive<S: ConnectedStream>(
    stream: &mut AsyncStream<S>,
    context: &mut Context<'_>,
    buf: &mut ReadBufCursor<'_>,
) -> Option<Poll<io::Result<()>>> {
    // SAFETY: Written: `poll_direct` only initialises bytes, and never makes one uninitialised.
    let polled = stream.poll_direct(context, unsafe { buf.as_mut() })?;
    Some(polled.map_ok(|bytes| {
        // SAFETY: Written: `poll_direct` has initialised that many bytes at the front.
        unsafe { buf.advance(bytes) }
    }))
}
