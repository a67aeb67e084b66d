//! # Safety
//!
//! The driver of a ring: one thread, one kernel (real or simulated), one handle.
//!
//! One round: take submissions; submit to the kernel in small chunks, so that the device starts on the first while the
//! rest are prepared; copy completions out; handle them. Completions are never handled inside the reap.
//! `driver/mod.rs` names the levels above a round.
//!
//! Invariants: Lent (slots in flight belong to this driver until their final CQE), Once (a CQE counts only if its token
//! has the slot's present generation), Drained (`run` returns only when nothing is in flight, or leaks the operations).
#![allow(unsafe_code)]

mod completion;
mod counting;
mod drain;
mod expired;
#[cfg(feature = "net")]
mod local;
pub(crate) mod polled;
mod sequence;
mod sleep;
mod spin;

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::finish;
use super::fixed::Fixed;
use super::handle::DriverHandle;
use super::index_set::IndexSet;
use super::limits::{CHUNK_MAX, Limits};
use super::payload::PANICKED;
use super::queue::Queue;
use super::slot::{Slot, Stage};
use crate::op::REFUSALS_MAX;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ECANCELED;
use crate::sys::kernel::{EnterOutcome, Kernel};
use crate::sys::ring::{REAP_MAX, Ring};
use crate::sys::sqe::{ASYNC, Cqe, Sqe, opcode};
use counting::Clocks;
use sequence::Sequence;
use spin::Spin;

/// The token of the eventfd read that another thread's wake-up completes.
pub(super) const WAKE: u64 = u64::MAX;
/// The token of the timeout that makes a threadless driver be polled at its next deadline.
const TIMER: u64 = u64::MAX - 1;
/// The mark of a cancel's CQE; the rest of the token names the cancelled operation.
const CANCEL: u64 = 1 << 63;
/// The token of the cancel that a drain begins with; names no operation.
const CANCEL_ALL: u64 = CANCEL | u32::MAX as u64;
/// The token of the CQE that reports that the timer could not be moved; names no operation.
const TIMER_MOVED: u64 = CANCEL_ALL - 1;
/// The number of SQEs pushed before they are submitted, by operations in flight. It is small at a low load, so that the
/// device starts on the first while the rest are prepared, and larger if the device is busy anyway and the enter
/// dominates the cost. Callers on other threads submit one by one, and get their results sooner with small chunks.
const CHUNKS: [(u32, u32); 2] = [(64, 2), (u32::MAX, 8)];
/// The chunks for a thread that both submits and drives.
const CHUNKS_ALONE: [(u32, u32); 3] = [(16, 2), (64, 8), (u32::MAX, CHUNK_MAX)];
/// The load from which on operations are queued whether or not others are known to follow.
const CHUNK_LOAD: u32 = 3;
/// The number of operations in flight from which on kernel workers run large reads. Fewer do not keep several
/// processors busy.
const WORKERS_FROM: u32 = 8;
/// The pause after an enter call that was refused more than [`REFUSALS_MAX`] times in a row.
const REFUSED_PAUSE_NS: u64 = 1_000_000;
/// The maximum sleep of a driver during a drain, ns. It is only a safeguard against a missed stop.
pub(super) const DRAIN_POLL_NS: u64 = 50_000_000;

/// The tunable parameters of a driver; the defaults are measured (docs/internals/design.md).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// The number of SQEs pushed before they are submitted, while more are waiting; `None` depends on the load.
    pub(crate) chunk: Option<u32>,
    /// True if the submitting thread is the one that drives.
    pub(crate) alone: bool,
    /// The time that a submission waits for tasks whose operations have just completed, ns.
    pub(crate) batch_delay_ns: u64,
    /// The time to busy-poll for new work before sleeping, ns, if busy-polling has paid recently.
    pub(crate) busy_poll_ns: u64,
    /// The time that a stop waits for operations in flight.
    pub(crate) drain_timeout: Duration,
}

/// The work that is left in a driver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingWork {
    /// True if a poll would find completions, submissions or undelivered results.
    pub(super) now: bool,
    /// True if operations or timers are pending, so that there will be work.
    pub(super) later: bool,
}

/// The driver's own state; all of it is touched by one thread at a time.
pub(crate) struct Driver<K> {
    handle: Arc<DriverHandle>,
    kernel: K,
    limits: Limits,
    tuning: Tuning,
    queue: Queue,
    /// To be pushed before anything else: unfinished transfers, and SQEs that did not fit into the queue.
    again: VecDeque<NonNull<Slot>>,
    /// SQEs of a core's sockets that did not fit into the queue, in order. Never dropped (trap 7).
    waiting: VecDeque<Sqe>,
    /// Tokens whose cancel has not been pushed yet. Never dropped (trap 7).
    cancels: VecDeque<u64>,
    cqes: Vec<Cqe>,
    done: finish::Done,
    /// The slots in flight, their number, and their bytes.
    flying: IndexSet,
    in_flight: u32,
    in_flight_bytes: u64,
    /// The number of operations in flight before the last completion batches.
    load: u32,
    wake_armed: bool,
    /// The time of the timer in the kernel; 0 if there is none. There is never a second one.
    timer_ns: u64,
    /// True if entries that do not fill a chunk are left for the wait that follows.
    keeps_rest: bool,
    /// True from a sleep that was skipped until the next one.
    has_skipped: bool,
    /// Tasks whose operations completed since the last submission and that have not submitted again.
    due: u32,
    refusals: u32,
    sequence: Sequence,
    spin: Spin,
    fixed: Fixed,
    draining_until_ns: Option<u64>,
    /// The deadline of the drain, if it does not follow from the driver's timeout.
    drain_by_ns: Option<u64>,
    /// True if one cancel for all operations in flight still has to be pushed.
    cancel_all: bool,
    /// True if a round has panicked: its state of the kernel is then unreliable.
    panicked: bool,
    clocks: Clocks,
}

// SAFETY: Held: the slots that it points to belong to the handle; the thread that holds the driver may access them.
unsafe impl<K: Send> Send for Driver<K> {}

impl Driver<Ring> {
    /// Binds the ring to the calling thread, which drives it to the end.
    pub(super) fn bind_to_thread(&mut self) {
        self.kernel.bind_to_thread();
    }
}

impl<K: Kernel> Driver<K> {
    pub(crate) fn new(
        handle: Arc<DriverHandle>,
        kernel: K,
        limits: Limits,
        tuning: Tuning,
    ) -> Driver<K> {
        Driver {
            handle,
            kernel,
            limits,
            tuning,
            queue: Queue::default(),
            again: VecDeque::new(),
            waiting: VecDeque::new(),
            cancels: VecDeque::new(),
            cqes: Vec::with_capacity(REAP_MAX),
            done: finish::Done::default(),
            flying: IndexSet::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            load: 0,
            wake_armed: false,
            timer_ns: 0,
            keeps_rest: false,
            has_skipped: false,
            due: 0,
            refusals: 0,
            sequence: Sequence::default(),
            spin: Spin::default(),
            fixed: Fixed::default(),
            draining_until_ns: None,
            drain_by_ns: None,
            cancel_all: false,
            panicked: false,
            clocks: Clocks::default(),
        }
    }

    #[cfg(any(test, feature = "net"))]
    pub(super) fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Drives until the driver is stopped and drained. Returns the number of operations that had to be given up; if it
    /// is not 0, the caller must leak the handle and this driver.
    pub(crate) fn drive_to_end(&mut self) -> u32 {
        loop {
            if let Some(left) = self.drive() {
                return left;
            }
        }
    }

    /// Polls once, and sleeps if there was no work. Returns `Some` if the driver is stopped and drained except for this
    /// number of operations.
    #[must_use = "`run` drives until the end"]
    pub(crate) fn drive(&mut self) -> Option<u32> {
        let worked = self.poll();
        let ended = self.ended();
        if ended.is_none() && !worked {
            self.sleep(true);
        }
        let handle = Arc::clone(&self.handle);
        self.done.deliver(&handle);
        ended
    }

    fn ended(&mut self) -> Option<u32> {
        // Not `stopping`: a stop that arrived during the poll has not closed the inbox yet.
        let until = self.draining_until_ns?;
        if !self.drained() && self.kernel.now_ns() < until {
            return None;
        }
        self.close_cancels();
        Some(self.in_flight)
    }

    /// Does one round, and delivers the completions. Never sleeps. Returns `false` if there was no work.
    pub(crate) fn poll(&mut self) -> bool {
        let worked = self.round();
        let handle = Arc::clone(&self.handle);
        self.done.deliver(&handle);
        worked
    }

    /// Takes submissions, submits to the kernel, and handles completions and deadlines. Delivers nothing. Returns
    /// `false` if there was no work.
    pub(super) fn round(&mut self) -> bool {
        let taken = self.take();
        let reaped = self.reap();
        if reaped {
            // Operations that waited for a slot go to the device before any task is woken.
            self.issue();
        }
        let expired = self.expire();
        self.due = (self.due + self.done.len()).min(self.in_flight + self.done.len());
        self.publish();
        taken | reaped | expired
    }

    /// Takes submissions and cancels, and submits operations. Returns whether there were any.
    #[inline]
    fn take(&mut self) -> bool {
        if self.handle.stopping() && self.draining_until_ns.is_none() {
            self.begin_drain();
        }
        self.follow_arenas();
        let taken = self.take_in();
        self.issue() | taken
    }

    /// Sets whether entries that do not fill a chunk are left for the wait that follows.
    pub(super) fn keep_rest(&mut self, keeps: bool) {
        self.keeps_rest = keeps;
    }

    /// Called when the owner polls its future again in place of a sleep. From the second time in a row, submits the
    /// entries that were left for the wait: a future that never waits would keep them from the kernel. One that its
    /// last completion woke sleeps next, and one enter then submits and waits.
    pub(super) fn skip_sleep(&mut self) {
        if std::mem::replace(&mut self.has_skipped, true) && self.kernel.unsubmitted() > 0 {
            self.submit();
        }
    }

    /// Returns whether something has to be submitted that no later completion would submit.
    pub(super) fn must_submit(&self) -> bool {
        let refused = self.refusals > 0 && self.kernel.unsubmitted() > 0;
        !self.keeps_rest && (refused || self.has_unpushed() || !self.handle.inbox.is_empty())
    }

    /// Returns the number of SQEs to push before they are submitted, if a flush has to be scheduled for those that
    /// wait. At a low load, that pays only for tasks that were woken together.
    #[inline]
    pub(super) fn chunk_of_woken(&self) -> u32 {
        let is_low = self.tuning.chunk.is_none() && self.load < CHUNK_LOAD;
        match is_low {
            true => self.chunk().min(self.due).max(1),
            false => self.chunk(),
        }
    }

    /// Notes that the woken tasks have run.
    pub(super) fn forget_woken(&mut self) {
        self.due = 0;
    }

    /// Returns whether another round would find completions or submissions.
    pub(super) fn has_more(&mut self) -> bool {
        self.kernel.ready()
            || self.has_unpushed()
            || !self.handle.inbox.is_empty()
            || !self.handle.cancels.is_empty()
    }

    /// Returns whether there is something to deliver.
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the work that is left, for a thread that does not drive.
    pub(super) fn pending(&mut self) -> PendingWork {
        let is_called = !self.handle.inbox.is_empty();
        PendingWork {
            now: self.has_more() || self.has_done(),
            later: self.in_flight > 0 || self.next_deadline_ns().is_some() || is_called,
        }
    }

    /// Returns the earliest deadline of an operation, ns.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.queue.next_deadline_ns()
    }

    /// Registers the engine's arenas, if there are new ones.
    pub(in crate::driver) fn follow_arenas(&mut self) {
        self.fixed
            .follow(self.handle.arenas.get(), &mut self.kernel);
    }

    /// Returns the number of operations in the kernel.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns whether the kernel may still access memory of `operations` or of the driver.
    pub(super) fn has_lent(&self, operations: u32) -> bool {
        operations > 0 || self.wake_armed || self.panicked
    }

    /// Exchanges the undelivered completions with an empty list.
    pub(super) fn swap_done(&mut self, done: &mut finish::Done) {
        std::mem::swap(&mut self.done, done);
    }

    /// Takes the submitted operations.
    #[inline]
    fn take_in(&mut self) -> bool {
        let mut taken = false;
        let handle = Arc::clone(&self.handle);
        for chain in handle.inbox.drain() {
            taken = true;
            self.due = self.due.saturating_sub(1);
            self.queue.accept(chain);
        }
        for link in handle.cancels.drain() {
            taken = true;
            self.cancel_abandoned(Slot::of_cancel(link));
        }
        taken
    }

    fn cancel_abandoned(&mut self, slot: NonNull<Slot>) {
        // SAFETY: Lent: an abandoned operation on the cancel list is not freed before `unqueue`.
        let slot = unsafe { slot.as_ref() };
        if self.queue.cancel_abandoned(slot, &mut self.done) {
            self.cancels.push_back(slot.token());
        }
    }

    /// Submits operations within the limits. Returns whether there were any.
    fn issue(&mut self) -> bool {
        self.clocks.begun_ns = 0;
        self.push_cancels();
        self.push_waiting();
        let mut issued = false;
        while let Some(slot) = self.next_to_issue() {
            issued = true;
            if !self.issue_one(slot) || self.kernel.unsubmitted() >= self.chunk() && !self.submit()
            {
                break;
            }
        }
        if self.kernel.unsubmitted() > 0 && !self.keeps_rest {
            self.submit();
        }
        issued
    }

    /// Returns the number of SQEs to push before they are submitted.
    #[inline]
    pub(super) fn chunk(&self) -> u32 {
        let (chunks, load): (&[(u32, u32)], _) = if self.tuning.alone {
            (&CHUNKS_ALONE, self.load)
        } else {
            (&CHUNKS, self.in_flight)
        };
        let fits = |&&(below, _): &&(u32, u32)| load < below;
        let fitting = chunks.iter().find(fits);
        let fitting = match fitting {
            Some(&(_, chunk)) if !self.sequence.goes_on() => chunk,
            // The block layer merges operations that continue each other if they come in one enter. A half, so that the
            // device has the other half while this one is prepared.
            Some(&(_, chunk)) => (load / 2).clamp(chunk, CHUNK_MAX),
            None => CHUNK_MAX,
        };
        // The requests of a whole file complete while they are submitted, so the number in flight does not show them.
        let whole_reads = self.handle.whole_reads().min(CHUNK_MAX);
        self.tuning.chunk.unwrap_or(fitting).max(whole_reads)
    }

    fn next_to_issue(&mut self) -> Option<NonNull<Slot>> {
        if let Some(slot) = self.again.pop_front() {
            return Some(slot);
        }
        let next = self.queue.pending.peek()?;
        // SAFETY: Lent: waiting slots are this driver's.
        let bytes = u64::from(unsafe { next.as_ref().driver() }.bytes);
        let space = (self.limits).admit(self.in_flight, self.in_flight_bytes, bytes);
        if space {
            self.queue.pending.pop()
        } else {
            None
        }
    }

    /// Pushes one operation. Returns `false` if the kernel requires completions to be reaped first.
    fn issue_one(&mut self, slot: NonNull<Slot>) -> bool {
        // SAFETY: Lent: waiting or unfinished slots are this driver's.
        let slot_ref = unsafe { slot.as_ref() };
        // SAFETY: Lent: waiting or unfinished slots are this driver's.
        let side = unsafe { slot_ref.driver() };
        let fresh = side.stage == Stage::Waiting;
        if fresh {
            if slot_ref.lifecycle.is_abandoned() {
                self.queue.finish(slot_ref, -ECANCELED, &mut self.done);
                return true;
            }
            if self.draining_until_ns.is_some() {
                let refusal = -self.handle.refusal();
                self.queue.finish(slot_ref, refusal, &mut self.done);
                return true;
            }
        } else if side.timed_out || slot_ref.lifecycle.is_abandoned() {
            // Between two parts of a transfer the operation is not in the kernel: a cancel would not find it, and the
            // rest of the transfer must not be submitted after it.
            self.complete_in_flight(slot_ref, -ECANCELED);
            return true;
        }
        if fresh {
            side.stage = Stage::InFlight;
            self.in_flight += 1;
            self.flying.insert(slot_ref.index());
            self.in_flight_bytes += u64::from(side.bytes);
            self.handle.counters.submitted().add(1);
            self.note_begun(side);
        }
        // SAFETY: Lent and Open: the op, in its slot, owns what its SQE points to; it leaves the slot
        // only after the final CQE.
        let Some(mut sqe) = (unsafe { slot_ref.sqe() }) else {
            self.conclude(slot_ref, PANICKED, true);
            return true;
        };
        if sqe.opcode == opcode::READ && self.in_flight < WORKERS_FROM {
            sqe.flags &= !ASYNC;
        }
        let fixed = self.fixed.apply(&mut sqe);
        self.handle.counters.fixed().add(u64::from(fresh && fixed));
        self.sequence.note(&sqe);
        if !self.kernel.push(sqe) {
            // Counted as in flight, so that its bytes stay reserved.
            self.again.push_front(slot);
            return self.submit();
        }
        true
    }

    fn push_cancels(&mut self) {
        if self.cancel_all && self.kernel.push(Sqe::cancel_all(CANCEL_ALL)) {
            self.handle.counters.cancels().add(1);
            self.cancel_all = false;
        }
        while let Some(&token) = self.cancels.front() {
            if !self.kernel.push(Sqe::cancel(token, token | CANCEL)) {
                self.submit();
                return;
            }
            self.handle.counters.cancels().add(1);
            self.cancels.pop_front();
        }
    }

    /// Pushes the waiting SQEs. Returns `false` if the queue is full.
    fn push_waiting(&mut self) -> bool {
        while let Some(&sqe) = self.waiting.front() {
            if !self.kernel.push(sqe) {
                return false;
            }
            self.waiting.pop_front();
        }
        true
    }

    /// Enters without waiting. Returns `false` if the kernel requires completions to be reaped first.
    fn submit(&mut self) -> bool {
        self.clocks.begun_ns = 0;
        let result = self.kernel.submit();
        self.judge(result)
    }

    /// Handles the result of an enter. Returns `false` if the kernel requires completions to be reaped first.
    fn judge(&mut self, result: io::Result<()>) -> bool {
        match EnterOutcome::of(result) {
            EnterOutcome::Done => {
                self.refusals = 0;
                true
            }
            // The caller's loop handles both.
            EnterOutcome::Interrupted => true,
            EnterOutcome::Refused => {
                self.refusals += 1;
                if self.refusals > u32::from(REFUSALS_MAX) {
                    self.kernel.pause(REFUSED_PAUSE_NS);
                }
                false
            }
            EnterOutcome::Failed { errno } => {
                self.fail(EngineError::RingFailed { errno });
                false
            }
        }
    }

    /// Copies CQEs out, then handles them. Returns whether there were any.
    fn reap(&mut self) -> bool {
        if self.kernel.ready() {
            self.kernel.reap(&mut self.cqes);
            if self.cqes.is_empty() {
                // Task work is due, or CQEs overflowed: both need an enter.
                self.submit();
                self.kernel.reap(&mut self.cqes);
            }
        }
        if self.cqes.is_empty() {
            return false;
        }
        self.note_reaped();
        let mut cqes = std::mem::take(&mut self.cqes);
        for cqe in cqes.drain(..) {
            self.react(cqe);
        }
        self.cqes = cqes;
        true
    }

    /// Notes that completions have been copied out and none of them is handled.
    #[inline]
    fn note_reaped(&mut self) {
        // A device may complete everything immediately: the number left then does not show the load.
        self.load = self.in_flight.max(self.load - self.load / 8);
        self.clocks.completed_ns = 0;
    }

    fn react(&mut self, cqe: Cqe) {
        if cqe.user_data == WAKE {
            self.wake_armed = false;
            return;
        }
        if cqe.user_data == TIMER {
            self.timer_ns = 0;
            return;
        }
        let handle = Arc::clone(&self.handle);
        let token = cqe.user_data & !CANCEL;
        let slot = handle.table.named(token);
        if cqe.user_data & CANCEL != 0 {
            return match slot {
                Some(slot) if cqe.res < 0 => self.give_up_waiting(slot),
                _ => {}
            };
        }
        let Some(slot) = slot else {
            handle.counters.stale().add(1);
            return;
        };
        if !cqe.more() {
            let res = self.unless_refused(slot, cqe.res);
            self.complete_in_flight(slot, res);
        }
    }
}
