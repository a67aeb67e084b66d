//! Deferred output: bytes of open connections that a write has accepted but that did not fit into the kernel's send
//! buffer. The set's ring polls for writability whenever its thread waits there. The thread may wait elsewhere, or
//! never again, so the flush thread watches the connection as well (`flush_thread`, `writability`) once it has noticed
//! that bytes stay deferred.

use crate::connection::Conn;
use crate::draining;
use crate::epoll_set::{Set, SetGuard};
use crate::epoll_set_list;
use crate::events::OUT;
use crate::fd_table::{self, Entry, Kind, SHARED};
use crate::hand_back;
use crate::output;
use crate::sockopts;
use crate::sys;
use crate::writability;

/// Identifies a watched connection: its number and generation.
fn event_key(fd: i32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(fd as u32)
}

/// Watches connections whose output has been deferred since the last call. Called by the flush thread. Returns whether
/// one cannot be watched and must be retried.
pub(crate) fn watch_new() -> bool {
    let mut retry = draining::watch_new();
    for set in epoll_set_list::all().filter(|set| set.has_deferred()) {
        // The owner may be in the kernel with the ring, which this does not use.
        let Some(mut guard) = set.take_during_enter() else {
            continue;
        };
        set.set_has_deferred(false);
        for fd in std::mem::take(&mut guard.deferred) {
            let Some(connection) = guard.connection(fd) else {
                continue;
            };
            guard[connection].awaits_watch = false;
            if guard[connection].backlog.is_empty() {
                continue;
            }
            if !writability::watch(
                fd,
                event_key(fd, guard[connection].generation),
                libc::EPOLLOUT as u32,
            ) {
                retry = true;
                try_send(&mut guard, connection);
                output::mark_deferred(&mut guard, connection);
            }
        }
    }
    retry
}

/// Returns whether there is deferred output that is not watched yet.
pub(crate) fn has_unwatched() -> bool {
    draining::has_unwatched() || epoll_set_list::all().any(Set::has_deferred)
}

/// Handles a connection that `writability` reports as writable.
pub(crate) fn on_writable(event_key: u64) {
    let fd = event_key as u32 as i32;
    if draining::on_ready(fd) {
        return;
    }
    let Some(mut guard) = fd_table::entry(fd)
        .and_then(Set::of)
        .and_then(Set::take_during_enter)
    else {
        return writability::forget(fd);
    };
    match guard.connection(fd) {
        // The number of a connection that is open by a duplicate now belongs to another.
        Some(connection) if u64::from(guard[connection].generation) != event_key >> 32 => {}
        Some(connection) if !guard[connection].backlog.is_empty() => {
            try_send(&mut guard, connection);
        }
        _ => writability::forget(fd),
    }
}

/// Sends deferred output, unless the ring does: while the owner is in the kernel, the ring is notified as well. A
/// connection that was handed back is no longer in the ring.
fn try_send(guard: &mut SetGuard, connection: Conn) {
    let is_served = fd_table::is(connection.fd, Kind::Served);
    if is_served && (guard.in_signal_handler() || guard.pushed) {
        return;
    }
    output::send_backlog(guard, connection);
    hand_back::finish_hand_back(guard, connection);
    if guard[connection].backlog.is_empty() {
        writability::forget(connection.fd);
    }
}

/// Sends the deferred output of the connections of a set before a fork: the child may write behind it.
pub(crate) fn send_before_fork(guard: &mut SetGuard) {
    if !std::mem::take(&mut guard.may_have_backlog) {
        return;
    }
    for connection in guard.connections() {
        send_before_sharing(guard, connection);
        guard.may_have_backlog |= !guard[connection].backlog.is_empty();
    }
}

/// `SO_BUF_LOCK` (Linux 5.14): the buffers whose size the program has set, so that the kernel does not change it.
const SO_BUF_LOCK: i32 = 72;

/// Sends the deferred output of a connection that another process is about to get, which may write behind it. The send
/// buffer is enlarged meanwhile, unless the kernel has grown it. Bytes that do not fit in it stay deferred.
pub(crate) fn send_before_sharing(guard: &mut SetGuard, connection: Conn) {
    let fd = connection.fd;
    if guard[connection].backlog.is_empty() || guard.in_signal_handler() || guard.pushed {
        return;
    }
    let Ok(locks) = sys::option(fd, libc::SOL_SOCKET, SO_BUF_LOCK) else {
        return;
    };
    let (sent, former) = draining::send_enlarged(fd, guard[connection].backlog.as_slice());
    guard[connection].backlog.take(sent);
    if let Some(bytes) = former {
        // The kernel doubles the size, for its bookkeeping.
        sys::set_option(fd, libc::SO_SNDBUF, bytes / 2);
        sys::set_option(fd, SO_BUF_LOCK, locks);
    }
    try_send(guard, connection);
}

/// Applies SO_LINGER before the program closes a connection: a lingering close includes deferred output, and a
/// resetting close discards it. A connection that another descriptor or process shares does neither.
pub(crate) fn linger_before_close(entry: &Entry, set: &'static Set, fd: i32) {
    if entry.flags() & SHARED != 0 || !sockopts::has_linger(fd) {
        return;
    }
    let seconds = sys::linger_s(fd).and_then(|seconds| u64::try_from(seconds).ok());
    let Some(seconds) = seconds else { return };
    let deadline_ns = sys::now_ns().saturating_add(seconds.saturating_mul(1_000_000_000));
    while let Some(mut guard) = set.take().filter(|guard| !guard.in_signal_handler())
        && let Some(connection) = guard.connection(fd)
    {
        output::flush(&mut guard, connection);
        let left_ns = deadline_ns.saturating_sub(sys::now_ns());
        if seconds == 0 {
            guard[connection].backlog.clear();
        }
        if guard[connection].backlog.is_empty() || left_ns == 0 {
            return;
        }
        drop(guard);
        if sys::poll(fd, OUT, Some(left_ns)).is_err() {
            return;
        }
    }
}

/// Sends as much deferred output of all connections as fits. Returns whether some is left.
pub(crate) fn flush_all() -> bool {
    let mut left = draining::flush_all();
    epoll_set_list::for_each_during_enter(|guard| {
        for connection in guard.connections() {
            if !guard[connection].backlog.is_empty() {
                try_send(guard, connection);
                left |= !guard[connection].backlog.is_empty();
            }
        }
    });
    left
}

/// Waits until all output is sent, or until `deadline_ns`.
pub(crate) fn wait_until(deadline_ns: u64) {
    while flush_all() && sys::now_ns() < deadline_ns {
        sys::pause_us(500);
    }
}
