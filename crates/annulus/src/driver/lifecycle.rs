//! # Safety
//!
//! Who may touch a slot, as one word of bits: the protocol between the future, which watches, and the
//! driver, which completes. One per slot; checked by loom (`ci/loom`).
//!
//! The rules of the two things the bits guard:
//!
//! 1. *The waker.* Before the slot is submitted it is the future's. After that it is the future's
//!    while `WAKER` is clear, and nobody's while `WAKER` is set. The thread that sets `DONE` and finds
//!    `WAKER` set in the same step has claimed the waker; a future that finds `DONE` in any step
//!    never touches it again.
//! 2. *The slot's memory.* It is freed by whichever comes second of `RELEASED` (the driver will not
//!    touch it again) and `TAKEN` (the future will not). A future dropped before `DONE` sets
//!    `ABANDONED` and `QUEUED` instead: the driver frees, and not before it has taken the slot off the
//!    list of cancel requests (`QUEUED` cleared).
//! 3. *The payload.* The driver's until `DONE`, then the future's — unless `EXPIRED` came with
//!    `DONE`: then the timeout passed while the kernel kept the memory, and it stays the driver's.
//!
//! Invariants: Once, Lent.
#![allow(unsafe_code)]

use std::task::Waker;

use crate::sync::{AtomicU32, Mutation, Ordering, Shared, broken};

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
    waker: Shared<Option<Waker>>,
}

/// What a future finds when it looks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Not yet; the waker is registered.
    Pending,
    /// The answer and the payload are the future's.
    Done,
    /// The timeout passed; the payload stays with the driver.
    Expired,
}

/// What a driver has to do after completing.
#[derive(Debug)]
pub(crate) struct Finish {
    /// To be woken, after everything else.
    pub(crate) wake: Option<Waker>,
    /// The payload is nobody's: dispose of it, then free the slot.
    pub(crate) dispose: bool,
    /// The slot is to be freed; the payload has been taken.
    pub(crate) free: bool,
}

/// What a dropped future has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Abandon {
    /// Put the slot on the list of cancel requests; it is the driver's from now on.
    Request,
    /// The answer came first: dispose of the payload, then `take`.
    Dispose,
    /// The timeout came first: nothing to dispose of, only `take`.
    Leave,
}

impl Lifecycle {
    pub(crate) fn new() -> Lifecycle {
        Lifecycle {
            bits: AtomicU32::new(0),
            waker: Shared::new(None),
        }
    }

    /// Makes a freed slot new. Only the owner of a free slot calls this. Answers with the waker that
    /// was left in it: to drop that is foreign code, for the caller to run where it may run.
    pub(crate) fn reset(&self, waker: Option<Waker>) -> Option<Waker> {
        let bits = if waker.is_some() { WAKER } else { 0 };
        // SAFETY: Held, rule 1: the slot is not submitted yet, so the waker is ours.
        let left = self
            .waker
            .with_mut(|cell| unsafe { std::mem::replace(&mut *cell, waker) });
        self.bits.store(bits, Ordering::Release);
        left
    }

    /// The future: is it done? If not, `waker` will be woken.
    pub(crate) fn look(&self, waker: &Waker) -> Look {
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
            bits if bits & DONE == 0 => Look::Pending,
            bits if bits & EXPIRED != 0 => Look::Expired,
            _ => Look::Done,
        }
    }

    /// The future has taken what is its own. True: the slot is to be freed, by the caller.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        self.bits.fetch_or(TAKEN, Ordering::AcqRel) & RELEASED != 0
    }

    /// The future is dropped.
    pub(crate) fn abandon(&self) -> Abandon {
        let bits = self.bits.fetch_or(ABANDONED | QUEUED, Ordering::AcqRel);
        match bits {
            bits if bits & DONE == 0 => Abandon::Request,
            bits if bits & EXPIRED != 0 => Abandon::Leave,
            _ => Abandon::Dispose,
        }
    }

    /// A group is dropped: claims one of its slots, so that the driver does not free it before it
    /// came off the list of cancel requests.
    pub(crate) fn claim(&self) {
        self.bits.fetch_or(ABANDONED | QUEUED, Ordering::AcqRel);
    }

    /// Takes the claim back, for a slot that turned out to be done.
    pub(crate) fn unclaim(&self) {
        self.bits.fetch_and(!QUEUED, Ordering::AcqRel);
    }

    /// Whether the claim stands.
    pub(crate) fn is_claimed(&self) -> bool {
        self.bits.load(Ordering::Acquire) & QUEUED != 0
    }

    /// The driver: whether nobody waits for the answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.bits.load(Ordering::Acquire) & ABANDONED != 0
    }

    /// The driver took the slot off the list of cancel requests. True: it is done already, so its
    /// payload is to be disposed of and the slot freed.
    #[must_use]
    pub(crate) fn unqueue(&self) -> bool {
        let bits = self.bits.fetch_and(!QUEUED, Ordering::AcqRel);
        bits & DONE != 0 && !broken(Mutation::UnqueuedNeverDone)
    }

    /// The driver: the answer is stored in the slot.
    pub(crate) fn complete(&self) -> Finish {
        let bits = self.bits.fetch_or(DONE, Ordering::AcqRel);
        if bits & EXPIRED != 0 {
            // The future knows already. The payload was disposed of by the caller.
            let free = self.bits.fetch_or(RELEASED, Ordering::AcqRel) & TAKEN != 0;
            return Finish {
                wake: None,
                dispose: false,
                free,
            };
        }
        if bits & ABANDONED != 0 {
            // While it is queued for a cancel, `unqueue` will say what to do.
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

    /// The driver: the answer is stored in a slot that goes to its group, which becomes its only
    /// holder when it is pushed there.
    pub(crate) fn complete_in_group(&self) {
        self.bits.fetch_or(DONE | RELEASED, Ordering::AcqRel);
    }

    /// The driver: the timeout passed and the kernel keeps the memory. `None`: nobody waits any more.
    /// After this, `complete` is still to be called, once, when the payload has been disposed of.
    pub(crate) fn expire(&self) -> Option<Option<Waker>> {
        let bits = self.bits.fetch_or(DONE | EXPIRED, Ordering::AcqRel);
        if bits & ABANDONED != 0 {
            // Only the driver looks at an abandoned operation's bits.
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
