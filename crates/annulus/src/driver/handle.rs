//! # Safety
//!
//! The callers' side of a driver: a table of slots, a list of submissions, a list of cancel requests, and a flag for
//! whether the driver sleeps. Invariants: Lent, Once.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;

use super::finish;
use super::sleeper::Sleeper;
use super::slot::{CancelLink, Slot};
use super::stack::{Pushed, Stack};
use super::table::SlotTable;
use super::threadless_state::ThreadlessState;
use crate::buf::{Arenas, Follow};
use crate::metrics::{Counters, SourceKind};
use crate::op::FileOp;
use crate::sync::{AtomicBool, Mutation, Ordering, broken};
use crate::sys::engine_error::EngineError;
use crate::sys::forked;
use crate::sys::wake::EventFd;

/// Why a driver is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Something was submitted, and the driver sleeps.
    Work,
    /// An operation with a deadline was submitted. It must not wait until a driver whose threads are all busy has a
    /// free one.
    Deadline,
    /// The engine's arenas have changed. The driver may be awake.
    Arenas,
    /// The handle's stop flag is set. The driver may be awake.
    Stop,
}

/// Wakes a driver.
pub(crate) trait Wake: Send + Sync {
    fn wake(&self, why: Why);
}

impl Wake for Arc<EventFd> {
    fn wake(&self, why: Why) {
        match why {
            Why::Work | Why::Arenas => EventFd::wake(self),
            Why::Stop => self.end(),
            Why::Deadline => {}
        }
    }
}

/// The way in which a driver notices what other threads do.
enum Notifier {
    /// The wake-up of a driver that sleeps.
    Sleeper(Box<dyn Wake>),
    /// The state of a driver without a thread, which the callers poll.
    Callers(Arc<ThreadlessState>),
}

/// The callers' side of a driver.
pub(crate) struct DriverHandle {
    pub(crate) table: SlotTable,
    /// The heads of chains of slots, in the order of their submission.
    pub(crate) inbox: Stack<Slot>,
    pub(crate) cancels: Stack<CancelLink>,
    pub(crate) sleeper: Sleeper,
    /// True if the driver has to drain and end.
    pub(crate) stop: AtomicBool,
    pub(crate) counters: Counters,
    /// The errno that ended the driver's kernel, or 0. Operations that the driver cannot give back fail with it.
    pub(crate) failed: AtomicI32,
    /// The number of tasks that have given the read of a whole file to this driver.
    whole_reads: AtomicU32,
    /// The arenas that the driver registers; set once, before the first operation.
    pub(crate) arenas: OnceLock<Arc<Arenas>>,
    notifier: Notifier,
    /// The process that created it; a child of a fork has no driver.
    process: u64,
}

impl DriverHandle {
    pub(crate) fn new(wake: Box<dyn Wake>) -> DriverHandle {
        DriverHandle::notified_by(Notifier::Sleeper(wake), SourceKind::Driver)
    }

    /// Creates the handle of a threadless driver.
    pub(crate) fn threadless() -> DriverHandle {
        let state = Arc::new(ThreadlessState::new());
        DriverHandle::notified_by(Notifier::Callers(state), SourceKind::OwnRing)
    }

    fn notified_by(notifier: Notifier, kind: SourceKind) -> DriverHandle {
        DriverHandle {
            table: SlotTable::new(),
            inbox: Stack::new(),
            cancels: Stack::new(),
            sleeper: Sleeper::new(),
            stop: AtomicBool::new(false),
            counters: Counters::new(kind),
            failed: AtomicI32::new(0),
            whole_reads: AtomicU32::new(0),
            arenas: OnceLock::new(),
            notifier,
            process: forked::process(),
        }
    }

    /// Returns the state of a threadless driver.
    pub(super) fn threadless_state(&self) -> Option<&Arc<ThreadlessState>> {
        match &self.notifier {
            Notifier::Callers(state) => Some(state),
            Notifier::Sleeper(_) => None,
        }
    }

    /// Returns whether the driver has no thread and is polled by its callers.
    pub(super) fn is_threadless(&self) -> bool {
        matches!(self.notifier, Notifier::Callers(_))
    }

    /// Reopens a drained handle without a driver. Returns `false` if it has a driver, or has operations left.
    pub(super) fn reopen(&self) -> bool {
        if !self.threadless_state().is_some_and(|state| state.claim()) {
            return false;
        }
        self.failed.store(0, Ordering::Release);
        self.stop.store(false, Ordering::SeqCst);
        self.inbox.reopen();
        self.cancels.reopen();
        true
    }

    /// Drains the driver behind this handle, if there is one.
    pub(super) fn drain_own(&self, until_ns: u64) {
        if let Some(driver) = self.threadless_state().and_then(|state| state.driver()) {
            driver.drain(Some(until_ns));
        }
    }

    /// Returns the number of tasks that read whole files through this driver, and will submit together.
    #[inline]
    pub(crate) fn whole_reads(&self) -> u32 {
        self.whole_reads.load(Ordering::Relaxed)
    }

    /// Counts one more of these tasks.
    pub(crate) fn begin_whole_read(&self) {
        self.whole_reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less. The others may have waited for it.
    pub(crate) fn end_whole_read(&self) {
        let left = self.whole_reads.fetch_sub(1, Ordering::Relaxed) - 1;
        if let Some(state) = self.threadless_state()
            && state.has_all(left)
            && !broken(Mutation::WholeReadEndsUnnoticed)
        {
            self.wake();
        }
    }

    /// Returns the number of operations that are worth a submission, if the callers decide that.
    pub(super) fn chunk(&self) -> Option<usize> {
        self.threadless_state().map(|state| state.chunk())
    }

    /// Returns the reason for the completion of an operation whose memory stays with the driver.
    pub(crate) fn expiry(&self) -> i32 {
        match self.failed.load(Ordering::Acquire) {
            0 => EngineError::TimedOut.code(),
            code => code,
        }
    }

    /// Returns the error number for operations that the driver refuses.
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

    /// Puts `op` into a free slot, which belongs to the caller until it is submitted. Returns the op if there is none.
    #[inline]
    pub(super) fn fill<T: FileOp>(
        &self,
        op: T,
        waker: Option<Waker>,
        deadline_ns: u64,
        submitted_ns: u64,
    ) -> Result<&Slot, T> {
        // Before the slot is taken: foreign code, which may panic.
        let bytes = op.bytes();
        let Some(slot) = self.table.take() else {
            return Err(op);
        };
        drop(slot.lifecycle.reset(waker));
        // SAFETY: Once: a free slot, which no other code has.
        unsafe { slot.fill(op, bytes, deadline_ns, submitted_ns) };
        Ok(slot)
    }

    /// Submits `op`, whose completion wakes `waker`. Returns its slot, or the op and the errno of the refusal.
    #[inline]
    pub(super) fn start<T: FileOp>(
        &self,
        op: T,
        waker: Waker,
        deadline_ns: u64,
        submitted_ns: u64,
    ) -> Result<NonNull<Slot>, (T, i32)> {
        let slot = match self.fill(op, Some(waker), deadline_ns, submitted_ns) {
            Ok(slot) => slot,
            Err(op) => return Err((op, EngineError::TooMany.code())),
        };
        // SAFETY: Lent: filled just now; only its life cycle is touched from here on.
        if unsafe { self.submit(NonNull::from(slot), 1) } {
            if deadline_ns != 0 {
                self.wake_for_deadline();
            }
            return Ok(NonNull::from(slot));
        }
        // SAFETY: Once: not submitted, so it still belongs to the caller, with the op just stored.
        let (op, _) = unsafe { slot.take::<T>() };
        // SAFETY: Once: empty again, and no other code has seen it.
        unsafe { self.table.free(slot) };
        Err((op, self.refusal()))
    }

    /// Submits a filled slot and the chain behind it, `operations` in total. Returns `false` if the driver has shut
    /// down; the chain then still belongs to the caller.
    ///
    /// # Safety
    ///
    /// Lent. The caller took the slots from this handle's table, filled them, and accesses only their life cycles from
    /// now on.
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
        } else if let Some(state) = self.threadless_state()
            && state.count_queued(operations, self.whole_reads())
        {
            self.wake();
        }
        true
    }

    /// Requests the cancel of an operation whose future was dropped.
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
            // The driver has ended. If it finished the operation after the future was dropped, the
            // operation is dropped here. An operation that the driver gave up stays as it is.
            // SAFETY: Lent: while `QUEUED` is set the driver does not free the slot.
            Pushed::Closed => unsafe {
                if slot.as_ref().lifecycle.unqueue() {
                    finish::discard(self, slot.as_ref());
                }
            },
        }
    }

    /// Makes sure that the driver knows the deadline of the submitted operation in time.
    fn wake_for_deadline(&self) {
        if let Notifier::Sleeper(wake) = &self.notifier {
            wake.wake(Why::Deadline);
        }
    }

    /// Marks the driver as about to sleep: every later submission wakes it. Returns `false`, and takes the mark back,
    /// if there is one already.
    #[inline]
    #[must_use]
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeper.about_to_sleep();
        let submitted = !self.inbox.is_empty() && !broken(Mutation::SleepUnchecked);
        let cancels = !self.cancels.is_empty() && !broken(Mutation::CancelsUnchecked);
        if submitted || cancels {
            self.sleeper.awake();
        }
        !(submitted || cancels)
    }

    /// Wakes the driver if it sleeps.
    pub(crate) fn wake_if_asleep(&self) {
        if self.sleeper.must_wake() {
            self.wake();
        }
    }

    /// Returns whether this is a child of the process that has the driver.
    #[inline]
    pub(super) fn is_elsewhere(&self) -> bool {
        forked::process() != self.process
    }

    pub(super) fn wake(&self) {
        if self.is_elsewhere() {
            return;
        }
        match &self.notifier {
            Notifier::Sleeper(wake) => {
                self.counters.wakeups().add_shared(1);
                wake.wake(Why::Work);
            }
            Notifier::Callers(state) => {
                if let Some(driver) = state.driver() {
                    driver.poll();
                }
            }
        }
    }

    /// Makes the driver check its arenas soon, even if it is about to sleep.
    pub(crate) fn wake_for_registration(&self) {
        if self.is_elsewhere() {
            return;
        }
        match &self.notifier {
            Notifier::Sleeper(wake) => wake.wake(Why::Arenas),
            Notifier::Callers(state) => {
                (state.driver().into_iter()).for_each(|driver| driver.follow_arenas());
            }
        }
    }

    /// Makes the driver register these arenas. Called before the first operation.
    pub(super) fn follow(self: &Arc<Self>, arenas: &Arc<Arenas>) {
        if self.arenas.set(Arc::clone(arenas)).is_ok() {
            let this: Weak<DriverHandle> = Arc::downgrade(self);
            arenas.add_follower(this);
        }
    }

    /// Makes the driver cancel everything, and end when nothing is in flight.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.sleeper.awake();
        if let Notifier::Sleeper(wake) = &self.notifier {
            wake.wake(Why::Stop);
        }
    }

    #[inline]
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Follow for DriverHandle {
    fn follow(&self) {
        self.wake_for_registration();
    }
}
