//! # Safety
//!
//! The unread bytes of a connection: in a receive buffer of the ring, of which the connection is a reader, or copied
//! out of it (Owned).
#![allow(unsafe_code)]

use crate::byte_queue::ByteQueue;
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
    let later = inner[connection].copied_out.move_out();
    let mut copied_out = ByteQueue::new();
    copied_out.append(inner[connection].received());
    copied_out.append(later.as_slice());
    inner[connection].copied_out = copied_out;
    inner[connection].bytes = 0;
    release_buffer(inner, connection);
}

/// Frees all buffers that have readers.
pub(crate) fn copy_all_out(inner: &mut Inner) {
    for connection in inner.connections() {
        copy_out(inner, connection);
    }
    // If the buffers were all free, no release has re-armed these.
    inner.arm_starved();
}
