//! # Safety
//!
//! Streams of stdio. libc reads, writes and closes them by internal calls, which no hook sees. A connection that
//! becomes a stream is handed back, and a descriptor that a stream closes is forgotten (Typed, Lent: the header of
//! `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_char, c_int};

use libc::FILE;

use super::io::read_buffered;
use super::unserve::{hand_back, never_serve};
use super::{attempt, may_be_mapped};
use crate::counters::Why;
use crate::descriptor as of;
use crate::fd_table::{self, Kind};

hooks! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        let stream = pass_on!(real(fd, mode));
        let is_connection = fd_table::entry(fd).is_some_and(|entry| {
            let kind = entry.kind();
            matches!(kind, Kind::Stream | Kind::Served | Kind::HandedBack)
        });
        if stream.is_null() || !is_connection {
            return stream;
        }
        hand_back(fd, Why::Stdio);
        never_serve(fd, Why::Stdio);
        if pass_on!(only_reads(mode)) {
            push_back(stream, &read_buffered(fd));
        }
        stream
    }
}

/// Returns whether a mode that `fdopen` has accepted only reads: "r" without a plus. A stream that is written first
/// would drop bytes that were pushed back into it.
unsafe fn only_reads(mode: *const c_char) -> bool {
    // SAFETY: Lent: a mode that the C library has accepted is a string of at least one byte.
    let reads = unsafe { *mode } == b'r' as c_char;
    // SAFETY: Lent: as above; the string ends with a zero.
    reads && unsafe { libc::strchr(mode, c_int::from(b'+')) }.is_null()
}

/// Pushes buffered bytes back into the stream; glibc accepts any number of them.
fn push_back(stream: *mut FILE, bytes: &[u8]) {
    for &byte in bytes.iter().rev() {
        // SAFETY: Typed: an open stream, which `fdopen` has just returned.
        if unsafe { libc::ungetc(c_int::from(byte), stream) } == libc::EOF {
            break;
        }
    }
}

hooks! {
    before { pass_on!(before_close(stream)) }
    fn fclose(stream: *mut FILE) -> c_int;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
}

/// Forgets a number that libc is about to close.
unsafe fn before_close(stream: *mut FILE) {
    if !may_be_mapped(stream) {
        return;
    }
    // SAFETY: Typed: the program passes an open stream.
    let fd = unsafe { libc::fileno(stream) };
    let tracked =
        fd_table::entry(fd).filter(|entry| !matches!(entry.kind(), Kind::Free | Kind::Library));
    if let Some(entry) = tracked {
        hand_back(fd, Why::Stdio);
        attempt(|| of::release_number(entry, fd));
    } else {
        of::forget(fd);
    }
}
