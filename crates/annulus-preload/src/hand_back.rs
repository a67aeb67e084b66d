//! # Safety
//!
//! Ends serving a descriptor: it is handed back to the kernel, removed from its set, or closed. Received bytes stay
//! buffered and are read first; queued bytes are sent first; a receive in the kernel is cancelled in the ring's next
//! enter, before it can complete with data. (Held: the callers have the lock.)
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::byte_queue::TakenBytes;
use crate::connection::{self as flag, Conn};
use crate::counters::{self, Why};
use crate::deferred_output;
use crate::draining::{self, SharedWith};
use crate::epoll_set::{Inner, Mode, Set, SetGuard};
use crate::epoll_set_list;
use crate::errno;
use crate::fd_limit;
use crate::fd_table::{self, Entry, Kind, SHARED, UNSHARED, never_served};
use crate::listeners;
use crate::log;
use crate::poll_cycle;
use crate::receive;
use crate::reserved_fds;
use crate::ring_policy;
use crate::send;
use crate::set_members::{AlreadyReported, SharedMember};
use crate::sockopts;
use crate::stops;
use crate::switch;
use crate::sys;
use crate::writability;

/// Descriptors of a set that other threads have used; above this number, the whole set passes through.
const FOREIGN_FDS_MAX: u32 = 64;

/// The number of checks whether a polling kernel thread has completed a cancellation, which takes one of its rounds.
const CANCEL_ROUNDS_MAX: u32 = 100_000;

/// One more than the highest descriptor of a connection that was ever a member of a set.
static SERVED_MAX: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn served_max() -> usize {
    SERVED_MAX.load(Ordering::Relaxed)
}

/// Records the number of a member.
pub(crate) fn note_member(fd: i32) {
    if fd as usize >= served_max() {
        SERVED_MAX.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
}

/// Counts a connection that is served from now on.
pub(crate) fn count_served(inner: &mut Inner, fd: i32) {
    note_member(fd);
    inner.served += 1;
}

fn count_unserved(inner: &mut Inner) {
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
    send::flush(inner, fd, connection);
    receive::copy_out(inner, connection);
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
    // SAFETY: Owned: the set that the connection belongs to.
    let is_owner = unsafe { inner.set_ptr.as_ref() }.is_some_and(Set::is_idle_owner);
    if is_owner && connection.is(flag::ARMED | flag::POLLED) {
        inner.submit_cancels();
    }
}

/// Makes the kernel report an edge of a connection that was handed back, which its set could not know: the library has
/// sent queued bytes (`event` is OUT), or holds received ones (IN). Changing the member makes the kernel report all its
/// pending events again.
pub(crate) fn report_again(inner: &Inner, fd: i32, connection: Conn, event: u32) {
    let edge = connection.events & (flag::EDGE_TRIGGERED | flag::ONESHOT) == flag::EDGE_TRIGGERED;
    let is_handed_back = fd_table::entry(fd).is_some_and(|entry| entry.kind() == Kind::HandedBack);
    if is_handed_back && edge && connection.is(flag::MEMBER) && connection.events & event != 0 {
        let (events, data) = (connection.events, connection.data);
        let _ = sys::control(inner.fd, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

fn stop_receiving(inner: &mut Inner, fd: i32, mut connection: Conn) {
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
    send::flush(inner, fd, connection);
    receive::copy_out(inner, connection);
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
    entry.set_epoll_set(inner.set_ptr.cast_mut());
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

/// Shares what the library holds of a connection that was handed back with its duplicate: received bytes, an error, and
/// deferred output.
pub(crate) fn share_held(inner: &mut Inner, from: i32, entry: &'static Entry, to: i32) {
    let flags = never_served(SHARED, Why::Duplicated);
    let holds = |one: &Conn| one.held_events() != 0 || !one.backlog.is_empty();
    let Some(mut source) = inner.connection(from).filter(holds) else {
        return entry.set_kind(Kind::Stream, flags);
    };
    receive::copy_out(inner, source);
    entry.set_epoll_set(inner.set_ptr.cast_mut());
    entry.set_kind(Kind::HandedBack, flags);
    if let Some(mut duplicate) = inner.connection(to) {
        duplicate.begin(0, 0);
        duplicate.flags = source.flags & (flag::FULL | flag::SHUT | flag::TO_SHUT);
        duplicate.copied_out = source.copied_out.share();
        duplicate.backlog = source.backlog.share();
        duplicate.error = source.error;
        inner.handed_back_count += 1;
        note_member(to);
        deferred_output::mark_deferred(inner, to, duplicate);
    }
}

/// Returns whether two numbers share what the library holds of their connection, as one is a duplicate of the other.
pub(crate) fn share(inner: &Inner, fd: i32, second: i32) -> bool {
    let both = inner.connection(fd).zip(inner.connection(second));
    fd != second
        && both.is_some_and(|(one, other)| one.copied_out.is_shared_with(&other.copied_out))
}

/// Returns the duplicates of a number that share what the library holds of its connection.
fn duplicates(inner: &Inner, fd: i32) -> Vec<i32> {
    let connection = inner.connection(fd);
    let holders = connection.map_or(0, |connection| connection.copied_out.holders());
    let others = holders.saturating_sub(1) as usize;
    // The scan ends with the last one.
    let numbers = (0..served_max() as i32).filter(|&second| share(inner, fd, second));
    numbers.take(others).collect()
}

/// Calls `each` for a connection and its duplicates that share what the library holds of it.
pub(crate) fn for_each_duplicate(
    inner: &mut Inner,
    fd: i32,
    mut each: impl FnMut(&mut Inner, i32, Conn),
) {
    let mut all = duplicates(inner, fd);
    all.push(fd);
    for fd in all {
        if let Some(connection) = inner.connection(fd) {
            each(inner, fd, connection);
        }
    }
}

/// Returns and clears the error of a connection, which one of its duplicates returns.
pub(crate) fn take_error(inner: &mut Inner, fd: i32, connection: Conn) -> i32 {
    let error = connection.error;
    if error != 0 {
        for_each_duplicate(inner, fd, |_, _, mut connection| connection.error = 0);
    }
    error
}

/// Returns a duplicate of a number that has the same buffered bytes or error.
pub(crate) fn duplicate_to_report(inner: &Inner, fd: i32) -> Option<i32> {
    let connection = inner.connection(fd)?;
    let holds = connection.held_events() != 0;
    holds.then(|| duplicates(inner, fd))?.first().copied()
}

/// Makes all sets report the buffered bytes and the error of a number by its duplicate, as the number is about to be
/// closed. Locks one set at a time. Returns `false` in a signal handler that has interrupted a call on one of the sets.
pub(crate) fn report_by_duplicate(guard: SetGuard, fd: i32, second: i32) -> bool {
    let (from, to) = (generation(&guard, fd), generation(&guard, second));
    drop(guard);
    epoll_set_list::for_each_during_enter(|other| {
        for member in &mut other.shared_members {
            if (member.fd, member.generation) == (fd, from) {
                (member.fd, member.generation) = (second, to);
            }
        }
    })
}

/// Makes the set of a number that is being closed continue to report it, by its duplicate.
fn continue_by_duplicate(inner: &mut Inner, fd: i32, connection: Conn) {
    if let Some(second) = duplicate_to_report(inner, fd) {
        let oneshot_or_edge = flag::EDGE_TRIGGERED | flag::ONESHOT;
        let reported = connection.events & oneshot_or_edge != 0 && !connection.is(flag::EDGE);
        inner.shared_members.push(SharedMember {
            fd: second,
            generation: generation(inner, second),
            added_as: fd,
            events: connection.events,
            data: connection.data,
            reported: reported || connection.is(flag::DISABLED),
            held_elsewhere: 0,
        });
    }
}

/// Returns the generation of the connection that has the number now.
pub(crate) fn generation(inner: &Inner, fd: i32) -> u32 {
    (inner.connection(fd)).map_or(0, |connection| connection.generation)
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
        send::flush(inner, fd, connection);
        receive::copy_out(inner, connection);
        stop_receiving(inner, fd, connection);
        count_unserved(inner);
        inner.handed_back_count += 1;
        entry.set_kind(Kind::HandedBack, entry.flags());
        finish_hand_back(inner, fd, connection);
    }
}

/// Closes a connection, whose number is free when the call returns. Returns `true` if it was closed here, and `false`
/// if the program's call must close it.
pub(crate) fn close(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
) -> bool {
    let Some(mut connection) = guard.connection(fd) else {
        return false;
    };
    let in_signal_handler = guard.in_signal_handler();
    let inner: &mut Inner = guard;
    let was_served = entry.kind() == Kind::Served;
    if connection.copied_out.is_shared() && connection.is(flag::MEMBER) {
        continue_by_duplicate(inner, fd, connection);
    }
    inner.unready(fd, connection);
    inner.forget_reported(fd, connection.data);
    connection.clear(flag::MEMBER);
    let by_owner = inner.ring.is_some()
        && inner.mode == Mode::Serving
        && set.is_owner()
        && !inner.pushed
        && !in_signal_handler;
    if by_owner {
        cancel_now(inner, fd, connection);
    }
    discard(inner, entry, fd, connection);
    let idle = !connection.is(flag::ARMED | flag::POLLED);
    let ends_now = by_owner && idle && send_with_fin(inner, entry, fd, connection);
    if !ends_now {
        send::flush(inner, fd, connection);
        if !idle {
            stop_receiving(inner, fd, connection);
        }
    }
    let unsent = match connection.backlog.is_shared() {
        // A duplicate sends them.
        true => {
            writability::forget(fd);
            connection.backlog.clear();
            TakenBytes::none()
        }
        false => connection.backlog.move_out(),
    };
    // Only the next connection with this number waits until the socket is writable.
    connection.clear(flag::FULL);
    if was_served {
        count_unserved(inner);
    } else {
        inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    }
    // Completions that are still to come must not reach the next connection with this number.
    connection.generation = connection.generation.wrapping_add(1) & flag::GENERATION_MAX;
    if finish_close(fd, unsent.as_slice(), !idle, entry.flags()) {
        return true;
    }
    entry.forget();
    // The library sent the end of the stream, so it also closes the number.
    ends_now && sys::close(fd).is_ok()
}

/// Finishes a close that the kernel cannot do alone. Unsent bytes are sent later. A connection that the ring still
/// refers to (`ring_has_refs`) would not end until its owner waits again, which may be never. Returns whether the
/// connection keeps its number until its bytes are sent.
fn finish_close(fd: i32, unsent: &[u8], ring_has_refs: bool, flags: u32) -> bool {
    if !unsent.is_empty() {
        let shared_with = match ring_has_refs {
            true => SharedWith::Ring,
            false => SharedWith::Nothing,
        };
        return draining::take_over(fd, unsent, shared_with.unless_shared(flags & SHARED != 0));
    }
    if ring_has_refs && flags & (UNSHARED | SHARED) == UNSHARED {
        sys::end_as_if_closed(fd);
    }
    false
}

/// Cancels the ring's requests for a connection: they would delay its end.
fn cancel_now(inner: &mut Inner, fd: i32, connection: Conn) {
    let ring_refs = [
        (flag::ARMED, poll_cycle::receive_token(fd, connection)),
        (flag::POLLED, poll_cycle::poll_token(fd, connection)),
    ];
    let before = inner.cancels.len();
    let ring_refs = ring_refs
        .into_iter()
        .filter(|request| connection.is(request.0));
    inner.cancels.extend(ring_refs.map(|request| request.1));
    if inner.cancels.len() > before {
        inner.submit_cancels();
    }
}

/// Sends the last response of a connection in one segment with FIN, which saves a packet in each direction for
/// connections of one request. Only used if the close ends the connection for all processes, in order: otherwise the
/// peer would see an end before the kernel's reset. Returns whether everything was sent.
fn send_with_fin(inner: &mut Inner, entry: &'static Entry, fd: i32, connection: Conn) -> bool {
    if connection.out_bytes == 0 || entry.flags() & (UNSHARED | SHARED) != UNSHARED {
        return false;
    }
    if sys::readable(fd) > 0 || sockopts::has_linger(fd) {
        return false;
    }
    send::flush_last(inner, fd, connection);
    connection.backlog.is_empty()
}

/// Discards unread bytes as the kernel does: sends queued bytes, then resets the connection.
fn discard(inner: &mut Inner, entry: &'static Entry, fd: i32, mut connection: Conn) {
    if connection.buffered() == 0 {
        return connection.copied_out.clear();
    }
    receive::copy_out(inner, connection);
    // The last number of the connection discards them, unless another process has it.
    let discards =
        !connection.copied_out.is_shared() && entry.why_never_served() != Some(Why::PassedOn);
    connection.copied_out.clear();
    // After a filter was set, the peer sees an end instead of a reset: the `setsockopt` may be forbidden.
    if discards && !ring_policy::may_be_filtered() {
        send::flush(inner, fd, connection);
        sys::reset_when_closed(fd);
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
        return switch::clear_released(guard);
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
    for fd in 0..served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        let is_member_of_set = Set::of(entry).is_some_and(|other| std::ptr::eq(other, set));
        if is_member_of_set && entry.kind() == Kind::Served {
            hand_back(guard, fd, why);
        }
    }
}

/// Closes the ring. Memory that it may still write to is leaked, unless its owner makes sure that the kernel has no
/// request.
fn close_set_ring(guard: &mut SetGuard, set: &'static Set) {
    let is_quiescent = guard.is_owner() && guard.cancel_all_requests();
    for fd in 0..served_max() as i32 {
        if let Some(connection) = guard.connection(fd) {
            receive::copy_out(guard, connection);
        }
    }
    let Some(mut context) = guard.ring.take() else {
        return;
    };
    set.set_wake(-1);
    guard.to_poll.clear();
    // Closing the ring cancels requests in the kernel, and does not wait for their end (trap 2).
    for fd in 0..served_max() as i32 {
        let is_member_of_set = fd_table::entry(fd)
            .and_then(Set::of)
            .is_some_and(|other| std::ptr::eq(other, set));
        if is_member_of_set && let Some(mut connection) = guard.connection(fd) {
            connection
                .clear(flag::ARMED | flag::CANCELLED | flag::POLLED | flag::TO_ARM | flag::QUEUED);
            finish_hand_back(guard, fd, connection);
            deferred_output::mark_deferred(guard, fd, connection);
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
    fd_limit::on_ring_closed();
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
    for fd in 0..served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        let is_member_of_set = Set::of(entry).is_some_and(|other| std::ptr::eq(other, set));
        if is_member_of_set
            && entry.kind() == Kind::Served
            && let Some(connection) = guard.connection(fd)
        {
            send::flush(guard, fd, connection);
            remove(guard, fd, connection);
        }
        if is_member_of_set
            && entry.kind() == Kind::HandedBack
            && let Some(mut connection) = guard.connection(fd)
        {
            guard.unready(fd, connection);
            connection.clear(flag::MEMBER | flag::EDGE | flag::DISABLED);
            finish_hand_back(guard, fd, connection);
        }
    }
    finish_removals(guard);
    forget_streams(set);
    guard.mode = Mode::Passing;
    switch::clear_released(guard);
    close_set_ring(guard, set);
}

/// Forgets the set of streams that no ring serves, as the set is closed.
pub(crate) fn forget_streams(set: &'static Set) {
    for entry in (0..served_max() as i32).map_while(fd_table::entry) {
        if entry.kind() == Kind::Stream && std::ptr::eq(entry.set(), set) {
            entry.set_epoll_set(std::ptr::null_mut());
        }
    }
}
