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

use super::blocking::before_blocking;
use super::unserve::flush;
use super::{FdState, attempt, catch_panic, fd_state};
use crate::epoll_set::Set;
use crate::errno::{self, CallResult};
use crate::fd_table::Entry;
use crate::real;
use crate::ring_policy;
use crate::send;
use crate::sys;

/// Waits for one of `events`, until `end_ns` if there is an end. Fails with `EAGAIN` then.
pub(super) unsafe fn poll(fd: c_int, events: c_short, end_ns: Option<u64>) -> Result<(), c_int> {
    let left_ms = end_ns.map_or(-1, |end_ns| {
        let left_ns = end_ns.saturating_sub(sys::now_ns());
        c_int::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    });
    let mut request = pollfd {
        fd,
        events,
        revents: 0,
    };
    match pass_on!(real::poll(&raw mut request, 1, left_ms)) {
        ..0 => Err(errno::get()),
        0 => Err(libc::EAGAIN),
        _ => Ok(()),
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
        return pass_on!(poll(fd, libc::POLLOUT, None));
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
    sys::is_blocking(fd) && may_send() == Some(true)
}

/// Waits until the send buffer of a connection has room, or until `end_ns`.
unsafe fn wait_for_room(fd: c_int, end_ns: Option<u64>) -> Result<(), c_int> {
    before_blocking();
    // With a time limit, the kernel repeats no call.
    if end_ns.is_some() || ring_policy::may_be_filtered() {
        return pass_on!(poll(fd, libc::POLLOUT, end_ns));
    }
    send_nothing(|nothing| {
        let mut message: msghdr = sys::zeroed();
        message.msg_iov = nothing;
        message.msg_iovlen = 1;
        pass_on!(real::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL))
    })
}

/// Repeats an attempt to send, which fails with `EAGAIN` while there is deferred output, whenever there is room. Waits
/// for `SO_SNDTIMEO` at most.
pub(super) unsafe fn when_there_is_room(
    fd: c_int,
    flags: c_int,
    attempt: impl Fn() -> Option<CallResult>,
) -> Option<CallResult> {
    let end_ns = sys::limit_ends_ns(fd, libc::SO_SNDTIMEO);
    loop {
        let waited = pass_on!(wait_for_room(fd, end_ns));
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
    attempt(|| Set::before_kernel_write(fd));
    let FdState::Connection(entry) = fd_state(fd) else {
        return None;
    };
    let attempt = || flush(fd).or_else(|| catch_panic(|| send::take_error(entry, fd)));
    let result = attempt();
    let may_block = flags & libc::MSG_DONTWAIT == 0;
    if result == Some(Err(libc::EAGAIN)) && may_block && waits_for_room(entry, fd) {
        return pass_on!(when_there_is_room(fd, flags, attempt));
    }
    result
}
