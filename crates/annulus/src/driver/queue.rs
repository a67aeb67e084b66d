//! # Safety
//!
//! The operations of a driver that neither the kernel nor a blocking thread has, and the deadlines of all: the part
//! that the drivers of rings share with the pool of blocking threads. The caller is the driver (Held), which therefore
//! holds each slot that is not done (Lent). A chain links slots through their driver side (slot.rs, rule 2).
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ptr::NonNull;

use super::finish::{self, Done};
use super::handle::DriverHandle;
use super::slot::{DriverSide, Slot, Stage};
use super::timers::{Timer, Timers};
use crate::metrics::{Counters, OperationNumber, Times};
use crate::sys::errno::{ECANCELED, ETIMEDOUT};
use crate::sys::sqe::opcode;

/// Operations that wait to be started, or only for their deadline.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) pending: Pending,
    deadlines: Timers<()>,
}

impl Queue {
    /// Takes in a submitted chain. Returns whether it has a deadline.
    pub(super) fn accept(&mut self, chain: NonNull<Slot>) -> bool {
        // SAFETY: Lent: submitted, so its driver side is the driver's.
        let slot = unsafe { chain.as_ref() };
        // SAFETY: Lent: submitted, so its driver side is the driver's.
        let side = unsafe { slot.driver() };
        // Only single operations have deadlines; a batch has one sleep for all of its operations.
        let has_deadline = side.deadline_ns != 0;
        if has_deadline {
            self.deadlines.set(deadline(slot, side), ());
            // SAFETY: Lent: submitted, so its driver side is the driver's.
            if unsafe { slot.info() }.opcode == opcode::SLEEP {
                side.stage = Stage::Sleeping;
                return true;
            }
        }
        self.pending.push(chain);
        has_deadline
    }

    /// Handles a cancel request of a dropped future. The driver is the only owner of the operation from here on.
    /// Returns whether the kernel or a thread has it.
    pub(super) fn cancel_abandoned(&mut self, slot: &Slot, done: &mut Done) -> bool {
        if slot.lifecycle.unqueue() {
            // SAFETY: Once: done, abandoned, and off the list: no other code refers to it.
            unsafe { done.discard_later(slot) };
            return false;
        }
        // SAFETY: Lent: not done, so its driver side is the driver's.
        let stage = unsafe { slot.driver() }.stage;
        if stage == Stage::Sleeping {
            self.finish(slot, -ECANCELED, done);
        }
        // One that waits is disposed of when it is the next of its chain, without being submitted.
        stage == Stage::InFlight
    }

    /// Stores the result and passes the slot on.
    pub(super) fn finish(&mut self, slot: &Slot, res: i32, done: &mut Done) {
        // SAFETY: Lent: not finished, so its driver side is the driver's.
        let side = unsafe { slot.driver() };
        if side.deadline_ns != 0 {
            self.deadlines.clear(deadline(slot, side));
        }
        // SAFETY: Once: called when the stage leaves Waiting, Sleeping, InFlight or Expired for Finished, which happens
        // once.
        unsafe { finish::finish(slot, res, done) };
    }

    /// Returns the earliest deadline of an operation, ns.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.next_ns()
    }

    /// Handles the deadlines that have passed at `now_ns`. `in_flight` decides about an operation that the kernel or a
    /// thread has: a ring cancels it, and a thread cannot be interrupted.
    pub(super) fn expire(
        &mut self,
        handle: &DriverHandle,
        now_ns: u64,
        done: &mut Done,
        mut in_flight: impl FnMut(&Slot, &mut Done),
    ) {
        let mut waiting = false;
        while let Some((Timer { key: token, .. }, ())) = self.deadlines.pop_passed(now_ns) {
            let Some(slot) = handle.table.named(token) else {
                continue;
            };
            // SAFETY: Lent: its deadline was still listed, so it is not finished.
            let side = unsafe { slot.driver() };
            side.timed_out = true;
            match side.stage {
                Stage::Waiting => waiting = true,
                Stage::InFlight => in_flight(slot, done),
                Stage::Sleeping => self.finish(slot, 0, done),
                Stage::Finished | Stage::Expired => {}
            }
        }
        if waiting {
            // SAFETY: Lent: waiting slots are the driver's.
            let timed_out = |slot: &Slot| unsafe { slot.driver() }.timed_out;
            for slot in self.pending.remove(timed_out) {
                handle.counters.timeouts().add(1);
                // SAFETY: Lent: waiting slots are the driver's.
                self.finish(unsafe { slot.as_ref() }, -ETIMEDOUT, done);
            }
        }
    }

    /// Refuses all operations with the errno `refusal`.
    pub(super) fn refuse(&mut self, handle: &DriverHandle, refusal: i32, done: &mut Done) {
        for slot in self.pending.remove(|_| true) {
            // SAFETY: Lent: waiting slots are the driver's.
            self.finish(unsafe { slot.as_ref() }, -refusal, done);
        }
        while let Some((Timer { key: token, .. }, ())) = self.deadlines.pop_passed(u64::MAX) {
            // SAFETY: Lent: its deadline was still listed, so it is not finished.
            let sleeps = |slot: &&Slot| unsafe { slot.driver() }.stage == Stage::Sleeping;
            if let Some(slot) = handle.table.named(token).filter(sleeps) {
                self.finish(slot, -refusal, done);
            }
        }
    }
}

fn deadline(slot: &Slot, side: &DriverSide) -> Timer {
    Timer {
        at_ns: side.deadline_ns,
        key: slot.token(),
    }
}

/// Counts the final result of an operation that was started, and returns it as its future gets it. `is_live`: it was
/// not cancelled.
#[inline]
pub(super) fn count(
    counters: &Counters,
    operation: OperationNumber,
    side: &DriverSide,
    res: i32,
    is_live: bool,
    now_ns: impl FnOnce() -> u64,
) -> i32 {
    let is_late = side.timed_out && res == -ECANCELED;
    let res = if is_late { -ETIMEDOUT } else { res };
    counters.complete(operation);
    match -res {
        ..=0 => {}
        ECANCELED if !is_live => counters.cancelled().add(1),
        ETIMEDOUT if side.timed_out => {}
        errno => counters.fail(operation, errno),
    }
    if side.submitted_ns > 0 {
        let times = Times {
            submitted: side.submitted_ns,
            begun: side.begun_ns,
            completed: now_ns(),
        };
        counters.time(operation, times);
    }
    res
}

/// Submitted operations that have not started: chains of slots, served in turn with one slot each, so that a batch of
/// thousands does not delay a single read.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    chains: VecDeque<NonNull<Slot>>,
}

impl Pending {
    /// Adds a chain at the end of the queue.
    pub(crate) fn push(&mut self, chain: NonNull<Slot>) {
        self.chains.push_back(chain);
    }

    /// Returns the next slot.
    pub(crate) fn peek(&self) -> Option<NonNull<Slot>> {
        self.chains.front().copied()
    }

    /// Takes the next slot. The rest of its chain is queued again at the end.
    pub(crate) fn pop(&mut self) -> Option<NonNull<Slot>> {
        let slot = self.chains.pop_front()?;
        if let Some(rest) = unchain(slot) {
            self.chains.push_back(rest);
        }
        Some(slot)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Removes and returns every slot for which `leaves` returns `true`.
    pub(crate) fn remove(&mut self, mut leaves: impl FnMut(&Slot) -> bool) -> Vec<NonNull<Slot>> {
        let mut removed = Vec::new();
        for _ in 0..self.chains.len() {
            let mut next = self.chains.pop_front();
            let (mut first, mut last): (Option<NonNull<Slot>>, Option<NonNull<Slot>>) =
                (None, None);
            while let Some(slot) = next {
                next = unchain(slot);
                // SAFETY: Lent: waiting slots are this driver's.
                if leaves(unsafe { slot.as_ref() }) {
                    removed.push(slot);
                    continue;
                }
                match last {
                    // SAFETY: Lent: waiting slots are this driver's.
                    Some(last) => unsafe { last.as_ref().driver().chain = Some(slot) },
                    None => first = Some(slot),
                }
                last = Some(slot);
            }
            self.chains.extend(first);
        }
        removed
    }
}

/// Cuts a slot off its chain and returns the rest.
fn unchain(slot: NonNull<Slot>) -> Option<NonNull<Slot>> {
    // SAFETY: Lent: waiting slots are this driver's.
    unsafe { slot.as_ref().driver().chain.take() }
}
