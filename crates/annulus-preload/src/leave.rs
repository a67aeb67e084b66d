//! # Safety
//!
//! How a descriptor stops being served: it is handed back to the kernel, removed from its set, or closed. What was
//! received stays in hand and is read first; what is queued goes out first; a receive that is with the kernel is
//! cancelled in the ring's next enter, before anything else can come of it. (Held: the callers have the lock.)
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bytes::Moved;
use crate::connection::{self as flag, Conn};
use crate::counts::{self, Why};
use crate::listeners;
use crate::log;
use crate::options;
use crate::orphans::{self, Beside};
use crate::receive;
use crate::rests;
use crate::send;
use crate::set::{Closing, Held, Inner, Known, Mode, Set};
use crate::sys;
use crate::table::{self, Entry, Kind, LEFT_ALONE, OWN, SHARED};
use crate::turn;
use crate::watchdog;

/// So many descriptors of a set that other threads touch, and it is theirs as much as its owner's.
const STRANGERS_MAX: u32 = 64;

/// How often one looks whether a kernel thread that polls has cancelled something; it takes one round of its own.
const SETTLE_TURNS_MAX: u32 = 100_000;

/// Numbers that the program has closed and the kernel has not, of all sets; those that linger count no more.
static CLOSES: AtomicUsize = AtomicUsize::new(0);

/// So many numbers are free, or wait for room of the kernel's.
pub(crate) fn closed(count: usize) {
    CLOSES.fetch_sub(count, Ordering::Relaxed);
}

/// The program is about to be given a number: the lowest that is free, as far as it knows.
pub(crate) fn free_numbers() {
    crate::descriptor::close_what_waits();
    if CLOSES.load(Ordering::Relaxed) > 0 {
        crate::sets::for_each_of_mine(finish_closes);
    }
}

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
    let Some(entry) = table::entry(fd) else {
        return;
    };
    if entry.kind() != Kind::Served {
        return;
    }
    let Some(connection) = inner.connection(fd) else {
        return;
    };
    counts::handed_back(why);
    send::flush(inner, fd, connection);
    receive::spill(inner, connection);
    stop_receiving(inner, fd, connection);
    // SAFETY: Owned: the set that the connection belongs to.
    let is_mine = unsafe { inner.itself.as_ref() }.is_some_and(Set::is_idle_and_mine);
    if is_mine && connection.is(flag::ARMED | flag::POLLED) {
        // What the ring holds of it would keep its end back.
        inner.submit_cancels();
    }
    ends(inner);
    let shared = matches!(why, Why::Duplicated | Why::PassedOn);
    let shared = if shared { SHARED } else { 0 };
    entry.become_kind(Kind::Replay, LEFT_ALONE | shared | entry.flags());
    inner.replays += 1;
    // One that was reported once and is silent can't be put into the kernel's set as such: not before it is to speak.
    if connection.is(flag::MEMBER) && !connection.is(flag::DISABLED) {
        let (events, data) = (connection.events, connection.data);
        if sys::control(inner.fd, libc::EPOLL_CTL_ADD, fd, events, data).is_ok() {
            inner.kernel_has = true;
            // An option may wake whoever waits, as the low-water mark does: an edge of its own.
            let silent = !connection.is(flag::EDGE) && why != Why::UnknownOption;
            let edge = events & flag::EDGE_TRIGGERED != 0 && silent;
            let there = if edge { sys::poll_now(fd, events) } else { 0 };
            // What can be read of the kernel has not been reported: the ring reports what it has taken.
            let there = match connection.is(flag::ENDED | flag::DEAD) {
                true => there,
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
    if (connection.in_hand() > 0 || connection.error != 0) && !(told && why != Why::UnknownOption) {
        inner.notify(fd, connection, 0);
    }
    settle(inner, fd, connection);
}

/// One that was handed back can be written to again. The kernel's set did not know that it could not, and may have
/// reported it meanwhile; a change makes it report an edge anew.
pub(crate) fn has_room(inner: &Inner, fd: i32, connection: Conn) {
    let edge = connection.events & (flag::EDGE_TRIGGERED | flag::ONESHOT) == flag::EDGE_TRIGGERED;
    let replay = table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Replay);
    if replay && edge && connection.is(flag::MEMBER) && connection.events & flag::OUT != 0 {
        let (events, data) = (connection.events, connection.data);
        let _ = sys::control(inner.fd, libc::EPOLL_CTL_MOD, fd, events, data);
    }
}

fn stop_receiving(inner: &mut Inner, fd: i32, mut connection: Conn) {
    if connection.is(flag::POLLED) {
        inner.cancels.push(turn::poll_token(fd, connection));
    }
    if connection.is(flag::ARMED) && !connection.is(flag::CANCELLED) {
        connection.mark(flag::CANCELLED);
        inner.cancels.push(turn::receive_token(fd, connection));
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
    let Some(entry) = table::entry(fd) else {
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
    let (Some(entry), Some(mut connection)) = (table::entry(fd), inner.connection(fd)) else {
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

/// Those that were taken out of their set and not put in again are the kernel's.
pub(crate) fn let_go(inner: &mut Inner) {
    for fd in std::mem::take(&mut inner.leaving) {
        let Some(entry) = table::entry(fd) else {
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

/// The program closes a connection. True: it is closed, or the ring does it; false: it is to be closed now.
pub(crate) fn close(set: &'static Set, held: &mut Held, entry: &'static Entry, fd: i32) -> bool {
    let Some(mut connection) = held.connection(fd) else {
        return false;
    };
    let in_handler = held.in_handler();
    let inner: &mut Inner = held;
    let was_served = entry.kind() == Kind::Served;
    inner.unready(fd, connection);
    inner.knows_no_more(fd, connection.data);
    connection.clear(flag::MEMBER);
    discard(inner, entry, fd, connection);
    let by_ring = inner.ring.is_some()
        && inner.mode == Mode::Serving
        && set.is_mine()
        && !inner.pushed
        && !in_handler;
    if !by_ring {
        send::flush(inner, fd, connection);
        stop_receiving(inner, fd, connection);
    }
    let idle = !connection.is(flag::ARMED | flag::POLLED);
    let ends_now = idle && by_ring && ends_with_answer(inner, entry, fd, connection);
    let closing = take_out(fd, connection, entry.flags() & SHARED != 0);
    if was_served {
        ends(inner);
    } else {
        inner.replays = inner.replays.saturating_sub(1);
    }
    // Answers that are still to come are not for whoever gets the number next.
    connection.generation = connection.generation.wrapping_add(1) & flag::GENERATION_MAX;
    let simple = closing.out_bytes == 0 && closing.backlog.is_empty();
    if simple && (idle || !by_ring) || (!by_ring && inner.ring.is_none()) {
        if !closing.backlog.is_empty() {
            let beside = Beside::Nobody.unless_shared(closing.is_shared);
            orphans::take_over(fd, closing.backlog.as_slice(), beside);
        }
        entry.forget();
        // It was the library's answer, so it is the library's close.
        return ends_now && sys::close(fd).is_ok();
    }
    entry.become_kind(Kind::Closing, 0);
    inner.closing.push(closing);
    CLOSES.fetch_add(1, Ordering::Relaxed);
    if inner.queued_at_ns == 0 {
        inner.is_queued_since(sys::now_ns());
        watchdog::look_out();
    }
    true
}

/// What is left to do for a connection that the program has closed; its number is another's next.
fn take_out(fd: i32, mut connection: Conn, is_shared: bool) -> Closing {
    let closing = Closing {
        fd,
        out_from: connection.out_from,
        out_bytes: connection.out_bytes,
        backlog: connection.backlog.move_out(),
        receive: connection
            .is(flag::ARMED)
            .then(|| turn::receive_token(fd, connection)),
        poll: connection
            .is(flag::POLLED)
            .then(|| turn::poll_token(fd, connection)),
        is_over: false,
        is_shared,
    };
    (
        connection.out_from,
        connection.out_bytes,
        connection.out_room,
    ) = (0, 0, 0);
    // Room is waited for by the number's next user only.
    connection.clear(flag::FULL);
    closing
}

/// Has the last answer of a connection leave in one segment with its end: one packet less each way for connections
/// of one request. Only where the close is the end, for all processes and in order: else the peer would be told an end
/// before the reset that the kernel tells it. True: all has been sent.
fn ends_with_answer(inner: &mut Inner, entry: &'static Entry, fd: i32, connection: Conn) -> bool {
    if connection.out_bytes == 0 || entry.flags() & (OWN | SHARED) != OWN {
        return false;
    }
    if sys::readable(fd) > 0 || options::lingers(fd) {
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
    if entry.flags() & SHARED == 0 {
        send::flush(inner, fd, connection);
        sys::reset_when_closed(fd);
    }
}

/// Closes at once what the ring was to close: the process ends, has no more descriptors, or is about to become
/// another program.
pub(crate) fn finish_closes(held: &mut Held) {
    finish(held, false);
}

/// As [`finish_closes`], by a thread that can't have the ring let go of them: the peer is told now.
pub(crate) fn finish_closes_late(held: &mut Held) {
    finish(held, true);
}

fn finish(held: &mut Held, tell: bool) {
    if held.pushed {
        return;
    }
    let closing: Vec<Closing> = held.closing.drain(..).collect();
    let mut armed = false;
    for mut closing in closing {
        for held_by_ring in [closing.receive.take(), closing.poll.take()]
            .into_iter()
            .flatten()
        {
            held.cancels.push(held_by_ring);
            armed = true;
        }
        let mut over = closing.backlog.is_empty();
        if over
            && closing.out_bytes > 0
            && let Some(machine) = &held.ring
        {
            // SAFETY: Owned: the arena's, which is not reset while something of it is to be closed.
            let rest = unsafe {
                std::slice::from_raw_parts(
                    machine.arena.at(closing.out_from),
                    closing.out_bytes as usize,
                )
            };
            let sent = match sys::send(closing.fd, rest) {
                Ok(sent) => sent,
                Err(libc::EAGAIN) => 0,
                Err(_) => rest.len(),
            };
            over = sent == rest.len();
            closing.backlog.append(&rest[sent..]);
            closing.out_bytes = 0;
        }
        if !over {
            held.closing.push(closing);
            continue;
        }
        closed(1);
        if tell && armed && !closing.is_shared {
            // What the ring holds of it would keep its end back.
            sys::end_as_if_closed(closing.fd);
        }
        let _ = sys::close(closing.fd);
        if let Some(entry) = table::entry(closing.fd)
            && entry.kind() == Kind::Closing
        {
            entry.forget();
        }
    }
    if armed && held.is_mine() {
        held.submit_cancels();
    }
}

/// All of a set's connections are handed back, and the kernel's set answers from now on.
pub(crate) fn pass_whole(held: &mut Held, why: Why) {
    if held.mode == Mode::Passing {
        return;
    }
    counts::passed(why);
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
    finish_closes(held);
    if held.mode == Mode::Serving {
        listeners::hand_back_all(held);
    }
    held.mode = Mode::Passing;
    if had {
        end_ring(held, set);
    }
}

fn set_of(held: &Held) -> Option<&'static Set> {
    table::entry(held.fd).and_then(Set::of)
}

fn hand_back_all(held: &mut Held, set: &'static Set, why: Why) {
    for fd in 0..served_max() as i32 {
        let Some(entry) = table::entry(fd) else { break };
        let ours = Set::of(entry).is_some_and(|other| std::ptr::eq(other, set));
        if ours && entry.kind() == Kind::Served {
            hand_back(held, fd, why);
        }
    }
}

/// The ring goes. Whatever it may still write to stays for ever, unless its owner sees to it that nothing is with
/// the kernel.
fn end_ring(held: &mut Held, set: &'static Set) {
    orphans::take_all(held);
    let nothing_comes = held.is_mine() && held.end_all();
    for fd in 0..served_max() as i32 {
        if let Some(connection) = held.connection(fd) {
            receive::spill(held, connection);
        }
    }
    let Some(mut machine) = held.ring.take() else {
        return;
    };
    crate::process::forget(machine.ring.descriptors());
    for descriptor in machine.ring.descriptors() {
        if let Some(entry) = table::entry(descriptor) {
            entry.forget();
        }
    }
    set.set_wake(-1);
    held.to_poll.clear();
    // Closing the ring cancels what is with the kernel, and does not wait for it (trap 2).
    for fd in 0..served_max() as i32 {
        let ours = table::entry(fd)
            .and_then(Set::of)
            .is_some_and(|other| std::ptr::eq(other, set));
        if ours && let Some(mut connection) = held.connection(fd) {
            connection
                .clear(flag::ARMED | flag::CANCELLED | flag::POLLED | flag::TO_ARM | flag::QUEUED);
            settle(held, fd, connection);
            rests::is_aside(held, fd, connection);
        }
    }
    machine.answers.clear();
    let crate::set::Machine {
        ring,
        pool,
        arena,
        counts,
        ..
    } = *machine;
    counts.end();
    drop(ring);
    crate::ended::ring_has_ended();
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
        let Some(entry) = table::entry(fd) else { break };
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
    finish_closes(held);
    held.mode = Mode::Passing;
    end_ring(held, set);
}
