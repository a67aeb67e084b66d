//! # Safety
//!
//! How a descriptor stops being served: it is handed back to the kernel, removed from its set, or closed. What was
//! received stays in hand and is read first; what is queued goes out first; a receive that is with the kernel is
//! cancelled in the ring's next enter, before anything else can come of it. (Held: the callers have the lock.)
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::byte_queue::Moved;
use crate::connection::{self as flag, Conn};
use crate::counters::{self, Why};
use crate::deferred_output;
use crate::draining::{self, Beside};
use crate::epoll_set::{Guest, Held, Inner, Known, Mode, Set};
use crate::fd_table::{self, Entry, Kind, LEFT_ALONE, OWN, SHARED};
use crate::listeners;
use crate::log;
use crate::poll_cycle;
use crate::receive;
use crate::reserved_fds;
use crate::send;
use crate::sockopts;
use crate::switch;
use crate::sys;

/// So many descriptors of a set that other threads touch, and it is theirs as much as its owner's.
const STRANGERS_MAX: u32 = 64;

/// How often one looks whether a kernel thread that polls has cancelled something; it takes one round of its own.
const SETTLE_TURNS_MAX: u32 = 100_000;

/// One more than the highest descriptor that was ever served.
static SERVED_MAX: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn served_max() -> usize {
    SERVED_MAX.load(Ordering::Relaxed)
}

/// A connection is served from now on.
pub(crate) fn begins(inner: &mut Inner, fd: i32) {
    if fd as usize >= served_max() {
        SERVED_MAX.fetch_max(fd as usize + 1, Ordering::Relaxed);
    }
    inner.served += 1;
}

fn ends(inner: &mut Inner) {
    inner.served = inner.served.saturating_sub(1);
}

/// A thread that is not the set's owner uses one of its connections.
pub(crate) fn touched_by_a_stranger(held: &mut Held, fd: i32) {
    held.strangers += 1;
    if held.strangers > STRANGERS_MAX {
        return pass_whole(held, Why::SeveralThreads);
    }
    hand_back(held, fd, Why::OtherThread);
}

/// The kernel answers for the descriptor from now on.
pub(crate) fn hand_back(inner: &mut Inner, fd: i32, why: Why) {
    hand_back_and(inner, fd, why, false);
}

/// The same because of a low-water mark: that wakes whoever waits, if there is something to read or the end.
pub(crate) fn hand_back_for_a_mark(inner: &mut Inner, fd: i32) {
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
    // What is sent now may have an answer that nobody has been told of.
    let told_of = connection.mask();
    send::flush(inner, fd, connection);
    receive::spill(inner, connection);
    stop_receiving(inner, fd, connection);
    let over = connection.is(flag::ENDED | flag::DEAD);
    let wakes = wakes && (over || connection.in_hand() > 0 || sys::readable(fd) > 0);
    // SAFETY: Owned: the set that the connection belongs to.
    let is_mine = unsafe { inner.itself.as_ref() }.is_some_and(Set::is_idle_and_mine);
    if is_mine && connection.is(flag::ARMED | flag::POLLED) {
        // What the ring holds of it would keep its end back.
        inner.submit_cancels();
    }
    ends(inner);
    let shared = matches!(why, Why::Duplicated | Why::PassedOn);
    let shared = if shared { SHARED } else { 0 };
    // What the operator has handed back may be served again.
    let for_good = if why == Why::Released { 0 } else { LEFT_ALONE };
    entry.become_kind(Kind::Replay, for_good | shared | entry.flags());
    inner.replays += 1;
    // One that was reported once and is silent can't be put into the kernel's set as such: not before it is to speak.
    if connection.is(flag::MEMBER) && !connection.is(flag::DISABLED) {
        let (events, data) = (connection.events, connection.data);
        if sys::control(inner.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            inner.kernel_has = true;
            let silent = !connection.is(flag::EDGE) && !wakes;
            let edge = events & flag::EDGE_TRIGGERED != 0 && silent;
            let there = if edge { sys::poll_now(fd, events) } else { 0 };
            // What can be read of the kernel has not been reported: the ring reports what it has taken.
            let there = match connection.is(flag::ENDED | flag::DEAD) {
                true => there & told_of,
                false => there & !(flag::IN | flag::RDHUP | flag::ERR | flag::HUP),
            };
            if there != 0 {
                inner.known.push(Known {
                    fd,
                    data,
                    events: there,
                });
            }
        }
    }
    // An edge that has been reported is not one again.
    let told = connection.events & flag::EDGE_TRIGGERED != 0 && !connection.is(flag::EDGE);
    if (connection.in_hand() > 0 || connection.error != 0) && (wakes || !told) {
        inner.notify(fd, connection, 0);
    }
    settle(inner, fd, connection);
}

/// One that was handed back can be written to again. The kernel's set did not know that it could not, and may have
/// reported it meanwhile; a change makes it report an edge anew.
pub(crate) fn has_room(inner: &Inner, fd: i32, connection: Conn) {
    let edge = connection.events & (flag::EDGE_TRIGGERED | flag::ONESHOT) == flag::EDGE_TRIGGERED;
    let replay = fd_table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Replay);
    if replay && edge && connection.is(flag::MEMBER) && connection.events & flag::OUT != 0 {
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
        // The ring does not stand still: something may come until the kernel says that it is over.
        for _ in 0..SETTLE_TURNS_MAX {
            if !inner.submit_cancels() || !connection.is(flag::ARMED) {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Lets go of one that was handed back when nothing is in hand of it any more.
#[inline]
pub(crate) fn settle(inner: &mut Inner, fd: i32, connection: Conn) {
    let Some(entry) = fd_table::entry(fd) else {
        return;
    };
    if entry.kind() != Kind::Replay
        || connection.in_hand() > 0
        || connection.error != 0
        || !connection.backlog.is_empty()
        || connection.is(flag::ARMED)
        || (connection.is(flag::DISABLED) && connection.is(flag::MEMBER))
    {
        return;
    }
    inner.unready(fd, connection);
    inner.replays = inner.replays.saturating_sub(1);
    // One that is over in a direction is the kernel's for good.
    let over = if connection.is(OVER) { LEFT_ALONE } else { 0 };
    entry.become_kind(Kind::Stream, entry.flags() | over);
}

/// The program has taken it out of its set. If it is put in again before the round is over, nothing has happened.
pub(crate) fn remove(inner: &mut Inner, fd: i32, mut connection: Conn) {
    connection.clear(flag::MEMBER | flag::EDGE);
    inner.unready(fd, connection);
    inner.knows_no_more(fd, connection.data);
    inner.leaving.push(fd);
}

/// What a set that begins to serve a connection would not know of it.
const OVER: u32 = flag::SHUT | flag::BROKEN | flag::ENDED | flag::DEAD;

/// Whether a connection that was taken out of its set may be served by `set`.
pub(crate) fn may_move(entry: &'static Entry, set: &'static Set) -> bool {
    // SAFETY: Held: one word, of a connection of which the program itself says that nobody uses it.
    let flags = unsafe { (*entry.connection()).flags };
    // What had no room is sent by the set that it was written in.
    if flags & (OVER | flag::FULL) != 0 {
        return false;
    }
    let own = std::ptr::eq(entry.set(), set);
    // In its own set it has not left yet, if it is served.
    let left = flags & flag::MEMBER == 0 && !(own && entry.kind() == Kind::Served);
    left && entry.flags() & LEFT_ALONE == 0
}

/// A connection that was taken out of its set is another's from now on; what is in hand of it.
pub(crate) fn reclaim(inner: &mut Inner, fd: i32) -> Moved {
    let (Some(entry), Some(mut connection)) = (fd_table::entry(fd), inner.connection(fd)) else {
        return Moved::none();
    };
    send::flush(inner, fd, connection);
    receive::spill(inner, connection);
    stop_receiving(inner, fd, connection);
    inner.unready(fd, connection);
    if entry.kind() == Kind::Served {
        ends(inner);
    } else {
        inner.replays = inner.replays.saturating_sub(1);
    }
    let in_hand = connection.spilled.move_out();
    connection.generation = connection.generation.wrapping_add(1) & flag::GENERATION_MAX;
    entry.become_kind(Kind::Stream, entry.flags());
    in_hand
}

/// One that came from another set with something in hand, and is not served here.
pub(crate) fn keep_in_hand(inner: &mut Inner, entry: &'static Entry, fd: i32, in_hand: &[u8]) {
    if in_hand.is_empty() {
        return;
    }
    entry.belong_to(inner.itself.cast_mut());
    entry.become_kind(Kind::Replay, LEFT_ALONE | entry.flags());
    if let Some(mut connection) = inner.connection(fd) {
        connection.begin(0, 0);
        connection.clear(flag::MEMBER);
        connection.spilled.append(in_hand);
        inner.replays += 1;
    }
}

/// A second number of one that was handed back has the same in hand.
pub(crate) fn share_in_hand(inner: &mut Inner, from: i32, entry: &'static Entry, to: i32) {
    let Some(mut source) = inner.connection(from) else {
        return entry.become_kind(Kind::Stream, LEFT_ALONE | SHARED);
    };
    if source.in_hand() == 0 {
        return entry.become_kind(Kind::Stream, LEFT_ALONE | SHARED);
    }
    receive::spill(inner, source);
    entry.belong_to(inner.itself.cast_mut());
    entry.become_kind(Kind::Replay, LEFT_ALONE | SHARED);
    if let Some(mut twin) = inner.connection(to) {
        twin.begin(0, 0);
        twin.clear(flag::MEMBER);
        twin.spilled = source.spilled.share();
        inner.replays += 1;
        if to as usize >= served_max() {
            SERVED_MAX.fetch_max(to as usize + 1, Ordering::Relaxed);
        }
    }
}

/// A number is closed that the set goes on to report, as it has a second one: what both have in hand is the second's to
/// be told of.
fn leave_to_second(inner: &mut Inner, fd: i32, connection: Conn) {
    let shares = |&second: &i32| {
        let second = inner.connection(second).filter(|_| second != fd);
        second.is_some_and(|second| second.spilled.is_shared_with(&connection.spilled))
    };
    if let Some(second) = (0..served_max() as i32).find(shares) {
        let once = flag::EDGE_TRIGGERED | flag::ONESHOT;
        let told = connection.events & once != 0 && !connection.is(flag::EDGE);
        inner.guests.push(Guest {
            fd: second,
            generation: generation(inner, second),
            events: connection.events,
            data: connection.data,
            told: told || connection.is(flag::DISABLED),
        });
    }
}

/// Which of the connections that had the number in turn it is.
pub(crate) fn generation(inner: &Inner, fd: i32) -> u32 {
    (inner.connection(fd)).map_or(0, |connection| connection.generation)
}

/// Those that were taken out of their set and not put in again are the kernel's.
pub(crate) fn let_go(inner: &mut Inner) {
    for fd in std::mem::take(&mut inner.leaving) {
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
        receive::spill(inner, connection);
        stop_receiving(inner, fd, connection);
        ends(inner);
        inner.replays += 1;
        entry.become_kind(Kind::Replay, entry.flags());
        settle(inner, fd, connection);
    }
}

/// The program closes a connection, whose number is free when its call is over. True: it is closed; false: the call is
/// to close it.
pub(crate) fn close(set: &'static Set, held: &mut Held, entry: &'static Entry, fd: i32) -> bool {
    let Some(mut connection) = held.connection(fd) else {
        return false;
    };
    let in_handler = held.in_handler();
    let inner: &mut Inner = held;
    let was_served = entry.kind() == Kind::Served;
    if entry.flags() & SHARED != 0 && connection.is(flag::MEMBER) && connection.in_hand() > 0 {
        leave_to_second(inner, fd, connection);
    }
    inner.unready(fd, connection);
    inner.knows_no_more(fd, connection.data);
    connection.clear(flag::MEMBER);
    let by_owner = inner.ring.is_some()
        && inner.mode == Mode::Serving
        && set.is_mine()
        && !inner.pushed
        && !in_handler;
    if by_owner {
        let_go_now(inner, fd, connection);
    }
    discard(inner, entry, fd, connection);
    let idle = !connection.is(flag::ARMED | flag::POLLED);
    let ends_now = by_owner && idle && ends_with_answer(inner, entry, fd, connection);
    if !ends_now {
        send::flush(inner, fd, connection);
        if !idle {
            stop_receiving(inner, fd, connection);
        }
    }
    let rest = connection.backlog.move_out();
    // Room is waited for by the number's next user only.
    connection.clear(flag::FULL);
    if was_served {
        ends(inner);
    } else {
        inner.replays = inner.replays.saturating_sub(1);
    }
    // Answers that are still to come are not for whoever gets the number next.
    connection.generation = connection.generation.wrapping_add(1) & flag::GENERATION_MAX;
    if end_closed(fd, rest.as_slice(), !idle, entry.flags()) {
        return true;
    }
    entry.forget();
    // It was the library's answer, so it is the library's close.
    ends_now && sys::close(fd).is_ok()
}

/// What a close can't do by itself: a rest is sent later, and what the ring holds of a connection keeps its end back
/// until its owner waits again, which may be never (`kept_back`). True: it keeps its number for its rest.
fn end_closed(fd: i32, rest: &[u8], kept_back: bool, flags: u32) -> bool {
    if !rest.is_empty() {
        let beside = match kept_back {
            true => Beside::Ring,
            false => Beside::Nobody,
        };
        return draining::take_over(fd, rest, beside.unless_shared(flags & SHARED != 0));
    }
    if kept_back && flags & (OWN | SHARED) == OWN {
        sys::end_as_if_closed(fd);
    }
    false
}

/// What the ring holds of a connection would keep its end back.
fn let_go_now(inner: &mut Inner, fd: i32, connection: Conn) {
    let ring_has = [
        (flag::ARMED, poll_cycle::receive_token(fd, connection)),
        (flag::POLLED, poll_cycle::poll_token(fd, connection)),
    ];
    let before = inner.cancels.len();
    let ring_has = ring_has.into_iter().filter(|had| connection.is(had.0));
    inner.cancels.extend(ring_has.map(|had| had.1));
    if inner.cancels.len() > before {
        inner.submit_cancels();
    }
}

/// Has the last answer of a connection leave in one segment with its end: one packet less each way for connections
/// of one request. Only where the close is the end, for all processes and in order: else the peer would be told an end
/// before the reset that the kernel tells it. True: all has been sent.
fn ends_with_answer(inner: &mut Inner, entry: &'static Entry, fd: i32, connection: Conn) -> bool {
    if connection.out_bytes == 0 || entry.flags() & (OWN | SHARED) != OWN {
        return false;
    }
    if sys::readable(fd) > 0 || sockopts::lingers(fd) {
        return false;
    }
    send::flush_last(inner, fd, connection);
    connection.backlog.is_empty()
}

/// As the kernel does where something was not read: what is on its way is sent, then the peer is told.
fn discard(inner: &mut Inner, entry: &'static Entry, fd: i32, mut connection: Conn) {
    if connection.in_hand() == 0 {
        return;
    }
    receive::spill(inner, connection);
    connection.spilled.clear();
    // Behind a filter the peer is told an end instead: to ask for the reset may be forbidden.
    if entry.flags() & SHARED == 0 && !crate::process::asks_little() {
        send::flush(inner, fd, connection);
        sys::reset_when_closed(fd);
    }
}

/// All of a set's connections are handed back, and the kernel's set answers from now on.
pub(crate) fn pass_whole(held: &mut Held, why: Why) {
    if held.mode == Mode::Passing {
        return switch::is_not_to_return(held);
    }
    counters::passed(why);
    if why == Why::Filtered {
        log::refused("the program has set a filter of system calls");
    }
    log::say(&format!(
        "an epoll set passes through from now on: {}",
        why.name()
    ));
    let Some(set) = set_of(held) else { return };
    let had = held.ring.is_some();
    hand_back_all(held, set, why);
    if held.mode == Mode::Serving {
        listeners::hand_back_all(held);
    }
    held.mode = Mode::Passing;
    if had {
        end_ring(held, set);
    }
}

fn set_of(held: &Held) -> Option<&'static Set> {
    fd_table::entry(held.fd).and_then(Set::of)
}

fn hand_back_all(held: &mut Held, set: &'static Set, why: Why) {
    for fd in 0..served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        let ours = Set::of(entry).is_some_and(|other| std::ptr::eq(other, set));
        if ours && entry.kind() == Kind::Served {
            hand_back(held, fd, why);
        }
    }
}

/// The ring goes. Whatever it may still write to stays for ever, unless its owner sees to it that nothing is with
/// the kernel.
fn end_ring(held: &mut Held, set: &'static Set) {
    let nothing_comes = held.is_mine() && held.end_all();
    for fd in 0..served_max() as i32 {
        if let Some(connection) = held.connection(fd) {
            receive::spill(held, connection);
        }
    }
    let Some(mut machine) = held.ring.take() else {
        return;
    };
    set.set_wake(-1);
    held.to_poll.clear();
    // Closing the ring cancels what is with the kernel, and does not wait for it (trap 2).
    for fd in 0..served_max() as i32 {
        let ours = fd_table::entry(fd)
            .and_then(Set::of)
            .is_some_and(|other| std::ptr::eq(other, set));
        if ours && let Some(mut connection) = held.connection(fd) {
            connection
                .clear(flag::ARMED | flag::CANCELLED | flag::POLLED | flag::TO_ARM | flag::QUEUED);
            settle(held, fd, connection);
            deferred_output::is_aside(held, fd, connection);
        }
    }
    machine.answers.clear();
    let crate::epoll_set::Machine {
        ring,
        pool,
        arena,
        counts,
        ..
    } = *machine;
    counts.end();
    // A filter may allow less than an enter.
    reserved_fds::close_ring(ring, nothing_comes && crate::process::may_make_rings());
    crate::ring_teardown::ring_has_ended();
    if nothing_comes {
        drop(pool);
    } else {
        // What a cancelled receive could still write to.
        std::mem::forget(pool);
    }
    drop(arena);
    held.queued.clear();
    held.cancels.clear();
    held.to_arm.clear();
    held.kernel_polled = false;
}

/// The last number of a set is closed: its connections are nobody's, until they are put into another.
pub(crate) fn end_set(held: &mut Held, set: &'static Set) {
    for fd in 0..served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        let ours = Set::of(entry).is_some_and(|other| std::ptr::eq(other, set));
        if ours
            && entry.kind() == Kind::Served
            && let Some(connection) = held.connection(fd)
        {
            send::flush(held, fd, connection);
            remove(held, fd, connection);
        }
        if ours
            && entry.kind() == Kind::Replay
            && let Some(mut connection) = held.connection(fd)
        {
            held.unready(fd, connection);
            connection.clear(flag::MEMBER | flag::EDGE | flag::DISABLED);
            settle(held, fd, connection);
        }
    }
    let_go(held);
    held.mode = Mode::Passing;
    switch::is_not_to_return(held);
    end_ring(held, set);
}
