//! # Safety
//!
//! Descriptors: closing, duplicating, flags (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_int, c_uint, c_ulong};

use super::blocking::{self, before_blocking, before_repeat};
use super::unserve::{at_mark, flush, hand_back, never_serve_unknown, on_signal_driven_io};
use super::{FdState, attempt, buffered, catch_panic, create, fd_state, is_closed, may_be_mapped};
use crate::counters::{self, Call, Why};
use crate::descriptor as of;
use crate::early_members;
use crate::errno::{self, into_return_int};
use crate::fd_table::{self, Kind};
use crate::real;
use crate::receive;
use crate::ring_policy;
use crate::sys;

hooks! {
    fn close(fd: c_int) -> c_int {
        let tracked = fd_table::entry(fd).filter(|entry| entry.kind() != Kind::Free);
        let Some(entry) = tracked else {
            of::forget(fd);
            return pass_on!(real(fd));
        };
        let was_served = entry.kind() == Kind::Served;
        let result = catch_panic(|| of::close(entry, fd));
        if was_served || result.is_some() {
            counters::served(Call::Close);
        }
        match result {
            Some(result) => into_return_int(result),
            None => pass_on!(real(fd)),
        }
    }
}

/// The flags of `close_range`: the calling thread gets private descriptors; sets close-on-exec and closes nothing.
const CLOSE_RANGE_UNSHARE: c_int = 2;
const CLOSE_RANGE_CLOEXEC: c_int = 4;

hooks! {
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let is_valid = first <= last && flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) == 0;
        if is_valid && flags & CLOSE_RANGE_UNSHARE != 0 {
            let unshare = || pass_on!(blocking::unshare(libc::CLONE_FILES));
            return match unshare() {
                0 => pass_on!(close_range(first, last, flags & !CLOSE_RANGE_UNSHARE)),
                error => error,
            };
        }
        if !is_valid || flags & CLOSE_RANGE_CLOEXEC != 0 {
            return pass_on!(real(first, last, flags));
        }
        // Tracked descriptors are closed one by one, and the kernel closes the ranges between them.
        let mut from = first;
        let end = (last as usize).min(fd_table::count().saturating_sub(1)) as c_uint;
        for fd in first..=end {
            let tracked = fd_table::entry(fd as c_int).filter(|entry| entry.kind() != Kind::Free);
            if tracked.is_none() {
                of::forget(fd as c_int);
                continue;
            }
            if from < fd {
                pass_on!(real(from, fd - 1, flags));
            }
            from = fd + 1;
            // Descriptors of a ring do not belong to the program.
            if tracked.is_some_and(|entry| entry.kind() != Kind::Library) {
                pass_on!(close(fd as c_int));
            }
            if fd == c_uint::MAX {
                return 0;
            }
        }
        if from > last {
            return 0;
        }
        pass_on!(real(from, last, flags))
    }

    fn closefrom(first: c_int) -> () { pass_on!(close_range(first.max(0) as c_uint, c_uint::MAX, 0)); }

    fn dup(fd: c_int) -> c_int {
        let shared = before_duplicate(fd);
        duplicated(fd, create(|| pass_on!(real(fd))), shared)
    }

    fn dup2(fd: c_int, to: c_int) -> c_int { pass_on!(dup_to(fd, to, None)) }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int { pass_on!(dup_to(fd, to, Some(flags))) }
}

unsafe fn dup_to(fd: c_int, to: c_int, flags: Option<c_int>) -> c_int {
    let shared = before_duplicate(fd);
    // The call closes the previous file of the number. A served connection is closed first, so that none of its output
    // is lost.
    let is_duplicate = |entry| catch_panic(|| of::is_duplicate(entry, fd, to).then_some(()));
    let changes = fd != to && shared.and_then(is_duplicate).is_none();
    // A call that the kernel refuses closes nothing.
    let is_valid = || {
        flags.unwrap_or(0) & !libc::O_CLOEXEC == 0
            && sys::flags_of(fd).is_ok()
            && (ring_policy::may_be_filtered() || (to as u64) < sys::fd_limit())
    };
    let tracked = fd_table::entry(to).filter(|entry| entry.kind() != Kind::Free);
    if changes
        && let Some(entry) = tracked
        && is_valid()
    {
        if entry.kind() == Kind::Library {
            errno::set(libc::EBUSY);
            return -1;
        }
        attempt(|| of::release_number(entry, to));
    }
    let ret = match flags {
        None => pass_on!(real::dup2(fd, to)),
        Some(flags) => pass_on!(real::dup3(fd, to, flags)),
    };
    match changes {
        true => duplicated(fd, ret, shared),
        false => ret,
    }
}

/// Prepares a descriptor that is about to be duplicated.
fn before_duplicate(fd: c_int) -> Option<&'static fd_table::Entry> {
    hand_back(fd, Why::Duplicated);
    never_serve_unknown(fd, Why::Duplicated);
    if fd_table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Listener) {
        attempt(|| crate::listeners::on_close(fd, true));
    }
    fd_table::entry(fd).filter(|entry| entry.kind() != Kind::Free)
}

fn duplicated(fd: c_int, to: c_int, shared: Option<&'static fd_table::Entry>) -> c_int {
    if to == libc::STDERR_FILENO {
        attempt(crate::log::on_stderr);
    }
    if to >= 0
        && let Some(entry) = fd_table::entry(to)
    {
        attempt(|| of::duplicate((shared, fd), entry, to));
    }
    to
}

const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

hooks! {
    fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
            let shared = before_duplicate(fd);
            let to = create(|| pass_on!(real(fd, command, argument)));
            return duplicated(fd, to, shared);
        }
        if is_closed(fd) {
            return -1;
        }
        if matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) {
            before_blocking();
        }
        let by_signals = match command {
            libc::F_SETFL => argument as c_int & libc::O_ASYNC != 0,
            // 0 is the default.
            libc::F_SETOWN | F_SETSIG => argument as c_int != 0,
            _ => command == F_SETOWN_EX,
        };
        if by_signals {
            on_signal_driven_io(fd);
        }
        let ret = pass_on!(real(fd, command, argument));
        if command == libc::F_SETFL && ret == 0 {
            set_blocking(fd, argument as c_int & libc::O_NONBLOCK == 0);
        }
        ret
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int { pass_on!(fcntl(fd, command, argument)) }
}

/// Records whether calls on the descriptor block.
fn set_blocking(fd: c_int, blocks: bool) {
    if blocks {
        hand_back(fd, Why::Blocking);
    }
    if let Some(entry) = fd_table::entry(fd)
        && matches!(entry.kind(), Kind::Stream | Kind::Served | Kind::Listener)
    {
        match blocks {
            true => entry.clear_flag(fd_table::NONBLOCK),
            false => entry.set_flag(fd_table::NONBLOCK),
        }
        if !blocks && entry.kind() == Kind::Stream {
            attempt(|| early_members::on_nonblocking(entry, fd));
        }
    }
}

pub(super) const SIOCATMARK: c_ulong = 0x8905;
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
const SIOCOUTQNSD: c_ulong = 0x894b;

hooks! {
    fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
        if is_closed(fd) {
            return -1;
        }
        match request {
            FIOSETOWN | SIOCSPGRP | libc::FIOASYNC => {
                let pointer = std::ptr::with_exposed_provenance::<c_int>(argument as usize);
                // SAFETY: Lent: the program passes an int to read for these requests; see `may_be_mapped`.
                if may_be_mapped(pointer) && unsafe { pointer.read_unaligned() } != 0 {
                    on_signal_driven_io(fd);
                }
            }
            SIOCATMARK => {
                let pointer = std::ptr::with_exposed_provenance_mut::<c_int>(argument as usize);
                if let Some(at_mark) = at_mark(fd)
                    && may_be_mapped(pointer)
                {
                    // SAFETY: Lent: the program passes an int to write for this request; see `may_be_mapped`.
                    unsafe { pointer.write_unaligned(c_int::from(at_mark)) };
                    return 0;
                }
            }
            libc::FIONREAD => before_repeat(),
            _ => {}
        }
        let state = fd_state(fd);
        let FdState::Connection(entry) = state else {
            let ret = pass_on!(real(fd, request, argument));
            after_ioctl(fd, request, argument, ret);
            return ret;
        };
        let more = match request {
            libc::FIONREAD => buffered(fd),
            libc::FIONBIO => 0,
            // Queued bytes are flushed first, as the kernel would have them; deferred bytes are added.
            libc::TIOCOUTQ | SIOCOUTQNSD => {
                flush(fd);
                catch_panic(|| receive::unsent(entry, fd)).unwrap_or(0)
            }
            _ => {
                flush(fd);
                0
            }
        };
        let ret = pass_on!(real(fd, request, argument));
        if ret == 0 && more > 0 && argument != 0 {
            let pointer = std::ptr::with_exposed_provenance_mut::<c_int>(argument as usize);
            // SAFETY: Lent: the kernel has just written the program's int there, as the call succeeded.
            unsafe { *pointer += more as c_int };
        }
        after_ioctl(fd, request, argument, ret);
        ret
    }
}

fn after_ioctl(fd: c_int, request: c_ulong, argument: c_ulong, ret: c_int) {
    if request == libc::FIONBIO && ret == 0 && argument != 0 {
        let pointer = std::ptr::with_exposed_provenance::<c_int>(argument as usize);
        // SAFETY: Lent: the kernel has just read the program's int there, as the call succeeded.
        set_blocking(fd, unsafe { *pointer } == 0);
    }
}
