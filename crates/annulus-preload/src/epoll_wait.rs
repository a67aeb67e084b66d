//! # Safety
//!
//! `epoll_wait`: runs one poll cycle of the ring, and returns its events. Pointers come from the program and are valid
//! for the call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use std::ptr;

use crate::config;
use crate::connection::Connection;
use crate::counters::{self, Call, Why};
use crate::early_members;
use crate::epoll_ctl;
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::errno::{self, CallResult};
use crate::events::{EDGE_TRIGGERED, ERR};
use crate::fd_table::{self, Entry, Kind};
use crate::member::Member;
use crate::output;
use crate::poll_cycle::{self, EnterOutcome};
use crate::removal;
use crate::reports::{self, EventBuffer};
use crate::ring_policy;
use crate::ring_teardown;
use crate::set_end;
use crate::set_members::SharedMember;
use crate::switch;
use crate::switch_position;
use crate::sys;
use crate::unread;
use crate::young_set::WAITS_BEFORE_RING;

/// Waits on a set. `None`: passes through to the kernel's set.
///
/// # Safety
///
/// Lent: `buffer.events` is valid for `buffer.max` events; its mask is null, or the 8 bytes of a signal set.
pub(crate) unsafe fn wait(number: &'static Entry, buffer: &EventBuffer) -> Option<CallResult> {
    let deadline_ns = match buffer.timeout_ns {
        Some(ns @ 1..) => Some(sys::now_ns().saturating_add(ns)),
        _ => None,
    };
    let mut left_ns = buffer.timeout_ns;
    loop {
        // SAFETY: Lent: the caller guarantees these pointers.
        let result = match errno::catch_panic(|| unsafe { begin(number, buffer) })? {
            Started::Completed(result) => Some(result),
            // SAFETY: Lent: the caller guarantees these pointers.
            Started::Serving(guard) => unsafe {
                wait_serving(guard, buffer, (left_ns, deadline_ns))
            },
        };
        if result != Some(Err(libc::ECANCELED)) {
            return result;
        }
        // A wait is a cancellation point. The thread may have disabled cancellation, and then goes on.
        // SAFETY: Typed: a function of glibc. It may unwind, and no value here has a destructor.
        unsafe { pthread_testcancel() };
        left_ns = deadline_ns.map_or(left_ns, |deadline_ns| {
            Some(deadline_ns.saturating_sub(sys::now_ns()))
        });
    }
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

enum Started {
    Completed(CallResult),
    /// The ring serves the wait; the calling thread owns the set.
    Serving(SetGuard),
}

/// # Safety
///
/// Lent: the contract of [`wait`].
unsafe fn begin(number: &'static Entry, buffer: &EventBuffer) -> Option<Started> {
    crate::descriptor::close_deferred();
    let set = Set::of(number)?;
    if buffer.max <= 0 {
        return None;
    }
    fd_table::clear_just_accepted();
    let is_young = set.young.is_young();
    if is_young && set.passes_young_wait() {
        return None;
    }
    let mut guard = set.take()?;
    if is_young {
        early_members::mature(set, &mut guard);
    }
    if !guard.shared_members.is_empty() {
        guard = query_other_threads(set, guard)?;
    }
    switch::apply(set, &mut guard);
    let mode = guard.mode;
    match mode {
        Mode::Passing
            if guard.has_ready_shared_member()
                || guard.ready.1 != 0
                || !guard.already_reported.is_empty() => {}
        Mode::Passing => return None,
        _ if set.owner() == 0 => set.own(),
        _ if !set.is_owner() => {
            set_end::pass_through_set(&mut guard, Why::SeveralThreads);
        }
        _ => {}
    }
    if ring_policy::has_new_filter() {
        set_end::on_filter(&mut guard);
    }
    if guard.mode == Mode::Fresh {
        guard.waits = WAITS_BEFORE_RING.min(guard.waits + 1);
        let serves = early_members::pass_blocking(&mut guard) && !config::get().disabled;
        if !serves || guard.waits < WAITS_BEFORE_RING {
            // SAFETY: Lent: the caller guarantees these pointers.
            return unsafe { wait_passing(guard, buffer) }.map(Started::Completed);
        }
        epoll_ctl::start(set, &mut guard);
    } else if !guard.early_members.is_empty() {
        early_members::pass_blocking(&mut guard);
    }
    // A signal handler may have jumped out of the wait that it interrupted, or may itself wait.
    guard.clear_in_enter();
    if switch_position::is_released() && guard.mode == Mode::Serving {
        switch::release(&mut guard);
    }
    if guard.mode == Mode::Passing {
        // SAFETY: Lent: the caller guarantees these pointers.
        return unsafe { wait_passing(guard, buffer) }.map(Started::Completed);
    }
    counters::served(Call::EpollWait);
    Some(Started::Serving(guard))
}

/// Waits by the ring. Between the parts that catch panics, it owns nothing: the thread sleeps there, and may be ended.
/// Fails with `ECANCELED` if it has left its sleep because the program has cancelled the thread.
///
/// # Safety
///
/// Lent: the contract of [`wait`].
unsafe fn wait_serving(
    mut guard: SetGuard,
    buffer: &EventBuffer,
    (mut left_ns, deadline_ns): (Option<u64>, Option<u64>),
) -> Option<CallResult> {
    loop {
        let (ready, sleeps, has_work) = errno::catch_panic(|| Some(begin_round(guard, left_ns)))?;
        guard = ready;
        let mut outcome = EnterOutcome::Completed;
        if sleeps || has_work {
            // SAFETY: Lent: the caller guarantees these pointers.
            (guard, outcome) = unsafe { poll_cycle::enter(guard, sleeps, left_ns, buffer.mask) }?;
            if sleeps && outcome != EnterOutcome::Lost && guard.take_cancelled() {
                return Some(Err(libc::ECANCELED));
            }
        }
        if outcome != EnterOutcome::Lost && std::mem::take(&mut guard.recheck) {
            // SAFETY: Lent: no mask, as it does not sleep.
            (guard, _) = unsafe { poll_cycle::enter(guard, false, None, ptr::null()) }?;
            guard.recheck = false;
        }
        // SAFETY: Lent: the caller guarantees these pointers.
        let ended_round =
            errno::catch_panic(|| Some(unsafe { end_round(guard, buffer, outcome) }))?;
        guard = match ended_round {
            Ok(result) => return result,
            Err(guard) => guard,
        };
        if left_ns == Some(0) {
            return Some(Ok(0));
        }
        let now_ns = deadline_ns.map(|_| sys::now_ns());
        if let (Some(deadline_ns), Some(now_ns)) = (deadline_ns, now_ns) {
            left_ns = Some(deadline_ns.saturating_sub(now_ns));
        }
        match outcome {
            EnterOutcome::TimedOut => return Some(Ok(0)),
            EnterOutcome::Interrupted
                if left_ns != Some(0) && !ring_teardown::has_interrupted() =>
            {
                return Some(Err(libc::EINTR));
            }
            _ if left_ns == Some(0) => return Some(Ok(0)),
            _ => {}
        }
        if switch_position::is_released() {
            // SAFETY: Lent: the caller guarantees these pointers.
            return unsafe { wait_released(guard, buffer, deadline_ns) };
        }
    }
}

/// Continues a wait on the kernel's set after the operator released the process while the thread slept. `None`: the
/// whole wait passes through, as it has no timeout.
///
/// # Safety
///
/// Lent: the contract of [`wait`].
unsafe fn wait_released(
    guard: SetGuard,
    buffer: &EventBuffer,
    deadline_ns: Option<u64>,
) -> Option<CallResult> {
    let set = guard.fd;
    let buffered = errno::catch_panic(|| {
        let mut guard = guard;
        switch::release(&mut guard);
        // SAFETY: Lent: the caller guarantees these pointers.
        unsafe { wait_passing(guard, buffer) }
    });
    if buffered.is_some() || buffer.timeout_ns == Some(0) {
        return buffered.or(Some(Ok(0)));
    }
    let left_ns = deadline_ns?.saturating_sub(sys::now_ns());
    let before = errno::get();
    let ret = ring_teardown::retry_interrupted(Some(left_ns), |remaining_ns| {
        let remaining_ns = remaining_ns.unwrap_or(left_ns);
        // SAFETY: Lent: the caller guarantees these pointers.
        unsafe { sys::wait_on(set, (buffer.events, buffer.max), remaining_ns, buffer.mask) }
    });
    let result = usize::try_from(ret).map_err(|_| errno::get());
    errno::set(before);
    Some(result)
}

/// Ends a round. Returns the result of the call if there are events.
///
/// # Safety
///
/// Lent: the contract of [`wait`].
unsafe fn end_round(
    mut guard: SetGuard,
    buffer: &EventBuffer,
    outcome: EnterOutcome,
) -> Result<Option<CallResult>, SetGuard> {
    if outcome == EnterOutcome::Lost {
        set_end::pass_through_set(&mut guard, poll_cycle::LOST);
        // SAFETY: Lent: the caller guarantees these pointers.
        let result = unsafe { wait_passing(guard, buffer) };
        // As if a signal had been handled: the program calls again, and the kernel serves that call.
        return Ok(Some(result.unwrap_or(Err(libc::EINTR))));
    }
    // SAFETY: Lent: the caller guarantees these pointers.
    match unsafe { reports::collect(&mut guard, buffer) } {
        0 => Err(guard),
        filled => Ok(Some(Ok(filled))),
    }
}

/// Finishes the last round. Returns whether this round may sleep, and whether it has entries to submit.
fn begin_round(mut guard: SetGuard, left_ns: Option<u64>) -> (SetGuard, bool, bool) {
    tidy_up(&mut guard);
    let something = guard.has_ready()
        || guard.has_ready_shared_member()
        || guard.kernel_ready
        || guard
            .listeners
            .iter()
            .any(|listener| listener.ready_events != 0);
    let sleeps = !something && left_ns != Some(0);
    let has_work = guard.has_gathered()
        || (guard.ring.as_mut())
            .is_some_and(|context| context.ring.is_ready() || context.ring.unsubmitted() > 0);
    (guard, sleeps, has_work)
}

/// Finishes what the last round left, before the ring is entered.
fn tidy_up(guard: &mut SetGuard) {
    guard.round = guard.round.wrapping_add(1);
    if !guard.removed.is_empty() {
        removal::finish_removals(guard);
    }
    if !guard.starved.is_empty() {
        // A connection holds the shared receive buffers and does not read them.
        unread::copy_all_out(guard);
    }
    output::end_round(guard);
    if let Some(context) = &mut guard.ring {
        context.pool.round();
    }
}

/// Determines what sets of other threads hold of the shared members: this will not become more. Locks one set at a
/// time, as another thread may do the same in the opposite order.
#[cold]
fn query_other_threads(set: &'static Set, guard: SetGuard) -> Option<SetGuard> {
    let mut members = guard.shared_members.clone();
    drop(guard);
    for member in &mut members {
        let other_set = fd_table::entry(member.fd).and_then(Set::of);
        let other_guard = other_set
            .filter(|other| !other.is_owner())
            .and_then(Set::take_during_enter);
        member.held_elsewhere = other_guard.map_or(0, |guard| {
            let connection = guard
                .connection(member.fd)
                .map(|connection| &guard[connection]);
            let same = connection.filter(|one| one.generation == member.generation);
            same.map_or(0, Connection::held_events)
        });
    }
    let mut guard = set.take()?;
    let mut has_changed = false;
    for member in &mut guard.shared_members {
        let same = |one: &&SharedMember| one.fd == member.fd && one.data == member.data;
        let found = members.iter().find(same);
        member.held_elsewhere = found.map_or(0, |found| found.held_elsewhere);
        has_changed |= found.is_none();
    }
    match has_changed {
        true => query_other_threads(set, guard),
        false => Some(guard),
    }
}

impl SetGuard {
    /// Returns the events to report of what the library holds of a shared member.
    pub(crate) fn held_of(&self, shared_member: SharedMember) -> u32 {
        let owner_entry = || {
            let entry = fd_table::entry(shared_member.fd)?;
            let set = Set::of(entry).filter(|_| entry.kind() == Kind::HandedBack)?;
            // The state of another thread's connection is not read.
            set.is_owner().then_some(entry)
        };
        if shared_member.reported {
            return 0;
        }
        let held = owner_entry().map_or(0, |entry| {
            // SAFETY: Held: a connection of a set that this thread owns, and is not in the kernel with.
            let connection = unsafe { &*entry.connection() };
            match connection.generation == shared_member.generation {
                true => connection.held_events(),
                false => 0,
            }
        });
        (held | shared_member.held_elsewhere) & (shared_member.events | ERR)
    }

    /// Returns whether there is a shared member to report. Removes members whose descriptor is no longer a handed-back
    /// connection.
    pub(crate) fn has_ready_shared_member(&mut self) -> bool {
        if self.shared_members.is_empty() {
            return false;
        }
        self.shared_members.retain(|member| {
            fd_table::entry(member.fd).is_some_and(|entry| entry.kind() == Kind::HandedBack)
        });
        self.shared_members
            .iter()
            .any(|&shared_member| self.held_of(shared_member) != 0)
    }

    /// Returns whether there are events to report. Removes connections that are no longer ready from the list, and
    /// frees the buffers of those that the program has not read.
    pub(crate) fn has_ready(&mut self) -> bool {
        let last = self.ready.1;
        let mut any = false;
        if last == 0 {
            return false;
        }
        while let Some((entry, connection)) = self.next_ready() {
            let edge = self[connection].events & EDGE_TRIGGERED != 0;
            let kind = entry.kind();
            let stays = matches!(kind, Kind::Served | Kind::HandedBack)
                && self[connection].report() != 0
                && (!edge || self[connection].member == Member::Changed);
            if self[connection].bytes > 0 && self[connection].round.wrapping_add(1) != self.round {
                unread::copy_out(self, connection);
            }
            let polls = self.mode == Mode::Serving;
            if polls && self[connection].inbound.is_readable() && self[connection].polled == 0 {
                // Unread data must not hide an error, even if the data is not reported again.
                self.to_poll.push(connection.fd);
            }
            if stays {
                self.make_ready(connection);
                any = true;
            }
            if connection.fd as u32 + 1 == last {
                break;
            }
        }
        any
    }

    /// Returns whether there are entries to push.
    fn has_gathered(&self) -> bool {
        !self.queued.is_empty()
            || !self.to_arm.is_empty()
            || !self.to_poll.is_empty()
            || !self.cancels.is_empty()
            || (self.listeners.iter())
                .any(|listener| !listener.polled && listener.ready_events == 0)
            || self.must_poll_kernel()
    }
}

/// Waits on a set that passes through: reports buffered bytes of connections that were handed back, and the kernel's
/// events.
///
/// # Safety
///
/// Lent: the contract of [`wait`].
unsafe fn wait_passing(mut guard: SetGuard, buffer: &EventBuffer) -> Option<CallResult> {
    guard.round = guard.round.wrapping_add(1);
    let already_reported = !guard.already_reported.is_empty();
    if !(already_reported || guard.has_ready_shared_member() || guard.has_ready()) {
        return None;
    }
    guard.kernel_ready = true;
    // SAFETY: Lent: the caller guarantees these pointers.
    let mut filled = unsafe { reports::collect(&mut guard, buffer) };
    guard.kernel_ready = false;
    if filled == 0 {
        // One slot was reserved for the kernel's set, which had no event.
        // SAFETY: Lent: the contract of [`wait`], which this function has.
        filled = unsafe { reports::collect(&mut guard, buffer) };
    }
    if filled == 0 && buffer.timeout_ns == Some(0) {
        return Some(Ok(0));
    }
    // All outdated reports have been dropped.
    guard.already_reported.clear();
    (filled > 0).then_some(Ok(filled))
}

/// Returns a timeout of `epoll_wait` in ns.
pub(crate) fn timeout_ns(ms: i32) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// Returns the kernel's part of a signal set: its first eight bytes.
pub(crate) fn kernel_mask(mask: *const libc::sigset_t) -> *const u64 {
    if mask.is_null() {
        ptr::null()
    } else {
        mask.cast()
    }
}
