//! # Safety
//!
//! `epoll_wait`: runs one poll cycle of the ring, and returns its events. Pointers come from the program and are valid
//! for the call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use crate::config;
use crate::connection::Connection;
use crate::counters::{Call, Why};
use crate::draining;
use crate::early_members;
use crate::epoll_ctl;
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::errno::{self, CallResult};
use crate::events::{EDGE_TRIGGERED, ERR};
use crate::fd_table::{self, Entry, Kind};
use crate::member::Member;
use crate::output;
use crate::poll_cycle::{self, EnterOutcome};
use crate::receive;
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

/// Waits on a set. `None`: passes through to the kernel's set, with the timeout in `buffer`.
pub(crate) fn wait(number: &'static Entry, buffer: &mut EventBuffer<'_>) -> Option<CallResult> {
    let deadline_ns = match buffer.timeout_ns {
        Some(ns @ 1..) => Some(sys::now_ns().saturating_add(ns)),
        _ => None,
    };
    let mut left_ns = buffer.timeout_ns;
    loop {
        let first = errno::catch_panic(|| first_step(number, buffer, left_ns))?;
        let result = wait_serving(first, buffer, (left_ns, deadline_ns));
        if result != Some(Err(libc::ECANCELED)) {
            return result;
        }
        // A wait is a cancellation point. The thread may have disabled cancellation, and then goes on.
        sys::pthread_testcancel();
        left_ns = deadline_ns.map_or(left_ns, |deadline_ns| {
            Some(deadline_ns.saturating_sub(sys::now_ns()))
        });
    }
}

enum Started {
    Completed(CallResult),
    /// The ring serves the wait; the calling thread owns the set.
    Serving(SetGuard),
}

/// The next step of a wait. Panics are caught between two steps, and not while the thread is in the kernel, where it
/// sleeps and may be ended.
enum Step {
    /// The wait is over. `None`: it passes through.
    Over(Option<CallResult>),
    /// Enter the kernel with the entries that were pushed.
    Enter(SetGuard, Purpose),
    /// Wait on the kernel's set: the operator has released the process while the thread slept.
    Released(SetGuard),
}

/// The purpose of an enter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Sleep until there is an event.
    Sleep,
    /// Submit entries and reap completions.
    Work,
    /// Reap data that follows immediately, before anything is reported.
    Recheck,
}

/// Begins a wait, up to its first enter.
fn first_step(
    number: &'static Entry,
    buffer: &mut EventBuffer<'_>,
    left_ns: Option<u64>,
) -> Option<Step> {
    match begin(number, buffer)? {
        Started::Completed(result) => Some(Step::Over(Some(result))),
        Started::Serving(guard) => Some(next_round(guard, buffer, left_ns)),
    }
}

fn begin(number: &'static Entry, buffer: &mut EventBuffer<'_>) -> Option<Started> {
    crate::descriptor::close_deferred();
    draining::send_without_thread();
    let set = Set::of(number)?;
    if buffer.events.is_empty() {
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
    if ring_policy::are_rings_forbidden() {
        set_end::on_forbidden(&mut guard);
    }
    if guard.mode == Mode::Fresh {
        guard.waits = WAITS_BEFORE_RING.min(guard.waits + 1);
        let serves = early_members::pass_blocking(&mut guard) && !config::get().disabled;
        if !serves || guard.waits < WAITS_BEFORE_RING {
            return wait_passing(guard, buffer).map(Started::Completed);
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
        return wait_passing(guard, buffer).map(Started::Completed);
    }
    guard.count_served(Call::EpollWait);
    Some(Started::Serving(guard))
}

/// Waits by the ring. Fails with `ECANCELED` if it has left its sleep because the program has cancelled the thread.
fn wait_serving(
    mut step: Step,
    buffer: &mut EventBuffer<'_>,
    (mut left_ns, deadline_ns): (Option<u64>, Option<u64>),
) -> Option<CallResult> {
    loop {
        let (guard, purpose) = match step {
            Step::Over(result) => return result,
            Step::Released(guard) => {
                return errno::catch_panic(|| wait_released(guard, buffer, deadline_ns));
            }
            Step::Enter(guard, purpose) => (guard, purpose),
        };
        let sleeps = purpose == Purpose::Sleep;
        let (guard, entered) = poll_cycle::enter(guard, sleeps, left_ns, buffer);
        step = errno::catch_panic(|| {
            let (guard, outcome) = poll_cycle::finish_cycle(guard, entered);
            Some(after_enter(
                guard,
                (purpose, outcome),
                buffer,
                (&mut left_ns, deadline_ns),
            ))
        })?;
    }
}

/// Decides how a wait goes on after an enter.
fn after_enter(
    mut guard: SetGuard,
    (purpose, outcome): (Purpose, EnterOutcome),
    buffer: &mut EventBuffer<'_>,
    (left_ns, deadline_ns): (&mut Option<u64>, Option<u64>),
) -> Step {
    if outcome == EnterOutcome::Lost {
        set_end::pass_through_set(&mut guard, poll_cycle::LOST);
        let result = wait_passing(guard, buffer);
        // As if a signal had been handled: the program calls again, and the kernel serves that call.
        return Step::Over(result.or(Some(Err(libc::EINTR))));
    }
    if purpose == Purpose::Sleep && guard.take_cancelled() {
        return Step::Over(Some(Err(libc::ECANCELED)));
    }
    if std::mem::take(&mut guard.recheck) && purpose != Purpose::Recheck {
        guard.push_all(false);
        return Step::Enter(guard, Purpose::Recheck);
    }
    let filled = reports::collect(&mut guard, buffer);
    if filled > 0 {
        return Step::Over(Some(Ok(filled)));
    }
    if let Some(deadline_ns) = deadline_ns.filter(|_| *left_ns != Some(0)) {
        *left_ns = Some(deadline_ns.saturating_sub(sys::now_ns()));
    }
    let is_interrupted = outcome == EnterOutcome::Interrupted;
    if outcome == EnterOutcome::TimedOut || *left_ns == Some(0) {
        Step::Over(Some(Ok(0)))
    } else if is_interrupted && !ring_teardown::has_interrupted() {
        Step::Over(Some(Err(libc::EINTR)))
    } else if switch_position::is_released() {
        Step::Released(guard)
    } else {
        next_round(guard, buffer, *left_ns)
    }
}

/// Begins a round: pushes its entries, or reports events without an enter.
fn next_round(mut guard: SetGuard, buffer: &mut EventBuffer<'_>, left_ns: Option<u64>) -> Step {
    let (sleeps, has_work) = begin_round(&mut guard, left_ns);
    if !has_work {
        let filled = reports::collect(&mut guard, buffer);
        if filled > 0 || left_ns == Some(0) {
            return Step::Over(Some(Ok(filled)));
        }
    }
    guard.push_all(sleeps);
    Step::Enter(
        guard,
        if sleeps {
            Purpose::Sleep
        } else {
            Purpose::Work
        },
    )
}

/// Continues a wait on the kernel's set, with the remaining time, after the operator released the process while the
/// thread slept.
fn wait_released(
    mut guard: SetGuard,
    buffer: &mut EventBuffer<'_>,
    deadline_ns: Option<u64>,
) -> Option<CallResult> {
    switch::release(&mut guard);
    let buffered = wait_passing(guard, buffer);
    if let Some(deadline_ns) = deadline_ns {
        buffer.timeout_ns = Some(deadline_ns.saturating_sub(sys::now_ns()));
    }
    buffered
}

/// Finishes the last round. Returns whether this round may sleep, and whether it has to enter the kernel.
fn begin_round(guard: &mut SetGuard, left_ns: Option<u64>) -> (bool, bool) {
    tidy_up(guard);
    let something = guard.has_ready()
        || guard.has_ready_shared_member()
        || guard.kernel_ready
        || guard
            .listeners
            .iter()
            .any(|listener| listener.ready_events != 0);
    let sleeps = !something && left_ns != Some(0);
    let has_work = sleeps
        || guard.recheck
        || guard.has_gathered()
        || (guard.ring.as_mut())
            .is_some_and(|context| context.ring.is_ready() || context.ring.unsubmitted() > 0);
    (sleeps, has_work)
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
        (self.shared_members).retain(|member| fd_table::is(member.fd, Kind::HandedBack));
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
            receive::check_drained(self, connection);
            let one = &self[connection];
            let stays = one.report() != 0
                && (one.events & EDGE_TRIGGERED == 0 || one.member == Member::Changed)
                && entry.is_connection();
            let is_unread = one.bytes > 0 && one.round.wrapping_add(1) != self.round;
            if is_unread {
                unread::copy_out(self, connection);
            }
            let one = &self[connection];
            if one.inbound.is_readable() && one.polled == 0 && self.mode == Mode::Serving {
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
fn wait_passing(mut guard: SetGuard, buffer: &mut EventBuffer<'_>) -> Option<CallResult> {
    guard.round = guard.round.wrapping_add(1);
    let already_reported = !guard.already_reported.is_empty();
    if !(already_reported || guard.has_ready_shared_member() || guard.has_ready()) {
        return None;
    }
    guard.kernel_ready = true;
    let mut filled = reports::collect(&mut guard, buffer);
    guard.kernel_ready = false;
    if filled == 0 {
        // One slot was reserved for the kernel's set, which had no event.
        filled = reports::collect(&mut guard, buffer);
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
