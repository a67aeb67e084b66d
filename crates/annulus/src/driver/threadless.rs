//! A threadless driver: threads that have work for it poll it, under a try-lock. Each thread with its own ring has one.
//!
//! A thread that finds the lock taken sets a mark (`again`), and the holder checks for marks after unlocking. No
//! submission is overlooked, and no thread blocks. Wakers and buffers are foreign code and run with the lock released.
//! Checked by loom (`ci/loom`). A poll inside a delivery, by a waker that starts an operation, delivers nothing itself:
//! the outer poll continues with that driver.
//!
//! While the owner thread of a driver is awake (`owner_awake`), it will poll before it sleeps. Submissions then only
//! queue, until there are enough operations for a system call. Otherwise every submission polls.
//!
//! The handle outlives the driver, and may have a new driver when this one is drained again. Therefore the end of this
//! driver is stored here (`over`), and the handle's own flag is only changed while this driver is known to use the
//! handle.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool as StdAtomicBool, AtomicU32 as StdAtomicU32, Ordering::Relaxed,
};
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};

use super::finish::{Done, contain};
use super::threadless_state::{Drive, ThreadlessState};
use super::uring::{Driver, Tuning};
use super::{DriverHandle, Limits, Wake, leak, ring_watch};
use crate::sync::{
    AtomicBool, AtomicWaker, Mutation, Ordering, TryMutex, broken, fence, thread_local,
};
use crate::sys::forked;
use crate::sys::kernel::Kernel;

/// The maximum number of rounds of one poll before completions are delivered.
const ROUNDS_MAX: u32 = 16;

/// The state of a driver, for a thread that does not drive it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The number of polls so far.
    pub(super) polls: u32,
    /// True if something is queued, or completions have arrived.
    pub(super) due: bool,
    /// True if operations or timers are pending.
    pub(super) busy: bool,
}

/// The driver, its handle and its lock.
pub(crate) struct ThreadlessDriver<K> {
    handle: Arc<DriverHandle>,
    /// The driver; `None` once it has been drained.
    driver: TryMutex<Option<Driver<K>>>,
    /// The mark: there may be work that the holder of the lock has not seen.
    again: AtomicBool,
    /// True if the holder of the lock sleeps in the kernel, or is about to.
    asleep: AtomicBool,
    /// Ends that sleep.
    interrupt: Box<dyn Wake>,
    /// True if the owner thread is awake, and polls the driver before it sleeps.
    owner_awake: AtomicBool,
    /// Woken when a batch begins. Its task ends the batch.
    batch_waker: AtomicWaker,
    /// True if all woken tasks have run, so that no further operation is expected.
    all_ran: StdAtomicBool,
    /// The number of polls; wraps.
    polls: StdAtomicU32,
    /// True if the driver has ended, or must end.
    over: AtomicBool,
    /// The process that created it: a child of a fork must not use the ring (trap 54).
    process: u64,
    /// Woken when the driver has ended.
    end_waker: AtomicWaker,
    /// An empty list to deliver from, so that a poll allocates nothing.
    spare: TryMutex<Done>,
}

/// The delivery of completions by this thread.
#[derive(Clone, Copy, PartialEq)]
enum Delivery {
    None,
    Runs,
    /// The drivers in `POLLED_LATER` are polled after it.
    RunsBeforePolls,
}

thread_local! {
    static DELIVERY: Cell<Delivery> = const { Cell::new(Delivery::None) };
    /// The drivers to poll after the delivery.
    static POLLED_LATER: RefCell<Vec<Arc<dyn Drive>>> = const { RefCell::new(Vec::new()) };
}

/// Notes that the driver of `state` has to be polled after the delivery. Returns `false` if that is not possible.
fn poll_later(state: &ThreadlessState) -> bool {
    let Some(driver) = state.driver() else {
        return false;
    };
    let noted = POLLED_LATER.try_with(|drivers| {
        let mut drivers = drivers.borrow_mut();
        if !drivers.iter().any(|other| Arc::ptr_eq(other, &driver)) {
            drivers.push(driver);
        }
    });
    DELIVERY.with(|delivery| delivery.set(Delivery::RunsBeforePolls));
    noted.is_ok()
}

/// Polls the drivers that were noted during a delivery.
#[cold]
fn poll_noted() {
    while let Ok(Some(driver)) = POLLED_LATER.try_with(|drivers| drivers.borrow_mut().pop()) {
        driver.poll();
    }
}

impl<K: Kernel + Send + 'static> ThreadlessDriver<K> {
    /// Creates a driver. `interrupt` ends a wait of `kernel`; `handle` is a new one, or one that has been drained.
    pub(crate) fn new(
        handle: Arc<DriverHandle>,
        kernel: K,
        interrupt: Box<dyn Wake>,
        limits: Limits,
        tuning: Tuning,
    ) -> Arc<ThreadlessDriver<K>> {
        let driver = Driver::new(Arc::clone(&handle), kernel, limits, tuning);
        handle.sleeper.about_to_sleep();
        let threadless = Arc::new(ThreadlessDriver {
            handle: Arc::clone(&handle),
            driver: TryMutex::new(Some(driver)),
            again: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            interrupt,
            owner_awake: AtomicBool::new(false),
            batch_waker: AtomicWaker::new(),
            all_ran: StdAtomicBool::new(false),
            polls: StdAtomicU32::new(0),
            over: AtomicBool::new(false),
            process: forked::process(),
            end_waker: AtomicWaker::new(),
            spare: TryMutex::new(Done::default()),
        });
        if let Some(state) = &handle.threadless {
            state.occupy(Arc::clone(&threadless) as Arc<dyn Drive>);
        }
        threadless
    }

    /// Submits waiting operations and handles completions. Never blocks.
    pub(crate) fn poll(&self) {
        if self.is_elsewhere() {
            return;
        }
        self.look_again();
        while self.again.load(Ordering::Relaxed) {
            let mut guard = match self.driver.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return self.end_sleep();
                }
            };
            let Some(driver) = guard.as_mut() else { return };
            self.polls.fetch_add(1, Relaxed);
            if self.all_ran.swap(false, Relaxed) {
                driver.forget_woken();
            }
            self.work(driver);
            if self.is_delivering() {
                // The completions stay in the driver for the outer poll.
                return self.publish(driver);
            }
            let done = self.collect(driver);
            drop(guard);
            self.deliver(done);
            // Pairs with `look_again`: the mark of a thread that found the lock taken is seen here.
            if !broken(Mutation::UnlockUnfenced) {
                fence(Ordering::SeqCst);
            }
            if broken(Mutation::MarkOverlooked) {
                return;
            }
            if self.over.load(Ordering::Relaxed) {
                // The ring has failed, or another thread drains it and waits for the lock.
                return self.drain();
            }
        }
    }

    /// Registers new arenas and unregisters dropped ones. Never blocks. It delivers no completions, because the caller
    /// may be a user's `Drop`, unless another thread has found the lock taken meanwhile.
    fn follow_arenas(&self) {
        if self.is_elsewhere() {
            return;
        }
        let Ok(mut guard) = self.driver.try_lock() else {
            // The holder of the lock does it.
            return self.poll();
        };
        guard.iter_mut().for_each(Driver::follow_arenas);
        drop(guard);
        // Pairs with `look_again`, as in `poll`.
        if !broken(Mutation::FollowUnfenced) {
            fence(Ordering::SeqCst);
        }
        if self.again.load(Ordering::Relaxed) && !broken(Mutation::FollowerOverlooks) {
            self.poll();
        }
    }

    /// Makes the holder of the lock, or the next one, check again. Called before the lock is tried.
    fn look_again(&self) {
        self.again.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Ends a sleep of the lock's holder. Called after a fence.
    fn end_sleep(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.interrupt.wake();
        }
    }

    /// Returns whether this is a child of the process that has the ring.
    fn is_elsewhere(&self) -> bool {
        forked::process() != self.process
    }

    /// Does all work that is possible without sleeping.
    fn work(&self, driver: &mut Driver<K>) {
        for _ in 0..ROUNDS_MAX {
            // Not a store: submissions from before the flag was raised must be visible.
            self.again.swap(false, Ordering::AcqRel);
            if !self.owner_awake.load(Ordering::Relaxed) {
                // Every submission from now on polls.
                self.handle.sleeper.about_to_sleep();
            }
            match catch_unwind(AssertUnwindSafe(|| driver.work())) {
                Ok(true) => {}
                // No later completion would submit the rest.
                Ok(false) if driver.owes() => {}
                // The thread that waits in the ring is woken in time by its enter call.
                Ok(false)
                    if self
                        .handle
                        .threadless
                        .as_ref()
                        .is_some_and(ThreadlessState::waits) =>
                {
                    return;
                }
                Ok(false) => return driver.set_timer(),
                Err(panic) => {
                    // A bug. No task is left waiting.
                    std::mem::forget(panic);
                    return driver.give_up();
                }
            }
        }
        self.again.store(true, Ordering::Release);
    }

    fn publish(&self, driver: &Driver<K>) {
        if let Some(state) = &self.handle.threadless {
            let chunk = match state.waits() {
                true => driver.chunk(),
                // Only operations of tasks that were woken together are queued.
                false => driver.chunk_of_woken(),
            };
            state.publish(driver.in_flight(), chunk);
        }
    }

    fn collect(&self, driver: &mut Driver<K>) -> Done {
        if self.handle.stopping() {
            self.over.store(true, Ordering::Release);
        }
        self.publish(driver);
        if driver.in_flight() == 0 {
            // A thread that submitted meanwhile may rely on a completion that has already arrived.
            fence(Ordering::SeqCst);
            if !self.handle.inbox.is_empty() && !broken(Mutation::InboxForgotten) {
                self.again.store(true, Ordering::Release);
            }
        }
        let mut done = match self.spare.try_lock() {
            Ok(mut spare) => std::mem::take(&mut *spare),
            Err(_) => Done::default(),
        };
        driver.swap_done(&mut done);
        done
    }

    /// Returns whether this thread is delivering completions. Then the outermost delivery polls this driver afterwards.
    fn is_delivering(&self) -> bool {
        DELIVERY.with(Cell::get) != Delivery::None
            && self.handle.threadless.as_ref().is_some_and(poll_later)
    }

    fn deliver(&self, mut done: Done) {
        let is_outer = DELIVERY.with(Cell::get) == Delivery::None;
        if is_outer {
            DELIVERY.with(|delivery| delivery.set(Delivery::Runs));
        }
        done.deliver(&self.handle);
        if let Ok(mut spare) = self.spare.try_lock() {
            *spare = done;
        }
        if is_outer {
            let delivery = DELIVERY.with(|delivery| delivery.replace(Delivery::None));
            if delivery == Delivery::RunsBeforePolls {
                poll_noted();
            }
        }
    }

    /// Called by the owner before it submits an operation. Returns `true` if the operation is worth queueing: several
    /// tasks were woken by the last completions and are about to submit, and an operation in flight guarantees another
    /// poll. The task that waits in `poll_batch` then calls `flush`.
    pub(super) fn begin_batch(&self) -> bool {
        let begins = !self.owner_awake.load(Ordering::Relaxed)
            && (self.handle.whole_reads() > 1
                || (self.handle.threadless.as_ref()).is_some_and(ThreadlessState::expects_several));
        if begins {
            self.owner_awake.store(true, Ordering::Release);
            if !self.over.load(Ordering::Acquire) {
                self.handle.sleeper.awake();
            }
            self.batch_waker.wake();
        }
        begins
    }

    /// Ready with `true` when a batch has begun, and with `false` when there will be no more batches.
    pub(super) fn poll_batch(&self, context: &Context<'_>) -> Poll<bool> {
        self.batch_waker.register(context.waker());
        if self.is_over() {
            Poll::Ready(false)
        } else if self.owner_awake.load(Ordering::Acquire) {
            Poll::Ready(true)
        } else {
            Poll::Pending
        }
    }

    /// Submits what the owner has queued since `begin_batch`, unless that has been done.
    pub(super) fn flush(&self) {
        if self
            .owner_awake
            .swap(broken(Mutation::FlushedAwake), Ordering::AcqRel)
        {
            self.all_ran.store(true, Relaxed);
            if broken(Mutation::FlushAwaitsWholeReads) && self.handle.whole_reads() > 1 {
                return;
            }
            self.poll();
        }
    }

    /// Looks for work that no thread has polled for. Never blocks.
    pub(super) fn look(&self) -> Look {
        let polls = self.polls.load(Relaxed);
        let Ok(mut guard) = self.driver.try_lock() else {
            // The holder of the lock polls.
            return Look {
                polls,
                due: false,
                busy: true,
            };
        };
        let look = Look {
            polls,
            due: guard.as_mut().is_some_and(Driver::is_due),
            busy: guard.as_ref().is_some_and(Driver::is_busy),
        };
        drop(guard);
        // Pairs with `look_again`, as in `poll`.
        fence(Ordering::SeqCst);
        if self.again.load(Ordering::Relaxed) && !broken(Mutation::LookOverlooks) {
            self.poll();
        }
        look
    }

    /// Polls. If there was no work, sleeps in the kernel until an operation completes or is submitted, or until
    /// `awaited` is set and the driver woken.
    pub(crate) fn poll_or_sleep(&self, awaited: &AtomicBool) {
        if self.is_elsewhere() {
            return;
        }
        let mut guard = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = guard.as_mut() else { return };
        driver.keep_rest(true);
        self.work(driver);
        driver.keep_rest(false);
        let done = self.collect(driver);
        if done.is_empty() {
            self.asleep.store(true, Ordering::Relaxed);
            // Pairs with the fence of the thread that raises one of these and then checks `asleep`.
            fence(Ordering::SeqCst);
            let awaited = awaited.load(Ordering::Acquire) && !broken(Mutation::AwaitedUnchecked);
            let called = [&self.again, &self.over].map(|flag| flag.load(Ordering::Acquire));
            if !awaited && called == [false, false] {
                driver.sleep(false);
            } else {
                driver.skip_sleep();
            }
            self.asleep.store(false, Ordering::Relaxed);
        }
        drop(guard);
        self.deliver(done);
    }

    /// Ends a `poll_or_sleep` that sleeps, or is about to.
    pub(crate) fn interrupt(&self) {
        fence(Ordering::SeqCst);
        self.end_sleep();
    }

    /// Sets the waker that is woken when the driver has ended.
    pub(crate) fn set_end_waker(&self, waker: &Waker) {
        self.end_waker.register(waker);
    }

    /// Returns whether the driver has ended, or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.is_elsewhere()
    }

    /// Marks the owner as awake: a thread that runs nothing but this driver and its futures. Returns `true` if it
    /// already was; the caller must then leave the end to the call that started it.
    pub(crate) fn begin_owner_polls(&self) -> bool {
        let before = self.owner_awake.swap(true, Ordering::AcqRel);
        if self.is_over() {
            // The handle may belong to another driver.
            return before;
        }
        self.set_waits(true);
        self.handle.sleeper.awake();
        before
    }

    /// Ends the owner's polls.
    pub(crate) fn end_owner_polls(&self) {
        self.owner_awake.store(false, Ordering::Release);
        if self.is_over() {
            return;
        }
        self.set_waits(false);
        self.poll();
    }

    fn set_waits(&self, waits: bool) {
        if let Some(state) = &self.handle.threadless {
            state.set_waits(waits);
        }
    }

    #[cfg(test)]
    pub(super) fn with_kernel<T>(&self, act: impl FnOnce(&mut K) -> T) -> Option<T> {
        let mut guard = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_mut().map(|driver| act(driver.kernel()))
    }

    /// Refuses waiting operations, cancels those in flight as far as possible, and waits for the others, at most for
    /// the drain timeout. After that, memory that the kernel may still use is leaked.
    pub(crate) fn drain(&self) {
        self.drain_by(None);
    }

    /// Drains at most until `until_ns`.
    fn drain_by(&self, until_ns: Option<u64>) {
        if self.is_elsewhere() {
            // The ring's memory is not mapped in the child, and the thread that held the lock may not exist.
            return;
        }
        self.over.store(true, Ordering::SeqCst);
        // Ends a sleep, and completes a read of its eventfd that is in flight.
        self.interrupt.wake();
        if broken(Mutation::StoppedUnlocked) {
            self.handle.stop.store(true, Ordering::SeqCst);
        }
        loop {
            let mut guard = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(driver) = guard.as_mut() else { return };
            until_ns
                .into_iter()
                .for_each(|until_ns| driver.drain_by(until_ns));
            // Under the lock, and while the driver exists: the handle does not belong to another driver yet.
            self.handle.stop.store(true, Ordering::SeqCst);
            let ended = catch_unwind(AssertUnwindSafe(|| driver.advance()));
            let ended = ended.unwrap_or_else(|panic| {
                std::mem::forget(panic);
                driver.give_up();
                Some(driver.in_flight())
            });
            let done = self.collect(driver);
            if broken(Mutation::DrainedInPlace) && ended.is_some() {
                return;
            }
            let over = ended.and_then(|left| guard.take().map(|driver| (driver, left)));
            drop(guard);
            self.deliver(done);
            if let Some((driver, left)) = over {
                return self.let_go(driver, left);
            }
        }
    }

    /// Releases the driver, which has ended except for `left` operations.
    fn let_go(&self, driver: Driver<K>, left: u32) {
        let leaks = driver.has_lent(left);
        if leaks {
            self.handle.counters.leaked().add(u64::from(left));
            leak(driver);
        } else {
            // Before another driver uses the handle.
            drop(driver);
        }
        if let Some(state) = &self.handle.threadless {
            // A handle whose kernel failed is not reused: its callers still have to get the reason.
            state.vacate(!leaks && self.handle.failed.load(Ordering::Acquire) == 0);
        }
        contain(|| self.end_waker.wake());
        contain(|| self.batch_waker.wake());
        ring_watch::note_end();
    }
}

impl<K: Kernel + Send + 'static> Drive for ThreadlessDriver<K> {
    fn poll(&self) {
        ThreadlessDriver::poll(self);
    }

    fn follow_arenas(&self) {
        ThreadlessDriver::follow_arenas(self);
    }

    fn drain(&self, until_ns: Option<u64>) {
        self.drain_by(until_ns);
    }
}
