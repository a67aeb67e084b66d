//! # Safety
//!
//! The driver of a ring: one thread, one kernel (real or simulated), one lane.
//!
//! A turn: take what was handed over; submit in small chunks, so that the device starts on the first
//! while the rest are prepared; copy completions out; act upon them; wake who waits; sleep only when
//! nothing is left to do. Completions are never acted upon inside the reap.
//!
//! Invariants: Lent (slots in flight are this driver's until their final CQE), Once (a CQE counts
//! only if its token names the slot's present generation), Drained (`run` returns only when nothing
//! is in flight, or leaks what is).
#![allow(unsafe_code)]

mod drain;
pub(crate) mod polled;
mod watch;

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::deadlines::Deadlines;
use super::index_set::IndexSet;
use super::pending::Pending;
use super::slot::{Slot, Stage};
use super::{Lane, Limits, finish};
use crate::op::Resume;
use crate::sys::errno::{
    EAGAIN, EBADR, EBUSY, ECANCELED, EINTR, ENOMEM, ESHUTDOWN, ETIME, ETIMEDOUT,
};
use crate::sys::ring::{Kernel, REAP_MAX};
use crate::sys::sqe::{Cqe, Sqe, opcode};
use watch::Spin;

/// Token of the read that another thread's wake-up completes.
pub(super) const WAKE: u64 = u64::MAX;
/// Marks the CQE of a cancel; the rest of the token names the operation it was for.
const CANCEL: u64 = 1 << 63;
/// The CQE of the cancel that a drain begins with; names no operation.
const CANCEL_ALL: u64 = CANCEL | u32::MAX as u64;
/// SQEs pushed before they are submitted: few, so that the device starts on the first while the rest
/// are prepared …
const CHUNK: u32 = 2;
/// … and more where `BUSY_IN_FLIGHT` operations keep it busy anyway and the enter is what costs.
const CHUNK_BUSY: u32 = 8;
const BUSY_IN_FLIGHT: u32 = 64;
/// Enter calls refused in a row (EAGAIN, EBUSY: the kernel is short of memory) before the driver
/// pauses instead of trying again at once.
const REFUSALS_MAX: u32 = 64;
/// That pause.
const REFUSED_PAUSE_NS: u64 = 1_000_000;
/// What a driver with nothing to do sleeps at the most while a stop may be missed; a guard, not a
/// rhythm: nothing relies on it.
const DRAIN_POLL_NS: u64 = 50_000_000;

/// How a driver behaves; the defaults are measured (docs/DESIGN.md).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// SQEs pushed before they are submitted, while more are waiting; `None`: by the load.
    pub(crate) chunk: Option<u32>,
    /// How long to look out for new work before sleeping, ns, where looking out has paid lately.
    pub(crate) look_out_ns: u64,
    /// How long a stop waits for what is in flight.
    pub(crate) drain_timeout: Duration,
}

/// The driver's own state; all of it is touched by its thread only.
pub(crate) struct Driver<K> {
    lane: Arc<Lane>,
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
    overdue: HashSet<u64>,
    cqes: Vec<Cqe>,
    done: finish::Done,
    /// Which slots are in flight; so many; so many bytes.
    flying: IndexSet,
    in_flight: u32,
    in_flight_bytes: u64,
    wake_armed: bool,
    /// Callers who were answered since the last submission and have not asked again.
    due: u32,
    refusals: u32,
    spin: Spin,
    draining_until_ns: Option<u64>,
    /// One cancel for everything in flight is still to be pushed.
    cancel_all: bool,
}

impl<K: Kernel> Driver<K> {
    pub(crate) fn new(lane: Arc<Lane>, kernel: K, limits: Limits, tuning: Tuning) -> Driver<K> {
        Driver {
            lane,
            kernel,
            limits,
            tuning,
            pending: Pending::default(),
            again: VecDeque::new(),
            cancels: VecDeque::new(),
            deadlines: Deadlines::default(),
            overdue: HashSet::new(),
            cqes: Vec::with_capacity(REAP_MAX),
            done: finish::Done::default(),
            flying: IndexSet::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            wake_armed: false,
            due: 0,
            refusals: 0,
            spin: Spin::default(),
            draining_until_ns: None,
            cancel_all: false,
        }
    }

    #[cfg(test)]
    pub(super) fn kernel(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Runs until the lane is stopped and drained. Returns the number of operations that had to be
    /// given up; then the caller must leak the lane and this driver.
    pub(crate) fn run(&mut self) -> u32 {
        loop {
            if let Some(left) = self.step() {
                return left;
            }
        }
    }

    /// A turn, and a sleep if there was nothing to do in it. `Some`: the lane is stopped, and all is
    /// drained but so many operations.
    pub(crate) fn step(&mut self) -> Option<u32> {
        let worked = self.turn();
        // Not `stopping`: a stop that came during the turn has not closed the inbox yet.
        if let Some(until) = self.draining_until_ns
            && (self.drained() || self.kernel.now_ns() >= until)
        {
            self.close_cancels();
            return Some(self.in_flight);
        }
        if !worked {
            self.sleep();
        }
        None
    }

    /// One round of everything that can be done without sleeping. False: there was nothing.
    pub(crate) fn turn(&mut self) -> bool {
        if self.lane.stopping() && self.draining_until_ns.is_none() {
            self.begin_drain();
        }
        let taken = self.take_in();
        let issued = self.issue();
        let reaped = self.reap();
        if reaped {
            // What waited for a place goes to the device before anybody is woken.
            self.issue();
        }
        let expired = self.expire();
        self.due = (self.due + self.done.len()).min(self.in_flight + self.done.len());
        self.done.deliver(&self.lane);
        self.publish();
        taken | issued | reaped | expired
    }

    /// Takes over what callers handed in.
    fn take_in(&mut self) -> bool {
        let mut taken = false;
        let lane = Arc::clone(&self.lane);
        for chain in lane.inbox.drain() {
            taken = true;
            self.due = self.due.saturating_sub(1);
            self.accept(chain);
        }
        for link in lane.cancels.drain() {
            taken = true;
            self.cancel_orphan(Slot::of_cancel(link));
        }
        taken
    }

    fn accept(&mut self, chain: NonNull<Slot>) {
        // SAFETY: Lent: handed over, so its driver side is ours.
        let side = unsafe { chain.as_ref().driver() };
        if side.deadline_ns != 0 {
            // Only single operations carry deadlines; a batch has one sleeper for all.
            // SAFETY: as above.
            let slot = unsafe { chain.as_ref() };
            self.deadlines.insert(side.deadline_ns, slot.token());
            // SAFETY: as above.
            if unsafe { slot.info() }.opcode == opcode::SLEEP {
                side.stage = Stage::Sleeping;
                return;
            }
        }
        self.pending.push(chain);
    }

    /// A future was dropped. Its operation is the driver's alone from here on.
    fn cancel_orphan(&mut self, slot: NonNull<Slot>) {
        // SAFETY: Lent: an orphan on the cancel list is not freed before `unqueue`.
        let slot = unsafe { slot.as_ref() };
        if slot.lifecycle.unqueue() {
            // SAFETY: Once: done, orphaned, and off the list: nobody else refers to it.
            unsafe { self.done.discard_later(slot) };
            return;
        }
        // SAFETY: Lent: not done, so its driver side is ours.
        match unsafe { slot.driver() }.stage {
            Stage::Waiting => {} // Disposed of when its turn comes, without being submitted.
            Stage::Sleeping => self.finish(slot, -ECANCELED),
            Stage::InFlight => self.cancels.push_back(slot.token()),
            Stage::Finished | Stage::Expired => {}
        }
    }

    /// Submits what may be submitted. True: something was.
    fn issue(&mut self) -> bool {
        self.push_cancels();
        let mut issued = false;
        while let Some(slot) = self.next_to_issue() {
            issued = true;
            if !self.issue_one(slot) || self.kernel.unsubmitted() >= self.chunk() && !self.submit()
            {
                break;
            }
        }
        if self.kernel.unsubmitted() > 0 && !self.company_comes() {
            self.submit();
        }
        issued
    }

    /// SQEs to push before they are submitted.
    fn chunk(&self) -> u32 {
        let fitting = if self.in_flight < BUSY_IN_FLIGHT {
            CHUNK
        } else {
            CHUNK_BUSY
        };
        self.tuning.chunk.unwrap_or(fitting)
    }

    fn next_to_issue(&mut self) -> Option<NonNull<Slot>> {
        if let Some(slot) = self.again.pop_front() {
            return Some(slot);
        }
        let next = self.pending.peek()?;
        // SAFETY: Lent: waiting slots are this driver's.
        let bytes = u64::from(unsafe { next.as_ref().driver() }.bytes);
        let room = self.in_flight < self.limits.in_flight
            && (self.in_flight == 0 || self.in_flight_bytes + bytes <= self.limits.in_flight_bytes);
        if room { self.pending.pop() } else { None }
    }

    /// False: the kernel wants its completions reaped before it takes more.
    fn issue_one(&mut self, slot: NonNull<Slot>) -> bool {
        // SAFETY: Lent: waiting or unfinished slots are this driver's.
        let slot_ref = unsafe { slot.as_ref() };
        // SAFETY: as above.
        let side = unsafe { slot_ref.driver() };
        let fresh = side.stage == Stage::Waiting;
        if fresh {
            if slot_ref.lifecycle.is_orphan() {
                self.finish(slot_ref, -ECANCELED);
                return true;
            }
            if self.draining_until_ns.is_some() {
                self.finish(slot_ref, -ESHUTDOWN);
                return true;
            }
        } else if side.timed_out || slot_ref.lifecycle.is_orphan() {
            // Between two parts of a transfer nothing is with the kernel: a cancel finds nothing there,
            // and what is left of the transfer must not be submitted behind it.
            self.answer(slot_ref, -ECANCELED);
            return true;
        }
        // SAFETY: Lent and Open: the op, in its slot, owns what its SQE points to; it leaves the slot
        // only after the final CQE.
        let sqe = unsafe { slot_ref.sqe() };
        if fresh {
            side.stage = Stage::InFlight;
            self.in_flight += 1;
            self.flying.insert(slot_ref.index());
            self.in_flight_bytes += u64::from(side.bytes);
            self.lane.counters.submitted.add(1);
        }
        if !self.kernel.push(sqe) {
            // Counted as in flight, so that its bytes stay reserved.
            self.again.push_front(slot);
            return self.submit();
        }
        true
    }

    fn push_cancels(&mut self) {
        if self.cancel_all && self.kernel.push(Sqe::cancel_all(CANCEL_ALL)) {
            self.lane.counters.cancels.add(1);
            self.cancel_all = false;
        }
        while let Some(&token) = self.cancels.front() {
            if !self.kernel.push(Sqe::cancel(token, token | CANCEL)) {
                self.submit();
                return;
            }
            self.lane.counters.cancels.add(1);
            self.cancels.pop_front();
        }
    }

    /// Enters without waiting. False: the kernel wants its completions reaped first.
    fn submit(&mut self) -> bool {
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
                self.fail(errno.unwrap_or(EBADR));
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
        let lane = Arc::clone(&self.lane);
        let token = cqe.user_data & !CANCEL;
        // A cancel's CQE often comes after its operation's, when the slot may be somebody else's: only
        // the driver's own list says whether the operation is still in flight.
        let is_cancel = cqe.user_data & CANCEL != 0;
        if is_cancel && !(cqe.res < 0 && self.overdue.contains(&token)) {
            return;
        }
        let Some(slot) = lane
            .table
            .at(token as u32)
            .filter(|slot| slot.token() == token)
        else {
            lane.counters.stale.add(1);
            return;
        };
        if is_cancel {
            self.give_up_waiting(slot);
        } else if !cqe.more() {
            let res = self.unless_refused(slot, cqe.res);
            self.answer(slot, res);
        }
    }

    /// The final CQE of an operation.
    fn answer(&mut self, slot: &Slot, res: i32) {
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        let expired = side.stage == Stage::Expired;
        let mut res = res;
        if !expired
            && !side.timed_out
            && self.draining_until_ns.is_none()
            && !slot.lifecycle.is_orphan()
        {
            // SAFETY: Lent: the kernel has let go; the op is ours.
            match unsafe { slot.resume(res) } {
                Resume::Again => {
                    self.lane.counters.resubmitted.add(1);
                    self.again.push_back(NonNull::from(slot));
                    return;
                }
                Resume::Done(total) => res = total,
            }
        } else if !expired {
            // SAFETY: as above. Interrupted for good: what was done so far counts.
            res = match unsafe { slot.resume(res) } {
                Resume::Done(total) => total,
                Resume::Again => -ECANCELED,
            };
        }
        self.in_flight -= 1;
        self.flying.remove(slot.index());
        self.in_flight_bytes -= u64::from(side.bytes);
        if side.timed_out && res == -ECANCELED {
            res = -ETIMEDOUT;
        }
        self.lane.counters.completed.add(1);
        self.finish(slot, res);
    }

    /// Stores the answer and passes the slot on.
    fn finish(&mut self, slot: &Slot, res: i32) {
        // SAFETY: Lent: not finished, so its driver side is ours.
        let side = unsafe { slot.driver() };
        if side.timed_out {
            self.overdue.remove(&slot.token());
        }
        self.deadlines.remove(side.deadline_ns, slot.token());
        // SAFETY: Once: called when the stage leaves Waiting, Sleeping, InFlight or Expired for
        // Finished, which happens once.
        unsafe { finish::finish(slot, res, &mut self.done) };
    }

    /// Deadlines that have passed. True: there were some.
    fn expire(&mut self) -> bool {
        let Some(next) = self.deadlines.next_ns() else {
            return false;
        };
        let now = self.kernel.now_ns();
        if next > now {
            return false;
        }
        let lane = Arc::clone(&self.lane);
        let mut waiting = false;
        while let Some(token) = self.deadlines.pop_passed(now) {
            let Some(slot) = lane
                .table
                .at(token as u32)
                .filter(|slot| slot.token() == token)
            else {
                continue;
            };
            // SAFETY: Lent: its deadline was still listed, so it is not finished.
            let side = unsafe { slot.driver() };
            side.timed_out = true;
            match side.stage {
                Stage::Waiting => waiting = true,
                Stage::InFlight => {
                    lane.counters.timeouts.add(1);
                    self.overdue.insert(token);
                    self.cancels.push_back(token);
                }
                Stage::Sleeping => self.finish(slot, 0),
                Stage::Finished | Stage::Expired => {}
            }
        }
        if waiting {
            let timed_out = self.pending.remove(|slot| {
                // SAFETY: Lent: waiting slots are this driver's.
                unsafe { slot.driver() }.timed_out
            });
            for slot in timed_out {
                lane.counters.timeouts.add(1);
                // SAFETY: as above.
                self.finish(unsafe { slot.as_ref() }, -ETIMEDOUT);
            }
        }
        true
    }

    /// The timeout passed and the kernel can't be stopped: the future goes, the memory stays.
    fn give_up_waiting(&mut self, slot: &Slot) {
        self.overdue.remove(&slot.token());
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        if let Some(wake) = slot.lifecycle.expire() {
            side.stage = Stage::Expired;
            self.done.wakers.extend(wake);
        }
    }

    fn sleep(&mut self) {
        let draining = self.lane.stopping();
        // Not during a drain: nobody would complete that read, and the end waits for it.
        if !self.wake_armed && !draining {
            self.wake_armed = self.kernel.arm_wake(WAKE);
        }
        if self.is_stuck() || !self.wake_armed && !draining {
            self.submit();
            return;
        }
        if self.spin.pays() && self.in_flight + self.kernel.unsubmitted() > 0 {
            if self.kernel.unsubmitted() > 0 {
                self.submit();
            }
            let found = self.look_out();
            self.spin.learn(found);
            if found {
                return;
            }
        }
        if self.polls_on() {
            return;
        }
        self.lane.sleeper.about_to_sleep();
        let called = !self.lane.inbox.is_empty() || !self.lane.cancels.is_empty();
        if called || self.lane.stopping() && self.draining_until_ns.is_none() {
            self.lane.sleeper.awake();
            return;
        }
        let timeout = self
            .deadlines
            .next_ns()
            .map(|at| at.saturating_sub(self.kernel.now_ns()));
        let timeout = match self.draining_until_ns {
            Some(_) => Some(timeout.unwrap_or(u64::MAX).min(DRAIN_POLL_NS)),
            None => timeout,
        };
        let result = self.kernel.wait(timeout);
        self.lane.sleeper.awake();
        self.judge(result);
    }

    /// Whether something could not be pushed that may be pushed: to sleep would be to wait for an
    /// answer that has nothing to do with it.
    fn is_stuck(&self) -> bool {
        self.cancel_all
            || !self.cancels.is_empty()
            || !self.again.is_empty()
            || self.kernel.unsubmitted() > 0 && !self.pending.is_empty()
    }

    /// Whoever drops a future from now on disposes of it himself.
    fn close_cancels(&mut self) {
        let lane = Arc::clone(&self.lane);
        for link in lane.cancels.close() {
            self.cancel_orphan(Slot::of_cancel(link));
        }
        self.done.deliver(&lane);
    }

    fn publish(&mut self) {
        let (enters, waits) = self.kernel.enters();
        self.lane.counters.enters.set(enters);
        self.lane.counters.waits.set(waits);
        self.lane.counters.sq_wakeups.set(self.kernel.sq_wakeups());
    }
}
