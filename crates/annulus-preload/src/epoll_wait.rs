//! # Safety
//!
//! `epoll_wait`: one turn of the ring instead, and what is ready by what it has brought. Pointers are the program's,
//! valid for the call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use std::ptr;

use libc::epoll_event;

use crate::config;
use crate::connection::{self as flag, Conn, EDGE_TRIGGERED, ONESHOT};
use crate::counters::{self, Call, Why};
use crate::epoll_ctl;
use crate::epoll_set::{Guest, Held, Mode, Set};
use crate::errno::{self, Answer};
use crate::fd_table::{self, Entry, Kind};
use crate::hand_back;
use crate::poll_cycle::{self, Ended};
use crate::process;
use crate::receive;
use crate::ring_teardown;
use crate::send;
use crate::switch;
use crate::sys;

/// Where the program wants its events.
pub(crate) struct Room {
    pub(crate) events: *mut epoll_event,
    pub(crate) max: i32,
    pub(crate) timeout_ns: Option<u64>,
    /// The signal set while it sleeps, or null.
    pub(crate) mask: *const u64,
}

/// Waits on a set. `None`: the kernel's set answers.
///
/// # Safety
///
/// Lent: `room` has place for as many events as it says; its mask is null, or the 8 bytes of a signal set.
pub(crate) unsafe fn wait(number: &'static Entry, room: &Room) -> Option<Answer> {
    // SAFETY: Lent, passed on.
    match errno::guarded(|| unsafe { begin(number, room) })? {
        Begun::Answered(answer) => Some(answer),
        // SAFETY: Lent, passed on.
        Begun::Serving(held) => unsafe { wait_serving(held, room) },
    }
}

enum Begun {
    Answered(Answer),
    /// By the ring, as the set's owner.
    Serving(Held),
}

/// # Safety
///
/// Lent: as [`wait`].
unsafe fn begin(number: &'static Entry, room: &Room) -> Option<Begun> {
    crate::descriptor::close_what_waits();
    let set = Set::of(number)?;
    if room.max <= 0 {
        return None;
    }
    fd_table::none_is_fresh();
    let mut held = set.take()?;
    switch::obey(set, &mut held);
    match held.mode {
        Mode::Passing if held.has_guest() || held.ready.1 != 0 || !held.known.is_empty() => {}
        Mode::Passing => return None,
        _ if set.owner() == 0 => set.own(),
        _ if !set.is_mine() => {
            hand_back::pass_whole(&mut held, Why::SeveralThreads);
        }
        _ => {}
    }
    if process::is_now_filtered() {
        process::is_filtered_in(&mut held);
    }
    if held.mode == Mode::Fresh {
        if !held.wanted || config::get().disabled {
            // SAFETY: Lent, passed on.
            return unsafe { wait_passing(held, room) }.map(Begun::Answered);
        }
        epoll_ctl::start(set, &mut held);
    }
    // A handler may have left the wait that it interrupted by a jump, or may wait itself.
    held.is_back();
    if switch::is_released() && held.mode == Mode::Serving {
        switch::release(&mut held);
    }
    if held.mode == Mode::Passing {
        // SAFETY: Lent, passed on.
        return unsafe { wait_passing(held, room) }.map(Begun::Answered);
    }
    counters::served(Call::EpollWait);
    Some(Begun::Serving(held))
}

/// Between its guarded parts nothing is owned: there the thread sleeps, and may be ended.
///
/// # Safety
///
/// Lent: as [`wait`].
unsafe fn wait_serving(mut held: Held, room: &Room) -> Option<Answer> {
    let deadline_ns = match room.timeout_ns {
        Some(ns @ 1..) => Some(sys::now_ns().saturating_add(ns)),
        _ => None,
    };
    let mut left_ns = room.timeout_ns;
    loop {
        let (ready, sleeps, has_work) = errno::guarded(|| Some(begin_round(held, left_ns)))?;
        held = ready;
        let mut ended = Ended::Answered;
        if sleeps || has_work {
            // SAFETY: Lent, passed on.
            (held, ended) = unsafe { poll_cycle::enter(held, sleeps, left_ns, room.mask) }?;
        }
        if ended != Ended::Lost && std::mem::take(&mut held.again) {
            // SAFETY: Lent: no mask, as it does not sleep.
            (held, _) = unsafe { poll_cycle::enter(held, false, None, ptr::null()) }?;
            held.again = false;
        }
        // SAFETY: Lent, passed on.
        let ended_round = errno::guarded(|| Some(unsafe { end_round(held, room, ended) }))?;
        held = match ended_round {
            Ok(answer) => return answer,
            Err(held) => held,
        };
        if left_ns == Some(0) {
            return Some(Ok(0));
        }
        let now_ns = deadline_ns.map(|_| sys::now_ns());
        if let (Some(deadline_ns), Some(now_ns)) = (deadline_ns, now_ns) {
            left_ns = Some(deadline_ns.saturating_sub(now_ns));
        }
        match ended {
            Ended::TimedOut => return Some(Ok(0)),
            Ended::Interrupted if left_ns != Some(0) && !ring_teardown::has_interrupted() => {
                return Some(Err(libc::EINTR));
            }
            _ if left_ns == Some(0) => return Some(Ok(0)),
            _ => {}
        }
        if switch::is_released() {
            // SAFETY: Lent, passed on.
            return unsafe { wait_released(held, room, deadline_ns) };
        }
    }
}

/// The operator has asked for it while the thread slept: the rest of its wait is the kernel's. `None`: all of it, as it
/// has no end.
///
/// # Safety
///
/// Lent: as [`wait`].
unsafe fn wait_released(held: Held, room: &Room, deadline_ns: Option<u64>) -> Option<Answer> {
    let set = held.fd;
    let in_hand = errno::guarded(|| {
        let mut held = held;
        switch::release(&mut held);
        // SAFETY: Lent, passed on.
        unsafe { wait_passing(held, room) }
    });
    if in_hand.is_some() || room.timeout_ns == Some(0) {
        return in_hand.or(Some(Ok(0)));
    }
    let left_ns = deadline_ns?.saturating_sub(sys::now_ns());
    let before = errno::get();
    let said = ring_teardown::wait_through(Some(left_ns), |rest_ns| {
        let rest_ns = rest_ns.unwrap_or(left_ns);
        // SAFETY: Lent, passed on.
        unsafe { sys::wait_on(set, (room.events, room.max), rest_ns, room.mask) }
    });
    let answer = usize::try_from(said).map_err(|_| errno::get());
    errno::set(before);
    Some(answer)
}

/// What has come, if anything has: the answer of the call.
///
/// # Safety
///
/// Lent: as [`wait`].
unsafe fn end_round(mut held: Held, room: &Room, ended: Ended) -> Result<Option<Answer>, Held> {
    if ended == Ended::Lost {
        hand_back::pass_whole(&mut held, poll_cycle::LOST);
        // SAFETY: Lent, passed on.
        let answer = unsafe { wait_passing(held, room) };
        // As if a signal had been handled: the program asks again, and the kernel answers.
        return Ok(Some(answer.unwrap_or(Err(libc::EINTR))));
    }
    // SAFETY: Lent, passed on.
    match unsafe { collect(&mut held, room) } {
        0 => Err(held),
        found => Ok(Some(Ok(found))),
    }
}

/// Tidies up, and says whether the round may sleep, and whether it has something to hand over.
fn begin_round(mut held: Held, left_ns: Option<u64>) -> (Held, bool, bool) {
    tidy_up(&mut held);
    let something = held.has_ready()
        || held.has_guest()
        || held.kernel_ready
        || held.listeners.iter().any(|listener| listener.found != 0);
    let sleeps = !something && left_ns != Some(0);
    let has_work = held.has_gathered()
        || (held.ring.as_mut())
            .is_some_and(|machine| machine.ring.is_ready() || machine.ring.unsubmitted() > 0);
    (held, sleeps, has_work)
}

/// What the last round has left is tidied up before the kernel is asked.
fn tidy_up(held: &mut Held) {
    held.round = held.round.wrapping_add(1);
    if !held.leaving.is_empty() {
        hand_back::let_go(held);
    }
    if !held.starved.is_empty() {
        // Somebody has what all receive into, and does not read it.
        receive::spill_all(held);
    }
    send::end_round(held);
    if let Some(machine) = &mut held.ring {
        machine.pool.round();
    }
}

impl Held {
    fn is_in_hand(&self, guest: Guest) -> bool {
        let host = || {
            let entry = fd_table::entry(guest.fd)?;
            let set = Set::of(entry).filter(|_| entry.kind() == Kind::Replay)?;
            // Of another thread's nothing is looked at.
            set.is_mine().then_some(entry)
        };
        !guest.told
            && guest.events & flag::IN != 0
            && host().is_some_and(|entry| {
                // SAFETY: Held: of a set that this thread waits on, and is not in the kernel with.
                let host = unsafe { &*entry.connection() };
                host.generation == guest.generation && host.in_hand() > 0
            })
    }

    pub(crate) fn has_guest(&self) -> bool {
        self.guests.iter().any(|&guest| self.is_in_hand(guest))
    }

    /// Whether anything is to be reported; drops those from the list that are not ready any more, and frees the
    /// buffers of those that have not read them.
    pub(crate) fn has_ready(&mut self) -> bool {
        let last = self.ready.1;
        let mut any = false;
        if last == 0 {
            return false;
        }
        while let Some((fd, entry, connection)) = self.next_ready() {
            let edge = connection.events & EDGE_TRIGGERED != 0;
            let kind = entry.kind();
            let stays = matches!(kind, Kind::Served | Kind::Replay)
                && connection.report() != 0
                && (!edge || connection.is(flag::EDGE));
            if connection.bytes > 0 && connection.round.wrapping_add(1) != self.round {
                receive::spill(self, connection);
            }
            if stays && connection.is(flag::READABLE) && !connection.is(flag::POLLED) {
                self.to_poll.push(fd);
            }
            if stays {
                self.make_ready(fd, connection);
                any = true;
            }
            if fd as u32 + 1 == last {
                break;
            }
        }
        any
    }

    /// Whether there is something to push.
    fn has_gathered(&self) -> bool {
        !self.queued.is_empty()
            || !self.to_arm.is_empty()
            || !self.to_poll.is_empty()
            || !self.cancels.is_empty()
            || (self.listeners.iter()).any(|listener| !listener.polled && listener.found == 0)
            || (self.kernel_has && !self.kernel_polled && !self.kernel_ready)
    }
}

/// Writes down what is ready, as much as there is room for: ours, then the kernel's set's.
///
/// # Safety
///
/// Lent: as [`wait`].
unsafe fn collect(held: &mut Held, room: &Room) -> usize {
    let max = room.max as usize;
    let (mut found, mut replayed) = (0, false);
    // SAFETY: Lent, passed on, to each.
    unsafe {
        collect_ours(held, room, &mut found, &mut replayed);
        collect_listeners(held, room, &mut found);
        collect_guests(held, room, &mut found, &mut replayed);
    }
    if !held.kernel_ready || found == max {
        return found;
    }
    let left = max - found;
    // SAFETY: Lent: behind those that were written.
    let theirs = unsafe { sys::ready(held.fd, room.events.add(found), left as i32) };
    let count = theirs.unwrap_or(0).min(left);
    // Fewer than there was room for: all of them. The ring looks again in the next turn.
    held.kernel_ready = count == left;
    let count = if held.known.is_empty() {
        count
    } else {
        // SAFETY: Lent: so many have been written there.
        let kept = unsafe { drop_known(held, room.events.add(found), count) };
        if !held.kernel_ready {
            // What was to be reported once too often has been.
            held.known.clear();
        }
        kept
    };
    if !replayed {
        return found + count;
    }
    // SAFETY: Lent: all of these have been written.
    unsafe { merge(room.events, found, count) }
}

/// # Safety
///
/// Lent: as [`wait`].
unsafe fn collect_ours(held: &mut Held, room: &Room, found: &mut usize, replayed: &mut bool) {
    let max = room.max as usize;
    let last = held.ready.1;
    // Others have their turn even where ours would fill the room: in a room for one, every second time.
    let listeners = held.listeners.iter().filter(|listener| listener.found != 0);
    let others = listeners.count() + usize::from(held.kernel_ready);
    let theirs = match max {
        1 => others.min(held.round as usize & 1),
        _ => others.min(max / 2),
    };
    let ours = max - theirs;
    while *found < ours && last != 0 {
        let Some((fd, entry, mut connection)) = held.next_ready() else {
            break;
        };
        let edge = connection.events & EDGE_TRIGGERED != 0;
        let mut report = connection.report();
        match entry.kind() {
            Kind::Served => {}
            // The rest of it the kernel's set knows.
            Kind::Replay => {
                report &= flag::IN | flag::ERR;
                *replayed |= report != 0;
            }
            _ => report = 0,
        }
        if report != 0 && (!edge || connection.is(flag::EDGE)) {
            if connection.events & ONESHOT != 0 {
                report |= for_once(held, (entry, fd), connection);
            }
            // SAFETY: Lent: fewer than there is room for.
            unsafe {
                room.events.add(*found).write_unaligned(epoll_event {
                    events: report,
                    u64: connection.data,
                });
            }
            *found += 1;
            connection.clear(flag::EDGE);
            if connection.events & ONESHOT != 0 {
                connection.mark(flag::DISABLED);
            } else if !edge {
                // Still ready, for all we know; after the others.
                held.make_ready(fd, connection);
            }
        }
        if fd as u32 + 1 == last {
            break;
        }
    }
}

/// What is reported once is all that the kernel has found by now: what comes as news a turn later would be kept back.
/// One that was handed back is not to be reported by the kernel's set, too: that gets it when it is to speak again.
fn for_once(held: &Held, (entry, fd): (&'static Entry, i32), connection: Conn) -> u32 {
    let mut found = sys::poll_now(fd, connection.events);
    if entry.kind() == Kind::Replay {
        let _ = sys::control(held.fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
    if connection.is(flag::FULL) && !connection.is(flag::SHUT) {
        found &= !flag::OUT;
    }
    found & (connection.events | flag::ERR | flag::HUP)
}

/// # Safety
///
/// Lent: as [`wait`].
unsafe fn collect_listeners(held: &mut Held, room: &Room, found: &mut usize) {
    let max = room.max as usize;
    if max == 1 && held.kernel_ready && held.round & 2 != 0 {
        return;
    }
    for listener in &mut held.listeners {
        let report = listener.found & (listener.events | flag::ERR | flag::HUP);
        if *found < max && listener.found != 0 {
            listener.found = 0;
            if report != 0 {
                // SAFETY: Lent: fewer than there is room for.
                unsafe {
                    room.events.add(*found).write_unaligned(epoll_event {
                        events: report,
                        u64: listener.data,
                    });
                }
                *found += 1;
            }
        }
    }
}

/// # Safety
///
/// Lent: as [`wait`].
unsafe fn collect_guests(held: &mut Held, room: &Room, found: &mut usize, replayed: &mut bool) {
    let max = room.max as usize;
    for nth in 0..held.guests.len() {
        let guest = held.guests[nth];
        if *found < max && held.is_in_hand(guest) {
            // SAFETY: Lent: fewer than there is room for.
            unsafe {
                room.events.add(*found).write_unaligned(epoll_event {
                    events: guest.events & flag::IN,
                    u64: guest.data,
                });
            }
            held.guests[nth].told = guest.events & (EDGE_TRIGGERED | ONESHOT) != 0;
            *replayed = true;
            *found += 1;
        }
    }
}

/// Of one that was handed back and put into the kernel's set anew, the first report is an old one.
///
/// # Safety
///
/// Lent: `count` events have been written.
unsafe fn drop_known(held: &mut Held, events: *mut epoll_event, count: usize) -> usize {
    let mut kept = 0;
    for at in 0..count {
        // SAFETY: Lent, as said.
        let event = unsafe { events.add(at).read_unaligned() };
        let (said, data) = (event.events, event.u64);
        let known = held.known.iter().position(|known| known.data == data);
        let is_old = known.is_some_and(|nth| said & !held.known.swap_remove(nth).events == 0);
        if !is_old {
            // SAFETY: Lent, as said: not behind where it was read.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
    }
    kept
}

/// One event per member: what is in hand of one that was handed back, and what the kernel says of it.
///
/// # Safety
///
/// Lent: `found` and then `count` events have been written.
unsafe fn merge(events: *mut epoll_event, found: usize, count: usize) -> usize {
    let mut kept = found;
    for at in found..found + count {
        // SAFETY: Lent, as said.
        let event = unsafe { events.add(at).read_unaligned() };
        let data = event.u64;
        let earlier = (0..found).find(|&earlier| {
            // SAFETY: Lent, as said.
            let earlier = unsafe { events.add(earlier).read_unaligned() };
            earlier.u64 == data
        });
        match earlier {
            Some(earlier) => {
                // SAFETY: Lent, as said.
                unsafe {
                    let place = events.add(earlier);
                    let mut both = place.read_unaligned();
                    both.events |= event.events;
                    place.write_unaligned(both);
                }
            }
            None => {
                // SAFETY: Lent, as said: not behind where it was read.
                unsafe { events.add(kept).write_unaligned(event) };
                kept += 1;
            }
        }
    }
    kept
}

/// The kernel's set, and what is still in hand of those that were handed back.
///
/// # Safety
///
/// Lent: as [`wait`].
unsafe fn wait_passing(mut held: Held, room: &Room) -> Option<Answer> {
    held.round = held.round.wrapping_add(1);
    let known = !held.known.is_empty();
    if !(known || held.has_guest() || held.has_ready()) {
        return None;
    }
    held.kernel_ready = true;
    // SAFETY: Lent, passed on.
    let mut found = unsafe { collect(&mut held, room) };
    held.kernel_ready = false;
    if found == 0 {
        // A room for one was kept for the kernel's set, which had nothing.
        // SAFETY: Lent, passed on.
        found = unsafe { collect(&mut held, room) };
    }
    if found == 0 && room.timeout_ns == Some(0) {
        return Some(Ok(0));
    }
    // What was old has been dropped.
    held.known.clear();
    (found > 0).then_some(Ok(found))
}

/// A timeout of `epoll_wait`, ns.
pub(crate) fn timeout_ns(ms: i32) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// The first eight bytes of a signal set are the kernel's.
pub(crate) fn kernel_mask(mask: *const libc::sigset_t) -> *const u64 {
    if mask.is_null() {
        ptr::null()
    } else {
        mask.cast()
    }
}
