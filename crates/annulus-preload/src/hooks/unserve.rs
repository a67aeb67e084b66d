//! # Safety
//!
//! Stops serving descriptors that the program uses in a way that no ring can serve (Typed, Lent: the header of `hooks`
//! gives the contract).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::msghdr;

use super::{FdState, attempt, buffered, catch_panic, fd_state};
use crate::counters::Why;
use crate::deferred_output;
use crate::epoll_set::{Set, SetGuard};
use crate::epoll_set_list;
use crate::errno::{self, CallResult};
use crate::fd_table::{self, Entry, Kind, NOT_TCP, SHARED, never_served};
use crate::gate;
use crate::hand_back;
use crate::output;
use crate::ring_policy;
use crate::set_end;
use crate::sockopts;
use crate::stops;
use crate::sys;

/// Hands the descriptor back to the kernel.
pub(super) fn hand_back(fd: c_int, why: Why) {
    if let FdState::Connection(entry) = fd_state(fd) {
        attempt(|| gate::with(entry, fd, |guard, _| hand_back::hand_back(guard, fd, why)));
    }
}

/// Sends queued bytes now. Returns an error if they do not all fit into the send buffer, as no byte may be sent before
/// them.
pub(super) fn flush(fd: c_int) -> Option<CallResult> {
    let FdState::Connection(entry) = fd_state(fd) else {
        return None;
    };
    let is_deferred = |guard: &mut SetGuard, connection| {
        output::flush(guard, connection);
        !guard[connection].backlog.is_empty()
    };
    let is_deferred = catch_panic(|| gate::with(entry, fd, is_deferred));
    (is_deferred == Some(true)).then_some(Err(libc::EAGAIN))
}

/// Stops serving all connections of the same listener, and hands back those that are served. The program will probably
/// make the same call on them, and it would be too late for bytes that a ring has taken.
#[cold]
pub(super) fn never_serve_siblings(fd: c_int, why: Why) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    let a_stream = matches!(entry.kind(), Kind::Stream | Kind::Served | Kind::HandedBack);
    if !a_stream
        || !sockopts::never_serve_siblings(entry, why)
            && !SIBLINGS_REMAIN.swap(false, Ordering::Relaxed)
    {
        return;
    }
    let origin = |entry: &Entry| entry.listener().map(std::ptr::from_ref);
    for other in epoll_set_list::all().flat_map(Set::members) {
        let sibling =
            |other: &&Entry| other.kind() == Kind::Served && origin(other) == origin(entry);
        if other != fd && fd_table::entry(other).filter(sibling).is_some() {
            hand_back(other, why);
            if fd_table::entry(other).filter(sibling).is_some() {
                SIBLINGS_REMAIN.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// A signal handler could not hand all of them back, so the next call does.
static SIBLINGS_REMAIN: AtomicBool = AtomicBool::new(false);

/// Prevents every set from serving the descriptor, and the connections that a listener accepts: they inherit its
/// options.
pub(super) fn never_serve(fd: c_int, why: Why) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    match entry.kind() {
        kind @ (Kind::Stream | Kind::Free) => {
            if kind == Kind::Free {
                entry.set_listener(None);
                entry.set_epoll_set(std::ptr::null_mut());
            }
            // For a file that is not a stream this has no effect, and `close` forgets it.
            entry.set_kind(Kind::Stream, never_served(entry.flags(), why));
        }
        Kind::HandedBack => entry.set_kind(Kind::HandedBack, never_served(entry.flags(), why)),
        Kind::Listener => stops::stop_listener(entry, why),
        _ => {}
    }
}

/// Prevents every set from serving a TCP socket that no set has had yet, as another number or process is about to share
/// it: a ring would take the bytes of both.
pub(super) fn never_serve_unknown(fd: c_int, why: Why) {
    let is_unknown = |entry: &&Entry| {
        entry.kind() == Kind::Free && entry.inherited() == Kind::Free && !entry.has_mark(NOT_TCP)
    };
    // A filter from before the start may end a process without sockets for the queries.
    let is_stream = || {
        let option = |name| sys::option(fd, libc::SOL_SOCKET, name);
        sys::is_socket(fd)
            && option(libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
            && option(libc::SO_ACCEPTCONN) == Ok(0)
    };
    if fd_table::entry(fd).filter(is_unknown).is_some()
        && !ring_policy::may_be_filtered()
        && errno::keep(is_stream)
    {
        never_serve(fd, why);
    }
}

/// Stops serving a descriptor with signal-driven I/O: on a signal, the program reads without waiting until the kernel
/// has no data. A ring does not report urgent data either.
pub(super) fn on_signal_driven_io(fd: c_int) {
    match fd_state(fd) {
        FdState::Connection(_) => {
            never_serve_siblings(fd, Why::UnknownFlags);
            hand_back(fd, Why::UnknownFlags);
        }
        FdState::Kernel
            if fd_table::entry(fd).is_some_and(|entry| entry.kind() != Kind::Listener) =>
        {
            never_serve(fd, Why::UnknownFlags);
        }
        _ => {}
    }
}

/// Returns whether the next read is at the mark of urgent data. `None`: passes through to the kernel.
pub(super) fn at_mark(fd: c_int) -> Option<bool> {
    never_serve_siblings(fd, Why::UnknownFlags);
    hand_back(fd, Why::UnknownFlags);
    // Buffered bytes are read first, so the mark is further on.
    (buffered(fd) > 0).then_some(false)
}

/// Stops serving a descriptor that is about to be passed to another process. Bytes that a ring has received and the
/// program has not read are lost to that process. So later connections of the listener, which the program will probably
/// pass on as well, are not served.
fn pass_on(fd: c_int) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    match entry.kind() {
        Kind::Served => {
            never_serve_siblings(fd, Why::PassedOn);
            hand_back(fd, Why::PassedOn);
            send_before_sharing(fd);
        }
        kind @ (Kind::Stream | Kind::HandedBack) => {
            entry.set_kind(kind, never_served(entry.flags() | SHARED, Why::PassedOn));
            send_before_sharing(fd);
        }
        Kind::Set => {
            catch_panic(|| {
                let mut guard = Set::of(entry)?.take()?;
                set_end::pass_through_set(&mut guard, Why::PassedOn);
                Some(())
            });
        }
        Kind::Free => never_serve_unknown(fd, Why::PassedOn),
        _ => {}
    }
}

fn send_before_sharing(fd: c_int) {
    catch_panic(|| {
        let mut guard = Set::of(fd_table::entry(fd)?)?.take()?;
        let connection = guard.connection(fd)?;
        deferred_output::send_before_sharing(&mut guard, connection);
        Some(())
    });
}

/// Marks descriptors that a message passes to another process as shared.
pub(super) unsafe fn mark_passed_fds_shared(message: &msghdr) {
    if message.msg_controllen == 0 || message.msg_control.is_null() {
        return;
    }
    // SAFETY: Lent: the program passes a message with `msg_controllen` bytes of headers.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: Lent: null, or a header within those bytes.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: Typed: arithmetic only.
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            // SAFETY: Lent: within the header above.
            let fds = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            for nth in 0..count {
                // SAFETY: Lent: `cmsg_len` of the program counts these descriptors.
                let fd = unsafe { fds.add(nth).read_unaligned() };
                pass_on(fd);
            }
        }
        // SAFETY: Lent: as above; the function checks the length of the message.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}
