//! Ends serving a connection, which the kernel serves from then on. Received bytes stay buffered and are read first;
//! queued bytes are sent first; a receive in the kernel is cancelled in the ring's next enter, before it can complete
//! with data.

use crate::connection::Conn;
use crate::counters::{self, Why};
use crate::epoll_set::{Inner, Set, SetGuard};
use crate::events::{EDGE_TRIGGERED, ERR, HUP, IN, RDHUP};
use crate::fd_table::{self, Entry, FIRED_ELSEWHERE, Kind, SHARED, never_served};
use crate::member::Member;
use crate::output;
use crate::set_members::Interest;
use crate::sys;
use crate::unread;

/// The number of checks whether a polling kernel thread has completed a cancellation, which takes one of its rounds.
const CANCEL_ROUNDS_MAX: u32 = 100_000;

#[inline]
pub(crate) fn count_unserved(inner: &mut Inner) {
    inner.served = inner.served.saturating_sub(1);
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
    let reported_before = inner[connection].mask();
    stop_serving(inner, entry, connection);
    let wakes = wakes
        && (inner[connection].has_input_ended()
            || inner[connection].buffered() > 0
            || sys::readable(fd) > 0);
    if inner.set.is_some_and(Set::is_idle_owner)
        && (inner[connection].inbound.is_armed() || inner[connection].polled != 0)
    {
        // They would delay its end.
        inner.submit_cancels();
    }
    let shared = matches!(why, Why::Duplicated | Why::PassedOn);
    let shared = if shared { SHARED } else { 0 };
    let flags = shared | entry.flags();
    // A connection that was handed back by the switch may be served again.
    let flags = match why {
        Why::Released => flags,
        why => never_served(flags, why),
    };
    entry.set_kind(Kind::HandedBack, flags);
    // A disabled oneshot member cannot be added to the kernel's set as such, so it is added when it is re-armed.
    if inner[connection].member.is_enabled() {
        let (events, data) = (inner[connection].events, inner[connection].data);
        if sys::control(inner.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            let silent = inner[connection].member != Member::Changed && !wakes;
            let edge = events & EDGE_TRIGGERED != 0 && silent;
            let pending = if edge { sys::poll_now(fd, events) } else { 0 };
            // Data in the kernel has not been reported: the ring reports only data that it has received.
            let pending = match inner[connection].has_input_ended() {
                true => pending & reported_before,
                false => pending & !(IN | RDHUP | ERR | HUP),
            };
            if pending != 0 {
                // It has no entry: a member that the ring serves was added, or taken over, since the last hand-back.
                inner.on_reported(Interest {
                    fd,
                    data,
                    events: pending,
                });
            }
        }
    }
    // An edge that was already reported must not be reported again.
    let reported = inner[connection].events & EDGE_TRIGGERED != 0
        && inner[connection].member != Member::Changed;
    if inner[connection].held_events() != 0 && (wakes || !reported) {
        inner.notify(connection, 0);
    }
    finish_hand_back(inner, connection);
}

/// Ends serving a connection. Queued bytes are sent, and unread ones stay buffered.
pub(crate) fn stop_serving(inner: &mut Inner, entry: &Entry, connection: Conn) {
    output::flush(inner, connection);
    if inner[connection].backlog.is_empty() {
        // The ring will not poll for room any more, and the kernel knows whether the socket is writable.
        inner[connection].outbound.drain();
    }
    unread::copy_out(inner, connection);
    stop_receiving(inner, connection);
    count_unserved(inner);
    inner.handed_back_count += 1;
    entry.set_kind(Kind::HandedBack, entry.flags());
}

pub(crate) fn stop_receiving(inner: &mut Inner, connection: Conn) {
    inner.cancel_requests(connection);
    if inner[connection].inbound.is_armed() && inner.is_polled() {
        // With SQPOLL the ring is not idle: data may arrive until the cancelled receive has completed.
        for _ in 0..CANCEL_ROUNDS_MAX {
            if !inner.submit_cancels() || !inner[connection].inbound.is_armed() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Cancels the receives of a set until its next wait. Called by its owner before another process, or another program,
/// gets the connections: a process that ends, executes a program or closes its number first completes the receives
/// whose bytes have arrived, and these bytes would be lost. Not in a signal handler: the wait that it interrupts would
/// sleep without receives.
pub(crate) fn suspend_receives(guard: &mut SetGuard) {
    if guard.in_signal_handler() || guard.pushed {
        return;
    }
    for connection in guard.connections() {
        if guard[connection].inbound.is_armed() {
            stop_receiving(guard, connection);
        }
    }
    if !guard.cancels.is_empty() {
        guard.complete_cancels();
    }
}

/// Releases a connection that was handed back once it has no buffered bytes.
#[inline]
pub(crate) fn finish_hand_back(inner: &mut Inner, connection: Conn) {
    if inner.handed_back_count > 0 {
        finish_if_empty(inner, connection);
    }
}

fn finish_if_empty(inner: &mut Inner, connection: Conn) {
    let Some(entry) = fd_table::entry(connection.fd) else {
        return;
    };
    if entry.kind() != Kind::HandedBack
        || inner[connection].buffered() > 0
        || inner[connection].error != 0
        || !inner[connection].backlog.is_empty()
        || inner[connection].inbound.is_armed()
        || inner[connection].member == Member::Disabled
        || entry.flags() & FIRED_ELSEWHERE != 0
    {
        return;
    }
    inner.unready(connection);
    inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    // They are empty, but duplicates may share them.
    inner[connection].copied_out.clear();
    inner[connection].backlog.clear();
    // A connection with an ended direction is not served again.
    let flags = match inner[connection].is_over() {
        true => never_served(entry.flags(), Why::NotConnected),
        false => entry.flags(),
    };
    if inner[connection].member == Member::Out {
        entry.set_epoll_set(std::ptr::null_mut());
    }
    entry.set_kind(Kind::Stream, flags);
}
