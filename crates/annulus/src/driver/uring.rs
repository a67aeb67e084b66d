//! # Safety
//!
//! The driver of a ring: one thread, one kernel (real or simulated), one handle.
//!
//! One poll: take what was submitted; submit in small chunks, so that the device starts on the first
//! while the rest are prepared; copy completions out; act upon them; wake who waits; sleep only when
//! nothing is left to do. Completions are never acted upon inside the reap.
//!
//! Invariants: Lent (slots in flight are this driver's until their final CQE), Once (a CQE counts
//! only if its token names the slot's present generation), Drained (`run` returns only when nothing
//! is in flight, or leaks what is).
#![allow(unsafe_code)]

mod completion;
mod counting;
mod drain;
mod expired;
pub(crate) mod polled;
mod spin;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::deadlines::Deadlines;
use super::fixed::Fixed;
use super::index_set::IndexSet;
use super::pending::Pending;
use super::slot::{PANICKED, Slot, Stage};
use super::{DriverHandle, Limits, finish};
use crate::sync::{Mutation, broken};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EAGAIN, EBADR, EBUSY, ECANCELED, EINTR, ENOMEM, ETIME, ETIMEDOUT};
use crate::sys::kernel::Kernel;
use crate::sys::ring::{REAP_MAX, Ring};
use crate::sys::sqe::{Cqe, Sqe, opcode};
use counting::Clocks;
use spin::Spin;

/// Token of the read that another thread's wake-up completes.
pub(super) const WAKE: u64 = u64::MAX;
/// Token of the timeout that has a threadless driver polled at its next deadline.
const TIMER: u64 = u64::MAX - 1;
/// Marks the CQE of a cancel; the rest of the token names the operation it was for.
const CANCEL: u64 = 1 << 63;
/// The CQE of the cancel that a drain begins with; names no operation.
const CANCEL_ALL: u64 = CANCEL | u32::MAX as u64;
/// The CQE that says that the timer could not be moved; names no operation.
const TIMER_MOVED: u64 = CANCEL_ALL - 1;
/// SQEs pushed before they are submitted, by operations in flight: few, so that the device starts on
/// the first while the rest are prepared, and more where there are enough to keep it busy and the enter
/// is what costs. Callers on other threads ask one by one, and are answered sooner in small chunks.
const CHUNKS: [(u32, u32); 2] = [(64, 2), (u32::MAX, 8)];
/// The same where the thread that asks is the one that drives.
const CHUNKS_ALONE: [(u32, u32); 3] = [(16, 2), (64, 8), (u32::MAX, CHUNK_MAX)];
const CHUNK_MAX: u32 = 32;
/// Enter calls refused in a row (EAGAIN, EBUSY: the kernel is short of memory) before the driver
/// pauses instead of trying again immediately.
const REFUSALS_MAX: u32 = 64;
/// That pause.
const REFUSED_PAUSE_NS: u64 = 1_000_000;
/// What a driver with nothing to do sleeps at the most while a stop may be missed; a guard, not a
/// rhythm: nothing relies on it.
const DRAIN_POLL_NS: u64 = 50_000_000;

/// How a driver behaves; the defaults are measured (docs/internals/design.md).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// SQEs pushed before they are submitted, while more are waiting; `None`: by the load.
    pub(crate) chunk: Option<u32>,
    /// The thread that submits is the one that drives.
    pub(crate) alone: bool,
    /// How long to busy-poll for new work before sleeping, ns, if busy-polling has paid recently.
    pub(crate) busy_poll_ns: u64,
    /// How long a stop waits for what is in flight.
    pub(crate) drain_timeout: Duration,
}

/// The driver's own state; all of it is touched by one thread at a time.
pub(crate) struct Driver<K> {
    handle: Arc<DriverHandle>,
    kernel: K,
    limits: Limits,
    tuning: Tuning,
    pending: Pending,
    /// To be pushed before anything else: unfinished transfers, and what met a full queue.
    again: VecDeque<NonNull<Slot>>,
    /// Tokens whose cancel has not been pushed yet. Never dropped (trap 7).
    cancels: VecDeque<u64>,
    deadlines: Deadlines,
    /// Tokens of operations in flight whose timeout has passed and whose cancel is under way.
    expired: HashSet<u64>,
    cqes: Vec<Cqe>,
    done: finish::Done,
    /// The slots in flight; their number; their bytes.
    flying: IndexSet,
    in_flight: u32,
    in_flight_bytes: u64,
    /// Operations in flight before the last completion batches.
    load: u32,
    wake_armed: bool,
    /// When the timer goes off that is with the kernel; 0 is none. There is never a second one.
    timer_ns: u64,
    /// What is too little for a chunk is left for the wait that follows.
    keeps_rest: bool,
    /// Callers who were answered since the last submission and have not asked again.
    due: u32,
    refusals: u32,
    spin: Spin,
    fixed: Fixed,
    draining_until_ns: Option<u64>,
    /// When the drain is to be over, if not after its own timeout.
    drain_by_ns: Option<u64>,
    /// One cancel for everything in flight is still to be pushed.
    cancel_all: bool,
    /// A round of it has panicked: what it says of the kernel is not to be relied on.
    panicked: bool,
    clocks: Clocks,
}

// SAFETY: Held: the slots it points to belong to the handle; the thread that holds the driver may touch them.
unsafe impl<K: Send> Send for Driver<K> {}

impl Driver<Ring> {
    /// The calling thread is the one that drives, to the end.
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
            pending: Pending::default(),
            again: VecDeque::new(),
            cancels: VecDeque::new(),
            deadlines: Deadlines::default(),
            expired: HashSet::new(),
            cqes: Vec::with_capacity(REAP_MAX),
            done: finish::Done::default(),
            flying: IndexSet::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            load: 0,
            wake_armed: false,
            timer_ns: 0,
            keeps_rest: false,
            due: 0,
            refusals: 0,
            spin: Spin::default(),
            fixed: Fixed::default(),
            draining_until_ns: None,
            drain_by_ns: None,
            cancel_all: false,
            panicked: false,
            clocks: Clocks::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Runs until the driver is stopped and drained. Returns the number of operations that had to be
    /// given up; then the caller must leak the handle and this driver.
    pub(crate) fn run(&mut self) -> u32 {
        loop {
            if let Some(left) = self.step() {
                return left;
            }
        }
    }

    /// One poll, and a sleep if it found nothing to do. `Some`: the driver is stopped, and all is
    /// drained except for this many operations.
    pub(crate) fn step(&mut self) -> Option<u32> {
        let worked = self.poll();
        let ended = self.ended();
        if ended.is_none() && !worked {
            self.sleep();
        }
        let handle = Arc::clone(&self.handle);
        self.done.deliver(&handle);
        ended
    }

    /// As `step`, but for those whom the answers go to: `swap_done` has them.
    pub(super) fn advance(&mut self) -> Option<u32> {
        let worked = self.work();
        let ended = self.ended();
        if ended.is_none() && !worked && self.done.is_empty() {
            self.sleep();
        }
        ended
    }

    fn ended(&mut self) -> Option<u32> {
        // Not `stopping`: a stop that came during the poll has not closed the inbox yet.
        let until = self.draining_until_ns?;
        if !self.drained() && self.kernel.now_ns() < until {
            return None;
        }
        self.close_cancels();
        Some(self.in_flight)
    }

    /// One round of everything that can be done without sleeping. False: there was nothing.
    pub(crate) fn poll(&mut self) -> bool {
        let worked = self.work();
        let handle = Arc::clone(&self.handle);
        self.done.deliver(&handle);
        worked
    }

    /// The same, but for delivering the answers.
    pub(super) fn work(&mut self) -> bool {
        if self.handle.stopping() && self.draining_until_ns.is_none() {
            self.begin_drain();
        }
        self.follow_arenas();
        let taken = self.take_in();
        let issued = self.issue();
        let reaped = self.reap();
        if reaped {
            // Operations that waited for a slot go to the device before any task is woken.
            self.issue();
        }
        let expired = self.expire();
        self.due = (self.due + self.done.len()).min(self.in_flight + self.done.len());
        self.publish();
        taken | issued | reaped | expired
    }

    /// Whether to leave what is too little for a chunk to the wait that follows.
    pub(super) fn keep_rest(&mut self, keeps: bool) {
        self.keeps_rest = keeps;
    }

    /// Whether something is left that is to be submitted, and that no completion would have submitted.
    pub(super) fn owes(&self) -> bool {
        let refused = self.refusals > 0 && self.kernel.unsubmitted() > 0;
        !self.keeps_rest && (refused || self.is_stuck() || !self.handle.inbox.is_empty())
    }

    /// Registers the engine's arenas, if there are new ones.
    pub(in crate::driver) fn follow_arenas(&mut self) {
        self.fixed
            .follow(self.handle.arenas.get(), &mut self.kernel);
    }

    /// Operations with the kernel.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether the kernel may still touch memory, of `left` operations or the driver's own.
    pub(super) fn has_lent(&self, operations: u32) -> bool {
        operations > 0 || self.wake_armed || self.panicked
    }

    /// Exchanges what is to be delivered for an empty list.
    pub(super) fn swap_done(&mut self, done: &mut finish::Done) {
        std::mem::swap(&mut self.done, done);
    }

    /// Takes the submitted operations.
    fn take_in(&mut self) -> bool {
        let mut taken = false;
        let handle = Arc::clone(&self.handle);
        for chain in handle.inbox.drain() {
            taken = true;
            self.due = self.due.saturating_sub(1);
            self.accept(chain);
        }
        for link in handle.cancels.drain() {
            taken = true;
            self.cancel_abandoned(Slot::of_cancel(link));
        }
        taken
    }

    fn accept(&mut self, chain: NonNull<Slot>) {
        // SAFETY: Lent: submitted, so its driver side is ours.
        let side = unsafe { chain.as_ref().driver() };
        if side.deadline_ns != 0 {
            // Only single operations carry deadlines; a batch has one sleeper for all.
            // SAFETY: Lent: submitted, so its driver side is ours.
            let slot = unsafe { chain.as_ref() };
            self.deadlines.insert(side.deadline_ns, slot.token());
            // SAFETY: Lent: submitted, so its driver side is ours.
            if unsafe { slot.info() }.opcode == opcode::SLEEP {
                side.stage = Stage::Sleeping;
                return;
            }
        }
        self.pending.push(chain);
    }

    /// A future was dropped. Its operation is the driver's alone from here on.
    fn cancel_abandoned(&mut self, slot: NonNull<Slot>) {
        // SAFETY: Lent: an abandoned operation on the cancel list is not freed before `unqueue`.
        let slot = unsafe { slot.as_ref() };
        if slot.lifecycle.unqueue() {
            // SAFETY: Once: done, abandoned, and off the list: nobody else refers to it.
            unsafe { self.done.discard_later(slot) };
            return;
        }
        // SAFETY: Lent: not done, so its driver side is ours.
        match unsafe { slot.driver() }.stage {
            Stage::Waiting => {} // Disposed of when it reaches the head of its chain, without being submitted.
            Stage::Sleeping => self.finish(slot, -ECANCELED),
            Stage::InFlight => self.cancels.push_back(slot.token()),
            Stage::Finished | Stage::Expired => {}
        }
    }

    /// Submits what may be submitted. True: something was.
    fn issue(&mut self) -> bool {
        self.clocks.begun_ns = 0;
        self.push_cancels();
        let mut issued = false;
        while let Some(slot) = self.next_to_issue() {
            issued = true;
            if !self.issue_one(slot) || self.kernel.unsubmitted() >= self.chunk() && !self.submit()
            {
                break;
            }
        }
        if self.kernel.unsubmitted() > 0 && !self.keeps_rest && !self.wait_for_batch() {
            self.submit();
        }
        issued
    }

    /// SQEs to push before they are submitted.
    pub(super) fn chunk(&self) -> u32 {
        let (chunks, load): (&[(u32, u32)], _) = if self.tuning.alone {
            (&CHUNKS_ALONE, self.load)
        } else {
            (&CHUNKS, self.in_flight)
        };
        let fits = |&&(below, _): &&(u32, u32)| load < below;
        let fitting = chunks.iter().find(fits);
        let fitting = fitting.map_or(CHUNK_MAX, |&(_, chunk)| chunk);
        self.tuning.chunk.unwrap_or(fitting)
    }

    fn next_to_issue(&mut self) -> Option<NonNull<Slot>> {
        if let Some(slot) = self.again.pop_front() {
            return Some(slot);
        }
        let next = self.pending.peek()?;
        // SAFETY: Lent: waiting slots are this driver's.
        let bytes = u64::from(unsafe { next.as_ref().driver() }.bytes);
        let space = self.in_flight < self.limits.in_flight
            && (self.in_flight == 0 || self.in_flight_bytes + bytes <= self.limits.in_flight_bytes);
        if space { self.pending.pop() } else { None }
    }

    /// False: the kernel wants its completions reaped before it takes more.
    fn issue_one(&mut self, slot: NonNull<Slot>) -> bool {
        // SAFETY: Lent: waiting or unfinished slots are this driver's.
        let slot_ref = unsafe { slot.as_ref() };
        // SAFETY: Lent: waiting or unfinished slots are this driver's.
        let side = unsafe { slot_ref.driver() };
        let fresh = side.stage == Stage::Waiting;
        if fresh {
            if slot_ref.lifecycle.is_abandoned() {
                self.finish(slot_ref, -ECANCELED);
                return true;
            }
            if self.draining_until_ns.is_some() {
                self.finish(slot_ref, -self.handle.refusal());
                return true;
            }
        } else if side.timed_out || slot_ref.lifecycle.is_abandoned() {
            // Between two parts of a transfer nothing is with the kernel: a cancel finds nothing there,
            // and what is left of the transfer must not be submitted behind it.
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
        let fixed = self.fixed.apply(&mut sqe);
        self.handle.counters.fixed().add(u64::from(fresh && fixed));
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

    /// Enters without waiting. False: the kernel wants its completions reaped first.
    fn submit(&mut self) -> bool {
        self.clocks.begun_ns = 0;
        let result = self.kernel.submit();
        self.judge(result)
    }

    /// What an enter's answer means. It never touches an operation: SQEs that were not taken are
    /// still in the queue, and those that were have their CQEs coming (traps 1, 5, 6).
    fn judge(&mut self, result: io::Result<()>) -> bool {
        let Err(error) = result else {
            self.refusals = 0;
            return true;
        };
        match error.raw_os_error() {
            // A signal, or the time is up: both are what the caller's loop is for.
            Some(EINTR | ETIME) => true,
            // Short of memory, or an overflowed completion queue: reap, then try again.
            Some(EAGAIN | EBUSY | ENOMEM) => {
                self.refusals += 1;
                if self.refusals > REFUSALS_MAX {
                    self.kernel.pause(REFUSED_PAUSE_NS);
                }
                false
            }
            // EBADR: the kernel dropped a CQE, and it can't be known whose. EBADFD, ENXIO and what else
            // there may be: the ring is gone.
            errno => {
                let errno = errno.unwrap_or(EBADR);
                self.fail(EngineError::RingFailed { errno });
                false
            }
        }
    }

    /// Copies CQEs out, then acts upon them. True: there were some.
    fn reap(&mut self) -> bool {
        if self.kernel.ready() {
            self.kernel.reap(&mut self.cqes);
            if self.cqes.is_empty() {
                // Task work is due, or CQEs overflowed: both want an enter.
                self.submit();
                self.kernel.reap(&mut self.cqes);
            }
        }
        if self.cqes.is_empty() {
            return false;
        }
        // A device may answer everything immediately: what is left then says nothing of the load.
        self.load = self.in_flight.max(self.load - self.load / 8);
        self.clocks.completed_ns = 0;
        let mut cqes = std::mem::take(&mut self.cqes);
        for cqe in cqes.drain(..) {
            self.react(cqe);
        }
        self.cqes = cqes;
        true
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
        // A cancel's CQE often comes after its operation's, when the slot may be somebody else's: only
        // the driver's own list says whether the operation is still in flight.
        let is_cancel = cqe.user_data & CANCEL != 0;
        if is_cancel && !(cqe.res < 0 && self.expired.contains(&token)) {
            return;
        }
        let Some(slot) = handle.table.named(token) else {
            handle.counters.stale().add(1);
            return;
        };
        if is_cancel {
            self.give_up_waiting(slot);
        } else if !cqe.more() {
            let res = self.unless_refused(slot, cqe.res);
            self.complete_in_flight(slot, res);
        }
    }

    /// A thread that drops a future from now on disposes of the operation itself.
    fn close_cancels(&mut self) {
        if broken(Mutation::CancelsLeftOpen) {
            return;
        }
        let handle = Arc::clone(&self.handle);
        for link in handle.cancels.close() {
            self.cancel_abandoned(Slot::of_cancel(link));
        }
    }
}

/// For the cores of a runtime.
#[cfg(feature = "net")]
impl<K: Kernel> Driver<K> {
    /// Returns whether the driver has entries that it must push or submit itself.
    pub(super) fn is_owing(&self) -> bool {
        self.is_stuck() || self.handle.stopping()
    }

    /// Returns the earliest deadline of an operation, ns.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.next_ns()
    }
}
