//! # Safety
//!
//! Closes of sockets without a ring. Invariant: Open.
#![allow(unsafe_code)]

use crate::fd::CloseSocket;

/// Closes a socket without a ring.
pub(super) fn close_now(raw: i32) {
    // SAFETY: Open: the last holder of the socket is gone, and gives the number up.
    let _ = unsafe { crate::sys::call::close(raw) };
}

/// Closes sockets whose core no longer exists.
pub(super) struct Plain;

impl CloseSocket for Plain {
    fn close(&self, raw: i32, _: Option<u32>) {
        close_now(raw);
    }
}
