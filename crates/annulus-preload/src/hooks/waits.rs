//! # Safety
//!
//! Waits in place of the kernel's, in calls of which the library handles a part (Typed, Lent: the header of `hooks`
//! gives the contract). The waits are cancellation points, as the calls are, and no lock is held.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short};

use libc::pollfd;

use super::blocking::before_blocking;
use crate::errno;
use crate::real;
use crate::sys;

/// The end of the time that a socket's limit allows a call. The kernel takes the limit at the start of a call, for all
/// waits of the call together. `None`: no limit.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<u64>);

impl Deadline {
    /// `limit`: the socket option, such as `SO_RCVTIMEO`.
    pub(super) fn of(fd: c_int, limit: c_int) -> Deadline {
        let limit_ns = sys::timeout_ns(fd, limit);
        Deadline(limit_ns.map(|ns| sys::now_ns().saturating_add(ns)))
    }

    pub(super) fn is_limited(self) -> bool {
        self.0.is_some()
    }

    /// Returns the time left, ms, as `poll` takes it.
    fn left_ms(self) -> c_int {
        self.0.map_or(-1, |end_ns| {
            let left_ns = end_ns.saturating_sub(sys::now_ns());
            c_int::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX)
        })
    }
}

/// Waits for one of `events`. Returns the events; empty at the end of the time.
unsafe fn poll(fd: c_int, events: c_short, timeout_ms: c_int) -> Result<c_short, c_int> {
    let mut request = pollfd {
        fd,
        events,
        revents: 0,
    };
    match pass_on!(real::poll(&raw mut request, 1, timeout_ms)) {
        ..0 => Err(errno::get()),
        _ => Ok(request.revents),
    }
}

/// The interval at which a wait for more bytes than there are looks for them, ms: the kernel reports only the first.
const LOOK_MS: c_int = 1;

/// Waits until `wanted` bytes can be read. Returns `false` if the wait ends before: at the deadline, at the end of the
/// stream, at a signal, or at urgent data, before which the kernel ends a receive.
pub(super) unsafe fn wait_for_bytes(fd: c_int, wanted: usize, deadline: Deadline) -> bool {
    loop {
        let available = sys::readable(fd);
        if sys::is_at_mark(fd) {
            return false;
        }
        if available >= wanted {
            return true;
        }
        before_blocking();
        let left_ms = deadline.left_ms();
        let ends = libc::POLLRDHUP | libc::POLLPRI;
        let (events, timeout_ms) = match available {
            0 => (libc::POLLIN | ends, left_ms),
            _ => (ends, left_ms.min(LOOK_MS)),
        };
        let is_last = left_ms == 0;
        match pass_on!(poll(fd, events, timeout_ms)) {
            Ok(0) if is_last => return false,
            Ok(events) if events & !libc::POLLIN == 0 => {}
            _ => return false,
        }
    }
}
