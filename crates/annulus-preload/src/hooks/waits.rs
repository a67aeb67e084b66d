//! # Safety
//!
//! Waits in place of the kernel's, in calls of which the library handles a part (Typed, Lent: the header of `hooks`
//! gives the contract). The waits are cancellation points, as the calls are, and no lock is held.
//!
//! Where the kernel repeats a call that a handler with `SA_RESTART` has interrupted, so must the wait. `poll` never is
//! repeated. So the wait is a call of the same kind that has nothing to send: its one byte is in the first page, which
//! is never mapped. It waits for room, and then fails with `EFAULT`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short};

use libc::{iovec, msghdr, pollfd, ssize_t};

use super::blocking::{before_blocking, is_blocking};
use super::unserve::flush;
use super::{FdState, catch_panic, fd_state};
use crate::epoll_set::Set;
use crate::errno::{self, CallResult};
use crate::fd_table::Entry;
use crate::real;
use crate::ring_policy;
use crate::send;
use crate::sys;

/// The end of the time that a socket's limit allows a call. The kernel takes the limit at the start of a call, for all
/// waits of the call together. `None`: no limit.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<u64>);

impl Deadline {
    /// `limit`: `SO_RCVTIMEO` or `SO_SNDTIMEO`.
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

/// Calls the kernel with one byte of the first page. Returns when it would have been sent.
fn send_nothing(send: impl FnOnce(*mut iovec) -> ssize_t) -> Result<(), c_int> {
    let mut nothing = iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    };
    match send(&raw mut nothing) {
        ..0 if errno::get() != libc::EFAULT => Err(errno::get()),
        _ => Ok(()),
    }
}

/// Waits until a pipe has room.
pub(super) unsafe fn wait_for_pipe(fd: c_int) -> Result<(), c_int> {
    before_blocking();
    if ring_policy::may_be_filtered() {
        return pass_on!(poll(fd, libc::POLLOUT, -1)).map(drop);
    }
    send_nothing(|nothing| pass_on!(real::vmsplice(fd, nothing, 1, 0)))
}

/// Returns whether a call that sends, and found no room, waits for it.
pub(super) fn waits_for_room(entry: &'static Entry, fd: c_int) -> bool {
    // A handler that has interrupted the library cannot send the deferred output.
    let may_send = || {
        Set::of(entry)
            .and_then(Set::take)
            .map(|guard| !guard.in_signal_handler())
    };
    is_blocking(fd) && may_send() == Some(true)
}

/// Waits until the send buffer of a connection has room. Returns the events of `poll`, if it was called.
pub(super) unsafe fn wait_for_room(fd: c_int, deadline: Deadline) -> Result<c_short, c_int> {
    before_blocking();
    // With a time limit, the kernel repeats no call.
    if deadline.is_limited() || ring_policy::may_be_filtered() {
        return match pass_on!(poll(fd, libc::POLLOUT, deadline.left_ms()))? {
            0 => Err(libc::EAGAIN),
            events => Ok(events),
        };
    }
    send_nothing(|nothing| {
        let mut message: msghdr = sys::zeroed();
        message.msg_iov = nothing;
        message.msg_iovlen = 1;
        pass_on!(real::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL))
    })?;
    Ok(0)
}

/// Repeats an attempt to send, which fails with `EAGAIN` while there is deferred output, whenever there is room.
pub(super) unsafe fn when_there_is_room(
    fd: c_int,
    flags: c_int,
    deadline: Deadline,
    attempt: impl Fn() -> Option<CallResult>,
) -> Option<CallResult> {
    loop {
        let waited = pass_on!(wait_for_room(fd, deadline));
        if let Err(errno @ (libc::EINTR | libc::EAGAIN)) = waited {
            return Some(Err(errno));
        }
        let result = attempt();
        match (waited, result) {
            (Ok(_), Some(Err(libc::EAGAIN))) => {}
            // The flush thread has not sent, and so has not taken the error of the connection.
            (Err(errno), None | Some(Err(libc::EAGAIN))) => {
                send::raise_if_broken(Err(errno), flags);
                return Some(Err(errno));
            }
            _ => return result,
        }
    }
}

/// Sends queued bytes before a call of the kernel that sends more. If they do not all fit, a call that may block waits,
/// and another fails. Returns an error that the ring or a send has taken, as the kernel returns it only once.
pub(super) unsafe fn flush_before(fd: c_int, flags: c_int) -> Option<CallResult> {
    let FdState::Connection(entry) = fd_state(fd) else {
        return None;
    };
    let attempt = || flush(fd).or_else(|| catch_panic(|| send::take_error(entry, fd)));
    let result = attempt();
    let may_block = flags & libc::MSG_DONTWAIT == 0;
    if result == Some(Err(libc::EAGAIN)) && may_block && waits_for_room(entry, fd) {
        let deadline = Deadline::of(fd, libc::SO_SNDTIMEO);
        return pass_on!(when_there_is_room(fd, flags, deadline, attempt));
    }
    result
}
