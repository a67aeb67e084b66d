//! # Safety
//!
//! Which thread polls a driver that has no thread: one word, in which each step is one atomic operation. Checked by
//! loom (`ci/loom`).
//!
//! The rules:
//!
//! 1. *The driver* belongs to the thread that has set `HELD`, until it clears `HELD`.
//! 2. *No call is lost.* A thread that finds `HELD` set sets `AGAIN` in the same step. The holder clears `AGAIN` before
//!    it looks for work, and the step that clears `HELD` tells it whether `AGAIN` is set. It then takes one more turn.
//! 3. *A sleep in the kernel* begins with the step that sets `ASLEEP`, unless that step finds `AGAIN` or `OVER`. A
//!    thread that finds `ASLEEP` interrupts the kernel.
//! 4. *A batch.* While `BATCH` is set, operations are queued. The thread that clears it takes a turn afterwards.
//! 5. *The end.* `OVER` is never cleared. A thread that finds it when it clears `HELD` drains the driver.
//! 6. *A wait for the turn* sets `AWAITED`. The step that clears `HELD` clears it, too, and wakes all that wait.
//!
//! Invariant: Held.
#![allow(unsafe_code)]

use std::sync::PoisonError;

use crate::sync::{AtomicU32, Condvar, ExclusiveCell, Mutation, Mutex, Ordering, broken};

const HELD: u32 = 1;
const AGAIN: u32 = 1 << 1;
const ASLEEP: u32 = 1 << 2;
const BATCH: u32 = 1 << 3;
const OVER: u32 = 1 << 4;
/// A thread waits for the end of the present turn.
const AWAITED: u32 = 1 << 5;
/// All tasks that were woken together have run. The next turn takes it.
const ALL_RAN: u32 = 1 << 6;
/// There has been no turn since `leave_watched`.
const WATCHED: u32 = 1 << 7;

/// A value that one thread at a time may use, and the word that decides which.
pub(super) struct Turn<T> {
    bits: AtomicU32,
    value: ExclusiveCell<T>,
    ended: (Mutex<()>, Condvar),
}

// SAFETY: Held: rule 1 gives the value to one thread at a time.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The result of an attempt to take the turn.
pub(super) enum Attempt<'a, T> {
    Held(TurnGuard<'a, T>),
    /// Another thread holds the turn. It sees that this attempt was made, and takes another turn.
    Taken {
        /// That thread sleeps in the kernel, and has to be interrupted.
        asleep: bool,
    },
}

/// The turn of the calling thread.
pub(super) struct TurnGuard<'a, T> {
    turn: &'a Turn<T>,
    /// The bits when the turn was taken.
    before: u32,
}

/// The bits in the step that ended a turn.
#[derive(Clone, Copy)]
pub(super) struct Left(u32);

impl Left {
    /// Returns whether one more turn has to follow.
    pub(super) fn again(self) -> bool {
        self.0 & AGAIN != 0
    }

    pub(super) fn is_over(self) -> bool {
        self.0 & OVER != 0
    }
}

impl<T> Turn<T> {
    pub(super) fn new(value: T) -> Turn<T> {
        Turn {
            bits: AtomicU32::new(0),
            value: ExclusiveCell::new(value),
            ended: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Takes the turn if it is free. Otherwise sets `mark` in the same step. Returns the bits before it.
    fn take_or(&self, mark: u32) -> u32 {
        let mut bits = self.bits.load(Ordering::Relaxed);
        loop {
            let after = match bits & HELD {
                0 => (bits | HELD) & !(AGAIN | ALL_RAN | WATCHED),
                _ => bits | mark,
            };
            match (self.bits).compare_exchange_weak(
                bits,
                after,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return bits,
                Err(changed) => bits = changed,
            }
        }
    }

    /// Takes the turn, or leaves a mark for the thread that has it.
    #[inline]
    pub(super) fn enter(&self) -> Attempt<'_, T> {
        let mark = if broken(Mutation::CallUnmarked) {
            0
        } else {
            AGAIN
        };
        let before = self.take_or(mark);
        match before & HELD {
            0 => Attempt::Held(TurnGuard { turn: self, before }),
            _ => Attempt::Taken {
                asleep: before & ASLEEP != 0,
            },
        }
    }

    /// Waits for the turn. The caller has interrupted a sleep in the kernel if there may be one.
    pub(super) fn wait(&self) -> TurnGuard<'_, T> {
        loop {
            let before = self.take_or(AWAITED);
            if before & HELD == 0 {
                return TurnGuard { turn: self, before };
            }
            let (lock, ended) = &self.ended;
            let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            while self.bits.load(Ordering::Acquire) & AWAITED != 0 {
                guard = ended.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Leaves a mark. Returns whether a thread sleeps in the kernel and has to be interrupted.
    pub(super) fn call(&self) -> bool {
        self.bits.fetch_or(AGAIN, Ordering::AcqRel) & ASLEEP != 0
    }

    /// Begins a batch. Returns `false` if there is one already.
    pub(super) fn begin_batch(&self) -> bool {
        self.bits.fetch_or(BATCH, Ordering::AcqRel) & BATCH == 0
    }

    /// Ends the batch. Returns `false` if there is none; otherwise the caller takes a turn.
    pub(super) fn end_batch(&self) -> bool {
        let step = |bits: u32| match broken(Mutation::BatchUnended) {
            true => bits | ALL_RAN,
            false => (bits & !BATCH) | ALL_RAN,
        };
        let ends = |bits: u32| (bits & BATCH != 0).then(|| step(bits));
        (self.bits)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, ends)
            .is_ok()
    }

    #[inline]
    pub(super) fn in_batch(&self) -> bool {
        self.bits.load(Ordering::Acquire) & BATCH != 0
    }

    /// Makes the value end.
    pub(super) fn end(&self) {
        self.bits.fetch_or(OVER, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.bits.load(Ordering::Acquire) & OVER != 0
    }

    #[inline]
    fn give_up(&self) -> Left {
        let bits = (self.bits).fetch_and(!(HELD | ASLEEP | AWAITED), Ordering::AcqRel);
        if bits & AWAITED != 0 && !broken(Mutation::WaitForgotten) {
            self.notify();
        }
        match broken(Mutation::MarkOverlooked) {
            true => Left(bits & !AGAIN),
            false => Left(bits),
        }
    }

    /// Wakes the threads that wait for the turn.
    #[cold]
    fn notify(&self) {
        let (lock, ended) = &self.ended;
        // With the lock, so that a thread between its check and its wait is not missed.
        let _guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        ended.notify_all();
    }
}

impl<T> TurnGuard<'_, T> {
    /// Calls `act` with the value.
    #[inline]
    pub(super) fn with<R>(&mut self, act: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: Held: rule 1, and the borrow of `self` admits one call at a time.
        (self.turn.value).with_mut(|value| act(unsafe { &mut *value }))
    }

    /// Returns whether all woken tasks have run since the last turn.
    pub(super) fn all_ran(&self) -> bool {
        self.before & ALL_RAN != 0
    }

    /// Returns whether there was no turn between `leave_watched` and this one.
    pub(super) fn is_first_since_watch(&self) -> bool {
        self.before & WATCHED != 0
    }

    /// Clears the mark, before a look for work.
    #[inline]
    pub(super) fn answer(&mut self) {
        if self.turn.bits.load(Ordering::Relaxed) & AGAIN != 0 {
            self.turn.bits.fetch_and(!AGAIN, Ordering::AcqRel);
        }
    }

    /// Leaves a mark for this thread itself: one more turn has to follow.
    pub(super) fn mark(&mut self) {
        self.turn.bits.fetch_or(AGAIN, Ordering::AcqRel);
    }

    /// Begins a sleep in the kernel, which `wake_up` or the end of the turn ends. Returns `false` if there is a mark,
    /// or the value must end.
    pub(super) fn fall_asleep(&mut self) -> bool {
        let before = self.turn.bits.fetch_or(ASLEEP, Ordering::AcqRel);
        before & (AGAIN | OVER) == 0 || broken(Mutation::MarkSleptOver)
    }

    /// Ends the sleep in the kernel, and clears the mark before a look for work.
    pub(super) fn wake_up(&mut self) {
        (self.turn.bits).fetch_and(!(ASLEEP | AGAIN), Ordering::AcqRel);
    }

    /// Ends the turn.
    #[inline]
    pub(super) fn leave(self) -> Left {
        let turn = self.turn;
        std::mem::forget(self);
        turn.give_up()
    }

    /// Ends the turn, and notes whether another one follows.
    pub(super) fn leave_watched(self) -> Left {
        self.turn.bits.fetch_or(WATCHED, Ordering::AcqRel);
        self.leave()
    }
}

/// A panic ends the turn, too.
impl<T> Drop for TurnGuard<'_, T> {
    fn drop(&mut self) {
        self.turn.give_up();
    }
}
