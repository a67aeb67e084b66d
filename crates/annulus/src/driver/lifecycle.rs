//! # Safety
//!
//! The protocol between the future, which waits, and the driver, which completes: one word of bits per slot that says
//! which of them may access the slot. Checked by loom (`ci/loom`).
//!
//! The rules for the things that the bits guard:
//!
//! 1. *The waker.* Before the slot is submitted, it belongs to the future. After that it belongs to the future while
//!    `WAKER` is clear, and to neither side while `WAKER` is set. The thread that sets `DONE` and sees `WAKER` set in
//!    the same step has claimed the waker. A future that sees `DONE` in any step never touches it again.
//! 2. *The slot's memory.* It is freed by the side that sets the second of `RELEASED` (the driver will not touch it
//!    again) and `TAKEN` (the future will not). A future that is dropped before `DONE` sets `ABANDONED` and `QUEUED`
//!    instead. The driver then frees the slot, but not before it has taken it off the list of cancel requests
//!    (`QUEUED` cleared).
//! 3. *The payload.* It belongs to the driver until `DONE`, then to the future, unless `EXPIRED` is set together with
//!    `DONE`: then the timeout has passed while the kernel kept the memory, and the payload stays with the driver.
//!
//! Invariants: Once, Lent.
#![allow(unsafe_code)]

use std::task::Waker;

use crate::sync::{AtomicU32, ExclusiveCell, Mutation, Ordering, broken};

const WAKER: u32 = 1;
const DONE: u32 = 1 << 1;
const ABANDONED: u32 = 1 << 2;
const QUEUED: u32 = 1 << 3;
const RELEASED: u32 = 1 << 4;
const TAKEN: u32 = 1 << 5;
const EXPIRED: u32 = 1 << 6;

/// The bits and the waker of one slot.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    bits: AtomicU32,
    waker: ExclusiveCell<Option<Waker>>,
}

/// The state that a future observes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// Not completed; the waker is registered.
    Pending,
    /// Completed: the result and the payload belong to the future.
    Done,
    /// The timeout has passed; the payload stays with the driver.
    Expired,
}

/// The steps that a driver has to take after completing.
#[derive(Debug)]
pub(crate) struct Finish {
    /// The waker to wake after everything else.
    pub(crate) wake: Option<Waker>,
    /// True if the payload has no owner: dispose of it, then free the slot.
    pub(crate) dispose: bool,
    /// True if the payload has been taken: free the slot.
    pub(crate) free: bool,
}

/// The steps that a dropped future has to take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandon {
    /// Put the slot on the list of cancel requests; it belongs to the driver from then on.
    Request,
    /// The operation has completed: dispose of the payload, then `take`.
    Dispose,
    /// The timeout has passed: no payload to dispose of, only `take`.
    Leave,
}

impl Lifecycle {
    pub(crate) fn new() -> Lifecycle {
        Lifecycle {
            bits: AtomicU32::new(0),
            waker: ExclusiveCell::new(None),
        }
    }

    /// Resets a freed slot. Only the owner of a free slot calls this. Returns the waker that was left in it; dropping
    /// it runs foreign code, so the caller does that where it is allowed.
    pub(crate) fn reset(&self, waker: Option<Waker>) -> Option<Waker> {
        let bits = if waker.is_some() { WAKER } else { 0 };
        // SAFETY: Held, rule 1: the slot is not submitted yet, so the waker belongs to the caller.
        let left = self
            .waker
            .with_mut(|cell| unsafe { std::mem::replace(&mut *cell, waker) });
        self.bits.store(bits, Ordering::Release);
        left
    }

    /// Future side: returns whether the operation is done. If not, registers `waker`.
    pub(crate) fn poll_result(&self, waker: &Waker) -> PollResult {
        let mut bits = self.bits.load(Ordering::Acquire);
        if bits & DONE == 0 && bits & WAKER != 0 && !broken(Mutation::WakerUnclaimed) {
            bits = self.bits.fetch_and(!WAKER, Ordering::AcqRel);
        }
        if bits & DONE == 0 {
            self.waker.with_mut(|cell| {
                // SAFETY: Held, rule 1: `WAKER` is clear and `DONE` was not set when it was cleared.
                let stored = unsafe { &mut *cell };
                match stored {
                    Some(stored) => stored.clone_from(waker),
                    None => *stored = Some(waker.clone()),
                }
            });
            let before = self.bits.fetch_or(WAKER, Ordering::AcqRel);
            if !broken(Mutation::LookedOnce) {
                bits = before;
            }
        }
        match bits {
            bits if bits & DONE == 0 => PollResult::Pending,
            bits if bits & EXPIRED != 0 => PollResult::Expired,
            _ => PollResult::Done,
        }
    }

    /// Future side: notes that the future has taken its part. If it returns `true`, the caller frees the slot.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        self.bits.fetch_or(TAKEN, Ordering::AcqRel) & RELEASED != 0
    }

    /// Future side: notes that the future is dropped.
    pub(crate) fn abandon(&self) -> Abandon {
        let bits = self.bits.fetch_or(ABANDONED | QUEUED, Ordering::AcqRel);
        match bits {
            bits if bits & DONE == 0 => Abandon::Request,
            bits if bits & EXPIRED != 0 => Abandon::Leave,
            _ => Abandon::Dispose,
        }
    }

    /// Group side: claims a slot of a dropped group, so that the driver does not free it before it has processed its
    /// cancel request.
    pub(crate) fn claim(&self) {
        self.bits.fetch_or(ABANDONED | QUEUED, Ordering::AcqRel);
    }

    /// Takes the claim back, for a slot that was already done.
    pub(crate) fn unclaim(&self) {
        self.bits.fetch_and(!QUEUED, Ordering::AcqRel);
    }

    /// Returns whether the slot is claimed.
    pub(crate) fn is_claimed(&self) -> bool {
        self.bits.load(Ordering::Acquire) & QUEUED != 0
    }

    /// Driver side: returns whether the future has been dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.bits.load(Ordering::Acquire) & ABANDONED != 0
    }

    /// Driver side: notes that the slot was taken off the list of cancel requests. If it returns `true`, the operation
    /// is already done: its payload has to be disposed of, and the slot freed.
    #[must_use]
    pub(crate) fn unqueue(&self) -> bool {
        let bits = self.bits.fetch_and(!QUEUED, Ordering::AcqRel);
        bits & DONE != 0 && !broken(Mutation::UnqueuedNeverDone)
    }

    /// Driver side: notes that the result is stored in the slot.
    pub(crate) fn complete(&self) -> Finish {
        let bits = self.bits.fetch_or(DONE, Ordering::AcqRel);
        if bits & EXPIRED != 0 {
            // The future has already returned. The caller has disposed of the payload.
            let free = self.bits.fetch_or(RELEASED, Ordering::AcqRel) & TAKEN != 0;
            return Finish {
                wake: None,
                dispose: false,
                free,
            };
        }
        if bits & ABANDONED != 0 {
            // While a cancel request is queued, `unqueue` decides.
            return Finish {
                wake: None,
                dispose: bits & QUEUED == 0 || broken(Mutation::QueuedAbandonedDisposed),
                free: false,
            };
        }
        let wake = if bits & WAKER != 0 {
            self.claim_waker()
        } else {
            None
        };
        let free = self.bits.fetch_or(RELEASED, Ordering::AcqRel) & TAKEN != 0;
        Finish {
            wake,
            dispose: false,
            free,
        }
    }

    /// Driver side: notes that the result is stored in a slot of a group. The group becomes the only holder when the
    /// slot is pushed to it.
    pub(crate) fn complete_in_group(&self) {
        self.bits.fetch_or(DONE | RELEASED, Ordering::AcqRel);
    }

    /// Driver side: notes that the timeout has passed while the kernel keeps the memory. Returns `None` if the future
    /// has been dropped. `complete` has to be called once after this, when the payload has been disposed of.
    pub(crate) fn expire(&self) -> Option<Option<Waker>> {
        let bits = self.bits.fetch_or(DONE | EXPIRED, Ordering::AcqRel);
        if bits & ABANDONED != 0 {
            // Only the driver reads an abandoned operation's bits.
            self.bits.fetch_and(!(DONE | EXPIRED), Ordering::AcqRel);
            return None;
        }
        Some(if bits & WAKER != 0 {
            self.claim_waker()
        } else {
            None
        })
    }

    fn claim_waker(&self) -> Option<Waker> {
        // SAFETY: Held, rule 1: `WAKER` was set in the step that set `DONE`.
        self.waker.with_mut(|cell| unsafe { (*cell).take() })
    }
}
