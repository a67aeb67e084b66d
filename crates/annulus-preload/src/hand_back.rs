//! # Safety
//!
//! Ends serving a descriptor: it is handed back to the kernel or removed from its set, alone or with all of its set.
//! Received bytes stay buffered and are read first; queued bytes are sent first; a receive in the kernel is cancelled
//! in the ring's next enter, before it can complete with data. (Held: the callers have the lock.)
#![allow(unsafe_code)]

use crate::byte_queue::TakenBytes;
use crate::connection::{self as flag, Conn};
use crate::counters::{self, Why};
use crate::epoll_set::{Inner, Mode, Set, SetGuard};
use crate::errno;
use crate::fd_budget;
use crate::fd_table::{self, Entry, FIRED_ELSEWHERE, Kind, SHARED, never_served};
use crate::listeners;
use crate::log;
use crate::output;
use crate::poll_cycle;
use crate::reserved_fds;
use crate::ring_policy;
use crate::set_members::AlreadyReported;
use crate::stops;
use crate::sys;
use crate::unread;

/// Descriptors of a set that other threads have used; above this number, the whole set passes through.
const FOREIGN_FDS_MAX: u32 = 64;

/// The number of checks whether a polling kernel thread has completed a cancellation, which takes one of its rounds.
const CANCEL_ROUNDS_MAX: u32 = 100_000;

#[inline]
pub(crate) fn count_unserved(inner: &mut Inner) {
    inner.served = inner.served.saturating_sub(1);
}

/// Handles a call by a thread that is not the set's owner: hands the connection back.
pub(crate) fn on_foreign_thread(guard: &mut SetGuard, fd: i32) {
    guard.foreign_fds += 1;
    if guard.foreign_fds > FOREIGN_FDS_MAX {
        return pass_through_set(guard, Why::SeveralThreads);
    }
    hand_back(guard, fd, Why::OtherThread);
}

/// Hands the descriptor back: the kernel serves it from now on.
pub(crate) fn hand_back(inner: &mut Inner, fd: i32, why: Why) {
    hand_back_and(inner, fd, why, false);
}

/// Hands back because of a low-water mark, which wakes waiters if there is data or the end of the stream.
pub(crate) fn hand_back_for_low_water(inner: &mut Inner, fd: i32) {
    hand_back_and(inner, fd, Why::UnknownOption, true);
}

fn hand_back_and(inner: &mut Inner, fd: i32, why: Why, wakes: bool) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    if entry.kind() != Kind::Served {
        return;
    }
    let Some(connection) = inner.connection(fd) else {
        return;
    };
    counters::handed_back(why);
    // Sending now may change the readiness, which has not been reported.
    let reported_before = connection.mask();
    output::flush(inner, fd, connection);
    unread::copy_out(inner, connection);
    stop_receiving(inner, fd, connection);
    let over = connection.is(flag::ENDED | flag::DEAD);
    let wakes = wakes && (over || connection.buffered() > 0 || sys::readable(fd) > 0);
    cancel_if_owner(inner, connection);
    count_unserved(inner);
    let shared = matches!(why, Why::Duplicated | Why::PassedOn);
    let shared = if shared { SHARED } else { 0 };
    let flags = shared | entry.flags();
    // A connection that was handed back by the switch may be served again.
    let flags = match why {
        Why::Released => flags,
        why => never_served(flags, why),
    };
    entry.set_kind(Kind::HandedBack, flags);
    inner.handed_back_count += 1;
    // A disabled oneshot member cannot be added to the kernel's set as such, so it is added when it is re-armed.
    if connection.is(flag::MEMBER) && !connection.is(flag::DISABLED) {
        let (events, data) = (connection.events, connection.data);
        if sys::control(inner.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            let silent = !connection.is(flag::EDGE) && !wakes;
            let edge = events & flag::EDGE_TRIGGERED != 0 && silent;
            let pending = if edge { sys::poll_now(fd, events) } else { 0 };
            // Data in the kernel has not been reported: the ring reports only data that it has received.
            let pending = match connection.is(flag::ENDED | flag::DEAD) {
                true => pending & reported_before,
                false => pending & !(flag::IN | flag::RDHUP | flag::ERR | flag::HUP),
            };
            if pending != 0 {
                inner.forget_reported_fd(fd);
                inner.already_reported.push(AlreadyReported {
                    fd,
                    data,
                    events: pending,
                });
            }
        }
    }
    // An edge that was already reported must not be reported again.
    let reported = connection.events & flag::EDGE_TRIGGERED != 0 && !connection.is(flag::EDGE);
    if (connection.buffered() > 0 || connection.error != 0) && (wakes || !reported) {
        inner.notify(fd, connection, 0);
    }
    finish_hand_back(inner, fd, connection);
}

/// Submits the cancellation of a connection's requests: they would delay its end.
fn cancel_if_owner(inner: &mut Inner, connection: Conn) {
    let is_owner = inner.set().is_some_and(Set::is_idle_owner);
    if is_owner && connection.is(flag::ARMED | flag::POLLED) {
        inner.submit_cancels();
    }
}

pub(crate) fn stop_receiving(inner: &mut Inner, fd: i32, mut connection: Conn) {
    if connection.is(flag::POLLED) {
        inner.cancels.push(poll_cycle::poll_token(fd, connection));
    }
    if connection.is(flag::ARMED) && !connection.is(flag::CANCELLED) {
        connection.mark(flag::CANCELLED);
        inner
            .cancels
            .push(poll_cycle::receive_token(fd, connection));
    }
    if connection.is(flag::ARMED) && inner.is_polled() {
        // With SQPOLL the ring is not idle: data may arrive until the cancelled receive has completed.
        for _ in 0..CANCEL_ROUNDS_MAX {
            if !inner.submit_cancels() || !connection.is(flag::ARMED) {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Releases a connection that was handed back once it has no buffered bytes.
#[inline]
pub(crate) fn finish_hand_back(inner: &mut Inner, fd: i32, connection: Conn) {
    if inner.handed_back_count > 0 {
        finish_if_empty(inner, fd, connection);
    }
}

fn finish_if_empty(inner: &mut Inner, fd: i32, mut connection: Conn) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    if entry.kind() != Kind::HandedBack
        || connection.buffered() > 0
        || connection.error != 0
        || !connection.backlog.is_empty()
        || connection.is(flag::ARMED)
        || (connection.is(flag::DISABLED) && connection.is(flag::MEMBER))
        || entry.flags() & FIRED_ELSEWHERE != 0
    {
        return;
    }
    inner.unready(fd, connection);
    inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    // They are empty, but duplicates may share them.
    connection.copied_out.clear();
    connection.backlog.clear();
    // A connection with an ended direction is not served again.
    let flags = match connection.is(OVER) {
        true => never_served(entry.flags(), Why::NotConnected),
        false => entry.flags(),
    };
    if !connection.is(flag::MEMBER) {
        entry.set_epoll_set(std::ptr::null_mut());
    }
    entry.set_kind(Kind::Stream, flags);
}

/// Removes a connection from its set. Adding it again in the same round undoes the removal.
pub(crate) fn remove(inner: &mut Inner, fd: i32, mut connection: Conn) {
    connection.clear(flag::MEMBER | flag::EDGE);
    inner.unready(fd, connection);
    inner.forget_reported(fd, connection.data);
    inner.removed.push(fd);
}

/// Flags that a set cannot determine when it starts to serve a connection.
const OVER: u32 = flag::SHUT | flag::BROKEN | flag::ENDED | flag::DEAD;

/// Returns whether `set` may serve a connection that was removed from its set.
pub(crate) fn may_move(entry: &'static Entry, set: &'static Set) -> bool {
    // SAFETY: Held: one word of a connection that the program no longer uses, by its own calls.
    let flags = unsafe { (*entry.connection()).flags };
    // Deferred output is sent by the set in which it was written.
    if flags & (OVER | flag::FULL) != 0 {
        return false;
    }
    let own = std::ptr::eq(entry.set(), set);
    // A connection that is still served has not left its own set yet.
    let left = flags & flag::MEMBER == 0 && !(own && entry.kind() == Kind::Served);
    left && entry.why_never_served().is_none()
}

/// Releases a connection that was removed from its set, for another set to serve. Returns its buffered bytes.
pub(crate) fn reclaim(inner: &mut Inner, fd: i32) -> TakenBytes {
    let (Some(entry), Some(mut connection)) = (fd_table::entry(fd), inner.connection(fd)) else {
        return TakenBytes::none();
    };
    output::flush(inner, fd, connection);
    unread::copy_out(inner, connection);
    stop_receiving(inner, fd, connection);
    cancel_if_owner(inner, connection);
    inner.unready(fd, connection);
    if entry.kind() == Kind::Served {
        count_unserved(inner);
    } else {
        inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    }
    let buffered = connection.copied_out.move_out();
    connection.generation = connection.generation.wrapping_add(1) & flag::GENERATION_MAX;
    entry.set_epoll_set(std::ptr::null_mut());
    entry.set_kind(Kind::Stream, entry.flags());
    buffered
}

/// Keeps the buffered bytes of a connection that came from another set and is not served here.
pub(crate) fn keep_buffered(inner: &mut Inner, entry: &'static Entry, fd: i32, buffered: &[u8]) {
    if buffered.is_empty() {
        return;
    }
    inner.name(entry, fd);
    entry.set_kind(
        Kind::HandedBack,
        never_served(entry.flags(), Why::SeveralSets),
    );
    if let Some(mut connection) = inner.connection(fd) {
        connection.begin(0, 0);
        connection.clear(flag::MEMBER);
        connection.copied_out.append(buffered);
        inner.handed_back_count += 1;
    }
}

/// Hands connections back to the kernel that were removed from their set and not added again.
pub(crate) fn finish_removals(inner: &mut Inner) {
    for fd in std::mem::take(&mut inner.removed) {
        let Some(entry) = fd_table::entry(fd) else {
            continue;
        };
        if entry.kind() != Kind::Served {
            continue;
        }
        let Some(connection) = inner.connection(fd) else {
            continue;
        };
        if connection.is(flag::MEMBER) {
            continue;
        }
        output::flush(inner, fd, connection);
        unread::copy_out(inner, connection);
        stop_receiving(inner, fd, connection);
        count_unserved(inner);
        inner.handed_back_count += 1;
        entry.set_kind(Kind::HandedBack, entry.flags());
        finish_hand_back(inner, fd, connection);
    }
}

/// Handles a filter that was set while this set had a ring: the ring is not entered again, not even to cancel requests.
pub(crate) fn on_filter(guard: &mut SetGuard) {
    ring_policy::forbid_rings();
    if let Some(context) = &mut guard.ring {
        context.ring.give_up();
    }
    pass_through_set(guard, Why::Filtered);
}

/// Hands back all connections of a set, which passes through from now on.
pub(crate) fn pass_through_set(guard: &mut SetGuard, why: Why) {
    if guard.mode == Mode::Passing {
        return guard.released.clear();
    }
    counters::passed(why);
    if why == Why::Filtered {
        log::log_refused("the program has set a system call filter");
    }
    if why == Why::Released {
        log::write_line("an epoll set passes through until the operator resumes it: released");
    } else {
        stops::on_set(why, guard.served);
    }
    let Some(set) = set_of(guard) else { return };
    let had_ring = guard.ring.is_some();
    hand_back_all(guard, set, why);
    if guard.mode == Mode::Serving {
        listeners::hand_back_all(guard);
    }
    guard.mode = Mode::Passing;
    if had_ring {
        close_set_ring(guard, set);
    }
}

fn set_of(guard: &SetGuard) -> Option<&'static Set> {
    fd_table::entry(guard.fd).and_then(Set::of)
}

fn hand_back_all(guard: &mut SetGuard, set: &'static Set, why: Why) {
    for fd in set.members() {
        hand_back(guard, fd, why);
    }
}

/// Closes the ring. Memory that it may still write to is leaked, unless its owner makes sure that the kernel has no
/// request.
fn close_set_ring(guard: &mut SetGuard, set: &'static Set) {
    let is_quiescent = guard.is_owner() && guard.cancel_all_requests();
    unread::copy_all_out(guard);
    let Some(mut context) = guard.ring.take() else {
        return;
    };
    set.set_wake(-1);
    guard.to_poll.clear();
    // Closing the ring cancels requests in the kernel, and does not wait for their end (trap 2).
    for fd in set.members() {
        if let Some(mut connection) = guard.connection(fd) {
            connection
                .clear(flag::ARMED | flag::CANCELLED | flag::POLLED | flag::TO_ARM | flag::QUEUED);
            finish_hand_back(guard, fd, connection);
            output::mark_deferred(guard, fd, connection);
        }
    }
    context.completions.clear();
    let crate::epoll_set::RingContext {
        ring,
        pool,
        arena,
        counters,
        ..
    } = *context;
    // A filter may allow less than an enter.
    let may_enter = is_quiescent && ring_policy::may_make_rings();
    errno::without_cancel(|| {
        counters.end();
        reserved_fds::close_ring(ring, may_enter);
    });
    crate::ring_teardown::on_ring_closed();
    fd_budget::on_ring_closed();
    if is_quiescent {
        drop(pool);
    } else {
        // A cancelled receive could still write to this memory.
        std::mem::forget(pool);
    }
    drop(arena);
    guard.queued.clear();
    guard.cancels.clear();
    guard.to_arm.clear();
    guard.kernel_polled = false;
}

/// Closes a set whose last number is closed: its connections belong to no set until the program adds them to another.
pub(crate) fn close_set(guard: &mut SetGuard, set: &'static Set) {
    for fd in set.members() {
        let kind = fd_table::entry(fd).map(Entry::kind);
        let Some(mut connection) = guard.connection(fd) else {
            continue;
        };
        if kind == Some(Kind::Served) {
            output::flush(guard, fd, connection);
            remove(guard, fd, connection);
        } else {
            guard.unready(fd, connection);
            connection.clear(flag::MEMBER | flag::EDGE | flag::DISABLED);
            finish_hand_back(guard, fd, connection);
        }
    }
    finish_removals(guard);
    forget_streams(set);
    guard.mode = Mode::Passing;
    guard.released.clear();
    close_set_ring(guard, set);
}

/// Forgets the set of streams that no ring serves, as the set is closed.
pub(crate) fn forget_streams(set: &'static Set) {
    for entry in set.members().filter_map(fd_table::entry) {
        if entry.kind() == Kind::Stream {
            entry.set_epoll_set(std::ptr::null_mut());
        }
    }
}
