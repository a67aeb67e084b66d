//! # Safety
//!
//! Other calls that wait for a descriptor: it is handed back, and its buffered bytes make it readable (Typed, Lent: the
//! header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_int, c_short, c_ulong};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use super::blocking::{before_blocking, before_repeat};
use super::unserve::hand_back;
use super::{FdState, catch_panic, fd_state, may_be_mapped};
use crate::counters::Why;
use crate::epoll_ctl;
use crate::epoll_set::SetGuard;
use crate::events::ERR;
use crate::fd_table::{self, Kind};
use crate::gate;

/// Hands the descriptor back. Returns the events that the kernel does not know of, in the form of `poll`.
fn prepare(fd: c_int) -> c_short {
    const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM;
    if let Some(entry) = fd_table::entry(fd)
        && entry.kind() == Kind::Set
    {
        let is_ready = catch_panic(|| epoll_ctl::on_outer_poll(entry).then_some(READABLE));
        return is_ready.unwrap_or(0);
    }
    hand_back(fd, Why::PolledOtherwise);
    let FdState::Connection(entry) = fd_state(fd) else {
        return 0;
    };
    let held = |guard: &mut SetGuard, connection| guard[connection].held_events();
    match catch_panic(|| gate::with(entry, fd, held)) {
        None | Some(0) => 0,
        Some(held) => READABLE | (held & ERR) as c_short,
    }
}

hooks! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        match timeout_ms {
            0 => before_repeat(),
            _ => before_blocking(),
        }
        pass_on!(poll_with(fds, count, |any| real(fds, count, if any { 0 } else { timeout_ms })))
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, _capacity: usize) -> c_int {
        pass_on!(poll(fds, count, timeout_ms))
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t,
        _capacity: usize) -> c_int {
        pass_on!(ppoll(fds, count, timeout, mask))
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        before_blocking();
        pass_on!(poll_with(fds, count, |any| {
            real(fds, count, if any { &raw const NOW } else { timeout }, mask)
        }))
    }
}

/// The timeout of a wait that finds buffered bytes.
pub(super) static NOW: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Adds the descriptors with buffered bytes to the result of `call`, which waits for the others.
pub(super) unsafe fn poll_with(
    fds: *mut pollfd,
    count: nfds_t,
    call: impl FnOnce(bool) -> c_int,
) -> c_int {
    let any = pass_on!(prepare_all(fds, count));
    let ret = call(any);
    match any && ret >= 0 {
        true => pass_on!(add_buffered(fds, count)),
        false => ret,
    }
}

unsafe fn prepare_all(fds: *mut pollfd, count: nfds_t) -> bool {
    if !may_be_mapped(fds) || count > fd_table::count() as nfds_t {
        return false;
    }
    let mut any = false;
    for nth in 0..count as usize {
        // SAFETY: Lent: the program passes `count` requests; see `may_be_mapped`.
        let request = unsafe { fds.add(nth).read() };
        any |= request.fd >= 0 && prepare(request.fd) & (request.events | libc::POLLERR) != 0;
    }
    any
}

unsafe fn add_buffered(fds: *mut pollfd, count: nfds_t) -> c_int {
    let mut ready = 0;
    for nth in 0..count as usize {
        // SAFETY: Lent: the program passes `count` requests, which `poll` has just written.
        let request = unsafe { &mut *fds.add(nth) };
        if request.fd >= 0 {
            request.revents |= prepare(request.fd) & (request.events | libc::POLLERR);
        }
        ready += c_int::from(request.revents != 0);
    }
    ready
}

/// Adds the descriptors with buffered bytes to the result of `call`, which waits for the others.
pub(super) unsafe fn select_with<Call: FnOnce(bool) -> c_int>(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    call: Call,
) -> c_int {
    let sets = [read, write, except];
    // A program may use sets that are larger than the type.
    let select: unsafe fn(c_int, [*mut fd_set; 3], Call) -> c_int = match usize::try_from(count) {
        Ok(libc::FD_SETSIZE..) => select_up_to::<{ fd_table::COUNT_MAX / WORD }, Call>,
        _ => select_up_to::<{ libc::FD_SETSIZE / WORD }, Call>,
    };
    pass_on!(select(count, sets, call))
}

/// The bits of a word of a set.
const WORD: usize = c_ulong::BITS as usize;

unsafe fn select_up_to<const WORDS: usize, Call: FnOnce(bool) -> c_int>(
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    call: Call,
) -> c_int {
    // On the stack: a handler that jumps out of an allocation would leave the lock of `malloc` taken.
    let mut buffered: [c_ulong; WORDS] = [0; WORDS];
    let numbers = 0..usize::try_from(count).unwrap_or(0).min(WORDS * WORD);
    let bit = |fd: usize| 1 << (fd % WORD);
    // SAFETY: Lent: the program passes sets of `count` bits, or null.
    let word = |set: *mut fd_set, fd: usize| unsafe { &mut *set.cast::<c_ulong>().add(fd / WORD) };
    let has = |set: *mut fd_set, fd: usize| may_be_mapped(set) && *word(set, fd) & bit(fd) != 0;
    for fd in numbers.clone() {
        if has(read, fd) || has(write, fd) || has(except, fd) {
            let ready = prepare(fd as c_int) != 0;
            if ready && has(read, fd) {
                buffered[fd / WORD] |= bit(fd);
            }
        }
    }
    let any = buffered.iter().any(|&word| word != 0);
    let ret = call(any);
    if ret < 0 || !any {
        return ret;
    }
    let mut ready = ret;
    for fd in numbers {
        if buffered[fd / WORD] & bit(fd) != 0 && !has(read, fd) {
            *word(read, fd) |= bit(fd);
            ready += 1;
        }
    }
    ready
}

hooks! {
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int {
        before_blocking();
        let mut now = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        pass_on!(select_with(count, read, write, except, |any| {
            let timeout = if any { &raw mut now } else { timeout };
            real(count, read, write, except, timeout)
        }))
    }

    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int {
        before_blocking();
        pass_on!(select_with(count, read, write, except, |any| {
            let timeout = if any { &raw const NOW } else { timeout };
            real(count, read, write, except, timeout, mask)
        }))
    }
}
