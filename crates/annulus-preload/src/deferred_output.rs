//! What a write has been told is taken, and the kernel had no room for, of connections that are open: it is put aside.
//! The ring of its set asks for room whenever its thread waits there; as the thread may wait elsewhere or never again,
//! the library's own thread asks as well (`watchdog`, `room`), once it has seen that something stays aside.

use crate::connection::{self as flag, Conn};
use crate::draining;
use crate::epoll_set::{Held, Inner, Set};
use crate::epoll_set_list;
use crate::fd_table::{self, Entry, Kind, SHARED};
use crate::flush_thread;
use crate::hand_back;
use crate::send;
use crate::sockopts;
use crate::sys;
use crate::writability;

/// Keeps bytes of a connection that the kernel has no room for, behind those that are kept already.
pub(crate) fn put_aside(inner: &mut Inner, fd: i32, mut connection: Conn, rest: &[u8]) {
    connection.backlog.append(rest);
    is_aside(inner, fd, connection);
}

/// Has the library's thread look after a rest.
pub(crate) fn is_aside(inner: &mut Inner, fd: i32, mut connection: Conn) {
    if connection.backlog.is_empty() || connection.is(flag::ASIDE) {
        return;
    }
    connection.mark(flag::ASIDE);
    inner.aside.push(fd);
    if let Some(set) = fd_table::entry(fd).and_then(Set::of) {
        set.tell_of_rests(true);
    }
    flush_thread::look_out();
}

/// Where room is waited for: of a connection, by its number and generation.
fn name(fd: i32, connection: Conn) -> u64 {
    u64::from(connection.generation) << 32 | u64::from(fd as u32)
}

/// Looks after what has been put aside since the last look. By the library's thread. True: something can't be waited
/// for, and is to be looked at again.
pub(crate) fn look() -> bool {
    let mut again = draining::look();
    for set in epoll_set_list::all().filter(|set| set.has_rests()) {
        // Its owner may be in the kernel with the ring: that has no part in this.
        let Some(mut held) = set.take_beside_ring() else {
            continue;
        };
        set.tell_of_rests(false);
        for fd in std::mem::take(&mut held.aside) {
            let Some(mut connection) = held.connection(fd) else {
                continue;
            };
            connection.clear(flag::ASIDE);
            if connection.backlog.is_empty() {
                continue;
            }
            if !writability::watch(fd, name(fd, connection), libc::EPOLLOUT as u32) {
                again = true;
                try_to_send(&mut held, fd, connection);
                is_aside(&mut held, fd, connection);
            }
        }
    }
    again
}

/// Whether there is something that nobody waits for yet.
pub(crate) fn is_any_new() -> bool {
    draining::is_any_new() || epoll_set_list::all().any(Set::has_rests)
}

/// There is room where `room` has waited for it.
pub(crate) fn has_room(name: u64) {
    let fd = name as u32 as i32;
    if draining::has_room(fd) {
        return;
    }
    let Some(mut held) = fd_table::entry(fd)
        .and_then(Set::of)
        .and_then(Set::take_beside_ring)
    else {
        return writability::forget(fd);
    };
    let meant = |connection: &Conn| u64::from(connection.generation) == name >> 32;
    match held.connection(fd).filter(meant) {
        Some(connection) if !connection.backlog.is_empty() => {
            try_to_send(&mut held, fd, connection);
        }
        _ => writability::forget(fd),
    }
}

/// Where its owner is in the kernel with the ring, that has been told the same, and sends it: but for one that was
/// handed back, with which the ring has nothing to do any more.
fn try_to_send(held: &mut Held, fd: i32, connection: Conn) {
    let is_served = fd_table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Served);
    if is_served && (held.in_handler() || held.pushed) {
        return;
    }
    send::go_on(held, fd, connection);
    hand_back::settle(held, fd, connection);
    if connection.backlog.is_empty() {
        writability::forget(fd);
    }
}

/// The program is about to close a connection: one that lingers does so with what was put aside as well, and one that
/// resets discards it. Where somebody else has it, too, it is neither.
pub(crate) fn linger(entry: &Entry, set: &'static Set, fd: i32) {
    if entry.flags() & SHARED != 0 || !sockopts::lingers(fd) {
        return;
    }
    let seconds = sys::linger_s(fd).and_then(|seconds| u64::try_from(seconds).ok());
    let Some(seconds) = seconds else { return };
    let deadline_ns = sys::now_ns().saturating_add(seconds.saturating_mul(1_000_000_000));
    while let Some(mut held) = set.take().filter(|held| !held.in_handler())
        && let Some(mut connection) = held.connection(fd)
    {
        send::flush(&mut held, fd, connection);
        let left_ns = deadline_ns.saturating_sub(sys::now_ns());
        if seconds == 0 {
            connection.backlog.clear();
        }
        if connection.backlog.is_empty() || left_ns == 0 {
            return;
        }
        drop(held);
        if sys::poll(fd, flag::OUT, Some(left_ns)).is_err() {
            return;
        }
    }
}

/// Waits for room as a call does that may block, with nothing held.
pub(crate) fn wait_for_room(fd: i32) -> Result<(), i32> {
    match sys::poll(fd, flag::OUT, sys::send_timeout_ns(fd))? {
        0 => Err(libc::EAGAIN),
        _ => Ok(()),
    }
}

/// Sends what there is room for, of all: nobody may be there to do it a moment later. True: something is left.
pub(crate) fn go_on() -> bool {
    let mut left = draining::go_on();
    for fd in 0..hand_back::served_max() as i32 {
        let set = fd_table::entry(fd).and_then(Set::of);
        let Some(mut held) = set.and_then(Set::take_beside_ring) else {
            continue;
        };
        if let Some(connection) = held.connection(fd)
            && !connection.backlog.is_empty()
        {
            try_to_send(&mut held, fd, connection);
            left |= !connection.backlog.is_empty();
        }
    }
    left
}

/// Waits until all has been sent, or until then.
pub(crate) fn wait_until(deadline_ns: u64) {
    while go_on() && sys::now_ns() < deadline_ns {
        sys::pause_us(500);
    }
}
