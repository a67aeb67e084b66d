//! # Safety
//!
//! The events that `epoll_wait` returns: those of the library's connections and listeners, then those of the kernel's
//! set, each at most once. Pointers come from the program and are valid for the call by the contract of the function
//! that it called (Lent).
#![allow(unsafe_code)]

use std::io;

use annulus::preload::{ServerRing, Wait};

use crate::arch::Event;
use crate::connection::Conn;
use crate::epoll_set::SetGuard;
use crate::events::{EDGE_TRIGGERED, ERR, HUP, ONESHOT, OUT};
use crate::fd_table::{self, Entry, FIRED_ELSEWHERE, Kind};
use crate::member::Member;
use crate::outbound::{Fin, Outbound};
use crate::output;
use crate::sys;

/// The arguments of `epoll_wait`: the program's buffer, and the wait.
pub(crate) struct EventBuffer<'a> {
    pub(crate) events: &'a mut [Event],
    pub(crate) timeout_ns: Option<u64>,
    /// The signal set while it sleeps, or null.
    mask: *const u64,
}

impl EventBuffer<'_> {
    /// # Safety
    ///
    /// Lent: as long as the value is used, `events` is valid for `max` events, and `mask` is null, or the 8 bytes of a
    /// signal set.
    pub(crate) unsafe fn new<'a>(
        (events, max): (*mut libc::epoll_event, i32),
        timeout_ns: Option<u64>,
        mask: *const u64,
    ) -> EventBuffer<'a> {
        let max = usize::try_from(max).unwrap_or(0);
        // SAFETY: Lent: the caller guarantees it. The structure is packed, so that any address is aligned.
        let events = unsafe { std::slice::from_raw_parts_mut(events.cast::<Event>(), max) };
        EventBuffer {
            events,
            timeout_ns,
            mask,
        }
    }

    /// Writes an event behind those that were written.
    #[inline]
    fn put(&mut self, filled: &mut usize, events: u32, data: u64) {
        let event = &mut self.events[*filled];
        event.events = events;
        event.u64 = data;
        *filled += 1;
    }

    /// Enters a ring, which sleeps with the mask of the call.
    #[inline]
    pub(crate) fn enter(
        &self,
        ring: &mut ServerRing,
        wait_for: Wait,
        timeout_ns: Option<u64>,
    ) -> io::Result<()> {
        // SAFETY: Lent: the mask (`new`).
        unsafe { ring.enter(wait_for, timeout_ns, self.mask) }
    }
}

/// Writes ready events to the buffer, as many as fit: those of the library, then those of the kernel's set.
#[inline]
pub(crate) fn collect(guard: &mut SetGuard, buffer: &mut EventBuffer<'_>) -> usize {
    let max = buffer.events.len();
    let (mut filled, mut has_handed_back) = (0, false);
    collect_ready(guard, buffer, &mut filled, &mut has_handed_back);
    collect_listeners(guard, buffer, &mut filled);
    collect_shared_members(guard, buffer, &mut filled, &mut has_handed_back);
    if !guard.kernel_ready || filled == max {
        return filled;
    }
    let count = sys::take_ready(guard.fd, &mut buffer.events[filled..]);
    // Fewer than fit were returned, so these are all. The ring polls again in the next cycle.
    guard.kernel_ready = count == max - filled;
    let count = if guard.already_reported.is_empty() {
        count
    } else {
        let kept = drop_reported(guard, buffer, filled, count);
        if !guard.kernel_ready {
            // All events that would have been reported twice have been dropped.
            guard.already_reported.clear();
        }
        kept
    };
    if !has_handed_back {
        return filled + count;
    }
    merge(buffer, filled, count)
}

fn collect_ready(
    guard: &mut SetGuard,
    buffer: &mut EventBuffer<'_>,
    filled: &mut usize,
    has_handed_back: &mut bool,
) {
    let max = buffer.events.len();
    let last = guard.ready.1;
    // Listeners and the kernel's set get their share even where served connections would fill the buffer: every second
    // event of a buffer for one.
    let listeners = guard
        .listeners
        .iter()
        .filter(|listener| listener.ready_events != 0);
    let others = listeners.count() + usize::from(guard.kernel_ready);
    let reserved = match max {
        _ if others == 0 => 0,
        1 => others.min(guard.round as usize & 1),
        _ => others.min(max / 2),
    };
    let limit = max - reserved;
    while *filled < limit && last != 0 {
        let Some((entry, connection)) = guard.next_ready() else {
            break;
        };
        let mut report = guard[connection].report();
        if !entry.is(Kind::Served) {
            // The kernel's set reports everything else.
            report &= match entry.is(Kind::HandedBack) {
                true => guard[connection].held_events(),
                false => 0,
            };
            *has_handed_back |= report != 0;
        } else if report & OUT != 0 {
            output::check_writable(guard, connection);
            report = guard[connection].report();
        }
        let one = &guard[connection];
        let (events, data) = (one.events, one.data);
        let is_level = events & EDGE_TRIGGERED == 0;
        if report != 0 && (is_level || one.member == Member::Changed) {
            let is_oneshot = events & ONESHOT != 0;
            if is_oneshot {
                report |= oneshot_events(guard, entry, connection);
            }
            buffer.put(filled, report, data);
            guard[connection].member = match is_oneshot {
                false => Member::Reported,
                true => Member::Disabled,
            };
            if is_level {
                // It may still be ready, or have unread data; it moves behind the others.
                guard.make_ready(connection);
            }
        }
        if connection.fd as u32 + 1 == last {
            break;
        }
    }
}

/// Collects all events of a oneshot member that the kernel has by now: an event that arrives a cycle later would not be
/// reported. A member that was handed back must not be reported by the kernel's set as well; it is added there again
/// when the program re-arms it.
fn oneshot_events(guard: &SetGuard, entry: &'static Entry, connection: Conn) -> u32 {
    let mut events = sys::poll_now(connection.fd, guard[connection].events);
    if entry.kind() == Kind::HandedBack {
        let _ = sys::control(guard.fd, libc::EPOLL_CTL_DEL, connection.fd, 0, 0);
    }
    if guard[connection].outbound == Outbound::Full && guard[connection].fin == Fin::Open {
        events &= !OUT;
    }
    events & (guard[connection].events | ERR | HUP)
}

fn collect_listeners(guard: &mut SetGuard, buffer: &mut EventBuffer<'_>, filled: &mut usize) {
    let max = buffer.events.len();
    if max == 1 && guard.kernel_ready && guard.round & 2 != 0 {
        return;
    }
    for listener in &mut guard.listeners {
        let report = listener.ready_events & (listener.events | ERR | HUP);
        if *filled < max && listener.ready_events != 0 {
            listener.ready_events = 0;
            if report != 0 {
                buffer.put(filled, report, listener.data);
            }
        }
    }
}

fn collect_shared_members(
    guard: &mut SetGuard,
    buffer: &mut EventBuffer<'_>,
    filled: &mut usize,
    has_handed_back: &mut bool,
) {
    let max = buffer.events.len();
    for nth in 0..guard.shared_members.len() {
        let shared_member = guard.shared_members[nth];
        let mut report = guard.held_of(shared_member);
        if *filled < max && report != 0 {
            if shared_member.events & ONESHOT != 0 {
                // The kernel's set must not report it once more, and has it again when the program re-arms it.
                report |= sys::poll_now(shared_member.fd, shared_member.events);
                shared_member.remove_from(guard.fd);
                if let Some(entry) = fd_table::entry(shared_member.fd) {
                    entry.set_flag(FIRED_ELSEWHERE);
                }
            }
            buffer.put(filled, report, shared_member.data);
            guard.shared_members[nth].reported =
                shared_member.events & (EDGE_TRIGGERED | ONESHOT) != 0;
            *has_handed_back = true;
        }
    }
}

/// Drops those of the last `count` events, behind `filled`, that were reported before their member was handed back and
/// added to the kernel's set again. Returns the number of the others.
fn drop_reported(
    guard: &mut SetGuard,
    buffer: &mut EventBuffer<'_>,
    filled: usize,
    count: usize,
) -> usize {
    let mut kept = filled;
    for at in filled..filled + count {
        let event = buffer.events[at];
        let (mask, data) = (event.events, event.u64);
        let position = guard
            .already_reported
            .iter()
            .position(|member| member.data == data);
        let was_reported =
            position.is_some_and(|nth| mask & !guard.already_reported.swap_remove(nth).events == 0);
        if !was_reported {
            buffer.events[kept] = event;
            kept += 1;
        }
    }
    kept - filled
}

/// Merges the events of each member into one: its buffered bytes, which are in the first `filled` events, and the
/// events that the kernel reports, in the next `count`. Returns the number of all.
fn merge(buffer: &mut EventBuffer<'_>, filled: usize, count: usize) -> usize {
    let mut kept = filled;
    for at in filled..filled + count {
        let event = buffer.events[at];
        let data = event.u64;
        match (0..filled).find(|&earlier| ({ buffer.events[earlier].u64 }) == data) {
            Some(earlier) => {
                buffer.events[earlier].events |= event.events;
            }
            None => {
                buffer.events[kept] = event;
                kept += 1;
            }
        }
    }
    kept
}
