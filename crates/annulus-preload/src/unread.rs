//! # Safety
//!
//! The unread bytes of a connection: in a receive buffer of the ring, of which the connection is a reader, or copied
//! out of it (Owned).
#![allow(unsafe_code)]

use crate::connection::Conn;
use crate::epoll_set::Inner;

/// Releases the buffer of a connection, all of whose bytes were read.
#[inline]
pub(crate) fn release_buffer(inner: &mut Inner, connection: Conn) {
    inner[connection].at = std::ptr::null_mut();
    if let Some(mut context) = inner.ring.take() {
        inner.release(&mut context, inner[connection].buffer);
        inner.ring = Some(context);
    }
}

/// Copies buffered bytes out of the shared receive buffer, so that a connection that does not read cannot starve
/// others.
pub(crate) fn copy_out(inner: &mut Inner, connection: Conn) {
    if inner[connection].bytes == 0 {
        return;
    }
    // SAFETY: Owned: the connection's part of a buffer of which it is a reader.
    let first = unsafe {
        std::slice::from_raw_parts(inner[connection].at, inner[connection].bytes as usize)
    };
    let later = inner[connection].copied_out.move_out();
    inner[connection].copied_out.append(first);
    inner[connection].copied_out.append(later.as_slice());
    inner[connection].bytes = 0;
    release_buffer(inner, connection);
}

/// Frees all buffers that have readers.
pub(crate) fn copy_all_out(inner: &mut Inner) {
    for fd in inner.members() {
        if let Some(connection) = inner.connection(fd) {
            copy_out(inner, connection);
        }
    }
    // If the buffers were all free, no release has re-armed these.
    for fd in std::mem::take(&mut inner.starved) {
        if let Some(connection) = inner.connection(fd) {
            inner.arm(connection);
        }
    }
}
