//! # Safety
//!
//! Takes operations, returns completions.
//!
//! A `DriverHandle` is one driver as its callers see it: a table of slots, a list of what is submitted, a
//! list of what is to be cancelled, and a flag that says whether the driver sleeps. Behind a handle
//! runs either a ring (`uring.rs`, on one thread, real or simulated kernel) or blocking threads
//! (`blocking.rs`). A `Submitter` is what files and engines hold: all driver handles of one engine, and the
//! duty to drain them when the last holder goes. Invariant: Lent.
#![allow(unsafe_code)]

pub(crate) mod blocking;
pub(crate) mod coop_budget;
#[cfg(feature = "net")]
pub(crate) mod core;
mod deadlines;
mod finish;
mod fixed;
mod index_set;
pub(crate) mod lazy_driver;
pub(crate) mod lifecycle;
#[cfg(all(test, annulus_loom, feature = "net"))]
mod loom_models;
#[cfg(all(test, annulus_loom, feature = "net"))]
mod loom_mutations;
#[cfg(all(test, annulus_loom, feature = "net"))]
mod loom_threadless;
#[cfg(feature = "net")]
pub(crate) mod mailbox;
pub(crate) mod many;
pub(crate) mod operation;
mod payload;
mod pending;
#[cfg(feature = "test-util")]
pub(crate) mod simulated;
pub(crate) mod sleeper;
pub(crate) mod slot;
pub(crate) mod stack;
mod submitter;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod thread_rings;
pub(crate) mod threadless;
mod threadless_state;
#[cfg(test)]
mod threadless_tests;
pub(crate) mod uring;

use std::ptr::NonNull;
use std::sync::atomic::AtomicI32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

#[cfg(feature = "net")]
pub(crate) use finish::{contain, contained};
pub use operation::Operation;
#[cfg(feature = "test-util")]
pub(crate) use submitter::Clock;
pub(crate) use submitter::{DriverThread, Opcodes, Submitter, Thread, ThreadRingConfig};

use crate::buf::{Arenas, Follow};
use crate::metrics::{Counters, SourceKind};
use crate::sync::{AtomicBool, Ordering};
use crate::sys::engine_error::EngineError;
use crate::sys::forked;
use crate::sys::ring::Ring;
use sleeper::Sleeper;
use slot::{CancelLink, Slot};
use stack::{Pushed, Stack};
use table::Table;
use threadless_state::ThreadlessState;

/// How many operations, and how many bytes of buffers, a driver lets the kernel hold at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) in_flight: u32,
    pub(crate) in_flight_bytes: u64,
}

impl Limits {
    /// Never more than the completion queue of `ring` has room for.
    pub(crate) fn within(self, ring: &Ring) -> Limits {
        Limits {
            in_flight: self.in_flight.min(ring.cq_entries()),
            ..self
        }
    }
}

/// How a sleeping driver is woken.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self);

    /// An operation with a deadline has been submitted: it is not to wait until a driver whose
    /// threads are all busy has one to spare.
    fn wake_for_deadline(&self) {}

    /// The driver is to register its engine's arenas, whether or not it sleeps.
    fn wake_for_registration(&self) {
        self.wake();
    }

    /// The handle's stop flag is set: the driver is to see it, whether or not it sleeps.
    fn end(&self) {
        self.wake();
    }
}

impl Wake for std::sync::Arc<crate::sys::wake::EventFd> {
    fn wake(&self) {
        crate::sys::wake::EventFd::wake(self);
    }
}

/// One driver, as its callers see it.
pub(crate) struct DriverHandle {
    pub(crate) table: Table,
    /// Heads of chains of slots, in the order they were submitted.
    pub(crate) inbox: Stack<Slot>,
    pub(crate) cancels: Stack<CancelLink>,
    pub(crate) sleeper: Sleeper,
    /// Drain and end.
    pub(crate) stop: AtomicBool,
    pub(crate) counters: Counters,
    /// The errno that ended the driver's kernel, or 0: what operations it can't give back answer.
    pub(crate) failed: AtomicI32,
    /// Present if the driver has no thread: its callers poll it.
    threadless: Option<ThreadlessState>,
    /// What the driver is to register; set once, before the first operation.
    pub(crate) arenas: OnceLock<Arc<Arenas>>,
    wake: Box<dyn Wake>,
    /// The process it was made in; a child of a fork has no driver.
    process: u64,
}

/// For a threadless driver, which is polled instead of woken.
struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

impl DriverHandle {
    pub(crate) fn new(wake: Box<dyn Wake>) -> DriverHandle {
        DriverHandle {
            table: Table::new(),
            inbox: Stack::new(),
            cancels: Stack::new(),
            sleeper: Sleeper::new(),
            stop: AtomicBool::new(false),
            counters: Counters::new(SourceKind::Driver),
            failed: AtomicI32::new(0),
            threadless: None,
            arenas: OnceLock::new(),
            wake,
            process: forked::process(),
        }
    }

    /// The handle of a threadless driver.
    pub(crate) fn threadless() -> DriverHandle {
        let handle = DriverHandle::new(Box::new(NoWake));
        handle.counters.be(SourceKind::OwnRing);
        DriverHandle {
            threadless: Some(ThreadlessState::new()),
            ..handle
        }
    }

    /// Reopens a drained handle that has no driver. False: it has one, or left operations behind.
    fn reopen(&self) -> bool {
        if !self.threadless.as_ref().is_some_and(ThreadlessState::claim) {
            return false;
        }
        self.failed.store(0, Ordering::Release);
        self.stop.store(false, Ordering::SeqCst);
        self.inbox.reopen();
        self.cancels.reopen();
        true
    }

    /// Drains the driver behind this handle, if there is one.
    fn drain_own(&self, until_ns: u64) {
        if let Some(driver) = self.threadless.as_ref().and_then(ThreadlessState::driver) {
            driver.drain(Some(until_ns));
        }
    }

    /// Operations that are worth a submission, where the callers decide that.
    fn chunk(&self) -> Option<usize> {
        self.threadless.as_ref().map(ThreadlessState::chunk)
    }

    /// Why an operation whose memory stays with the driver has been answered.
    pub(crate) fn expiry(&self) -> i32 {
        match self.failed.load(Ordering::Acquire) {
            0 => EngineError::TimedOut.code(),
            code => code,
        }
    }

    /// Why the driver takes no operation: the answer of those that it has not begun, as a number.
    #[cold]
    pub(crate) fn refusal(&self) -> i32 {
        if self.is_elsewhere() {
            return EngineError::Forked.code();
        }
        match self.failed.load(Ordering::Acquire) {
            0 => EngineError::Ended.code(),
            code => code,
        }
    }

    /// Submits a filled slot, and the chain behind it, to the driver: `operations` in total. False:
    /// the driver has shut down, and the chain is still the caller's.
    ///
    /// # Safety
    ///
    /// Lent. The caller took the slots from this handle's table, filled them, and from now on touches
    /// nothing but their life cycles.
    #[must_use]
    pub(crate) unsafe fn submit(&self, chain: NonNull<Slot>, operations: u32) -> bool {
        if self.is_elsewhere() {
            return false;
        }
        // SAFETY: Lent: the caller upholds the contract in `# Safety`; a slot just filled is on no
        // stack.
        let pushed = unsafe { self.inbox.push(chain) };
        if pushed == Pushed::Closed {
            return false;
        }
        if pushed == Pushed::First && self.sleeper.must_wake() {
            self.wake();
        } else if let Some(state) = &self.threadless
            && state.is_due(operations)
        {
            self.wake();
        }
        true
    }

    /// Asks for the cancel of an operation whose future is gone.
    ///
    /// # Safety
    ///
    /// Once. The caller has just set the slot's `QUEUED` and keeps the handle alive by other means
    /// than the slot.
    pub(crate) unsafe fn request_cancel(&self, slot: NonNull<Slot>) {
        // SAFETY: Lent: while `QUEUED` is set the driver does not free the slot.
        match unsafe { self.cancels.push(Slot::cancel_link(slot)) } {
            Pushed::First => self.wake_if_asleep(),
            Pushed::Behind => {}
            // The driver has ended: what it finished after the future was gone is ours to drop. What
            // it gave up on stays as it is.
            // SAFETY: Lent: while `QUEUED` is set the driver does not free the slot.
            Pushed::Closed => unsafe {
                if slot.as_ref().lifecycle.unqueue() {
                    finish::discard(self, slot.as_ref());
                }
            },
        }
    }

    /// Sees to it that the deadline of what was just submitted is known in time.
    pub(crate) fn wake_for_deadline(&self) {
        self.wake.wake_for_deadline();
    }

    /// Wakes the driver if it sleeps.
    pub(crate) fn wake_if_asleep(&self) {
        if self.sleeper.must_wake() {
            self.wake();
        }
    }

    /// Whether this is a child of the process that has the driver.
    #[inline]
    fn is_elsewhere(&self) -> bool {
        forked::process() != self.process
    }

    fn wake(&self) {
        if self.is_elsewhere() {
            return;
        }
        match &self.threadless {
            None => {
                self.counters.wakeups().add_shared(1);
                self.wake.wake();
            }
            Some(state) => {
                if let Some(driver) = state.driver() {
                    driver.poll();
                }
            }
        }
    }

    /// Makes the driver look at its arenas, soon, even if it is about to sleep.
    pub(crate) fn wake_for_registration(&self) {
        if self.is_elsewhere() {
            return;
        }
        match self.threadless.as_ref() {
            None => self.wake.wake_for_registration(),
            Some(state) => (state.driver().into_iter()).for_each(|driver| driver.follow_arenas()),
        }
    }

    /// Has the driver register these arenas. Before the first operation.
    fn follow(self: &Arc<Self>, arenas: &Arc<Arenas>) {
        if self.arenas.set(Arc::clone(arenas)).is_ok() {
            let this: Weak<DriverHandle> = Arc::downgrade(self);
            arenas.add_follower(this);
        }
    }

    /// Asks the driver to cancel everything, and to end when nothing is in flight.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.sleeper.awake();
        self.wake.end();
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Follow for DriverHandle {
    fn follow(&self) {
        self.wake_for_registration();
    }
}

/// Leaks on purpose what a kernel may still touch. The address stays in sight, so that a leak checker
/// can tell this from a leak by mistake.
pub(crate) fn leak<T>(value: T) {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let address = Box::into_raw(Box::new(value)).expose_provenance();
    KEPT.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(address);
}
