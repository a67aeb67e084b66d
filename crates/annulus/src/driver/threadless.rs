//! A threadless driver: threads that have work for it poll it, in turns. Each thread with its own ring has one.
//!
//! `turn.rs` decides which thread has the turn. No submission is overlooked, and no thread blocks. Wakers and buffers
//! are foreign code and run outside of the turn. A poll inside a delivery, by a waker that starts an operation,
//! delivers nothing itself: the outer poll continues with that driver.
//!
//! In a batch, submissions only queue, until there are enough operations for a system call. Otherwise every submission
//! polls.
//!
//! The handle outlives the driver, and may have a new driver when this one is drained again. Therefore the end of this
//! driver is stored here, and the handle's own flag is only changed while this driver is known to use the handle.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::contain::contain;
use super::finish::Done;
use super::handle::{DriverHandle, Wake, Why};
use super::leak::leak;
use super::limits::Limits;
use super::threadless_state::{Drive, ThreadlessState};
use super::turn::{Attempt, Left, Turn, TurnGuard};
use super::uring::{Driver, Tuning};
use crate::sync::{AtomicBool, AtomicWaker, Mutation, Ordering, broken, fence, thread_local};
use crate::sys::kernel::Kernel;

/// The maximum number of rounds of one poll before completions are delivered.
const ROUNDS_MAX: u32 = 16;

/// The state of a driver, for a thread that does not drive it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inspection {
    /// True if no thread has polled since the last look, at which something was queued or had completed, and still is.
    pub(super) missed: bool,
    /// True if operations or timers are pending.
    pub(super) busy: bool,
}

/// A driver and its handle.
pub(crate) struct ThreadlessDriver<K> {
    handle: Arc<DriverHandle>,
    state: Arc<ThreadlessState>,
    /// The driver; `None` once it has been drained.
    turn: Turn<Option<Driver<K>>>,
    /// Ends a sleep in the kernel.
    interrupt: Box<dyn Wake>,
    /// Woken when a batch begins. Its task ends the batch.
    batch_waker: AtomicWaker,
    /// Woken when the driver has ended.
    end_waker: AtomicWaker,
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
    /// An empty list to deliver from, so that a poll allocates nothing.
    static SPARE: Cell<Option<Done>> = const { Cell::new(None) };
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
        let Some(state) = handle.threadless_state().cloned() else {
            unreachable!("the handle of a threadless driver")
        };
        let threadless = Arc::new(ThreadlessDriver {
            handle,
            state,
            turn: Turn::new(Some(driver)),
            interrupt,
            batch_waker: AtomicWaker::new(),
            end_waker: AtomicWaker::new(),
        });
        let driver = Arc::clone(&threadless) as Arc<dyn Drive>;
        threadless.state.occupy(driver);
        threadless
    }

    /// Drains a driver that has to end: its ring has failed, or another thread waits for the turn. Otherwise returns
    /// whether one more turn has to follow.
    fn goes_on(&self, left: Left) -> bool {
        if left.is_over() {
            self.drain(None);
        }
        left.again() && !left.is_over()
    }

    /// Takes the turn. `None` if another thread has it: that thread does the work, and is woken for it if it sleeps.
    #[inline]
    fn enter(&self) -> Option<TurnGuard<'_, Option<Driver<K>>>> {
        match self.turn.enter() {
            Attempt::Held(held) => return Some(held),
            Attempt::Taken { asleep: true } => self.interrupt.wake(Why::Work),
            Attempt::Taken { asleep: false } => {}
        }
        None
    }

    /// Does rounds until there is no work, at most `ROUNDS_MAX`. Returns `false` if the driver has ended.
    fn rounds(&self, held: &mut TurnGuard<'_, Option<Driver<K>>>) -> bool {
        if held.all_ran() {
            held.with(|driver| driver.iter_mut().for_each(Driver::forget_woken));
        }
        for _ in 0..ROUNDS_MAX {
            held.answer();
            if !self.turn.in_batch() {
                // Every submission from now on polls.
                self.handle.sleeper.about_to_sleep();
            }
            match held.with(|driver| Some(self.round(driver.as_mut()?))) {
                None => return false,
                Some(true) => {}
                Some(false) => return true,
            }
        }
        held.mark();
        true
    }

    /// Does one round. Returns whether another one has to follow.
    fn round(&self, driver: &mut Driver<K>) -> bool {
        match catch_unwind(AssertUnwindSafe(|| driver.round())) {
            Ok(true) if driver.has_more() => return true,
            // No later completion would submit the rest.
            Ok(_) if driver.must_submit() => return true,
            // The thread that waits in the ring is woken in time by its enter call.
            Ok(_) if self.state.waits() => {}
            Ok(_) => driver.set_timer(),
            Err(panic) => {
                // A bug. No task is left waiting.
                std::mem::forget(panic);
                driver.give_up();
            }
        }
        false
    }

    fn publish(&self, driver: &Driver<K>) {
        let chunk = match self.state.waits() {
            true => driver.chunk(),
            // Only operations of tasks that were woken together are queued.
            false => driver.chunk_of_woken(),
        };
        self.state.publish(driver.in_flight(), chunk);
    }

    /// Takes the completions, for `deliver`.
    fn collect(&self, held: &mut TurnGuard<'_, Option<Driver<K>>>) -> Done {
        if self.handle.stopping() {
            self.turn.end();
        }
        let mut done = (SPARE.try_with(Cell::take).ok().flatten()).unwrap_or_default();
        let in_flight = held.with(|driver| {
            let driver = driver.as_mut()?;
            self.publish(driver);
            driver.swap_done(&mut done);
            Some(driver.in_flight())
        });
        if in_flight == Some(0) {
            // A thread that submitted meanwhile may rely on a completion that has already arrived.
            fence(Ordering::SeqCst);
            if !self.handle.inbox.is_empty() && !broken(Mutation::InboxForgotten) {
                held.mark();
            }
        }
        done
    }

    /// Returns whether this thread is delivering completions. Then the outermost delivery polls this driver afterwards.
    fn is_delivering(&self) -> bool {
        DELIVERY.with(Cell::get) != Delivery::None && poll_later(&self.state)
    }

    fn deliver(&self, mut done: Done) {
        let is_outer = DELIVERY.with(Cell::get) == Delivery::None;
        if is_outer {
            DELIVERY.with(|delivery| delivery.set(Delivery::Runs));
        }
        done.deliver(&self.handle);
        let _ = SPARE.try_with(|spare| spare.set(Some(done)));
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
        let pays = || self.handle.whole_reads() > 1 || self.state.expects_several();
        if self.turn.in_batch() || !pays() {
            return false;
        }
        let is_late = broken(Mutation::BatchAwakeLate);
        // First: the thread that ends the last batch may find this one and end it, too. It then marks the driver as
        // about to sleep, which must not be taken back.
        if !is_late {
            self.awake();
        }
        let begins = self.turn.begin_batch();
        if begins && is_late {
            self.awake();
        }
        if begins {
            self.batch_waker.wake();
        }
        begins
    }

    /// Marks the driver as awake. After its end, the handle may belong to another driver.
    fn awake(&self) {
        if !self.turn.is_over() {
            self.handle.sleeper.awake();
        }
    }

    /// Ready with `true` when a batch has begun, and with `false` when there will be no more batches.
    pub(super) fn poll_batch(&self, context: &Context<'_>) -> Poll<bool> {
        self.batch_waker.register(context.waker());
        if self.is_over() {
            Poll::Ready(false)
        } else if self.turn.in_batch() {
            Poll::Ready(true)
        } else {
            Poll::Pending
        }
    }

    /// Submits what the owner has queued since `begin_batch`, unless that has been done.
    pub(super) fn flush(&self) {
        if !self.turn.end_batch() {
            return;
        }
        if broken(Mutation::FlushAwaitsWholeReads) && self.handle.whole_reads() > 1 {
            return;
        }
        self.poll();
    }

    /// Looks for work that no thread has polled for. Never blocks.
    pub(super) fn inspect(&self) -> Inspection {
        let Attempt::Held(mut held) = self.turn.enter() else {
            // The thread that has the turn polls.
            return Inspection {
                missed: false,
                busy: true,
            };
        };
        let pending = held.with(|driver| driver.as_mut().map(Driver::pending).unwrap_or_default());
        let missed = pending.now && held.is_first_since_watch();
        let left = match pending.now {
            true => held.leave_watched(),
            false => held.leave(),
        };
        if left.again() && !broken(Mutation::LookOverlooks) {
            self.poll();
        }
        Inspection {
            missed,
            busy: pending.later,
        }
    }

    /// Polls. If there was no work, sleeps in the kernel until an operation completes or is submitted, or until
    /// `awaited` is set and the driver woken.
    pub(crate) fn drive(&self, awaited: &AtomicBool) {
        if self.handle.is_elsewhere() {
            return;
        }
        let mut held = self.turn.wait();
        // One round: the sleep looks at everything once more.
        let Some(has_done) = held.with(|driver| Some(self.round_before_sleep(driver.as_mut()?)))
        else {
            return;
        };
        if !has_done {
            // `awaited` comes second, so that a thread that sets it later finds the sleep.
            let sleeps = held.fall_asleep()
                && (!awaited.load(Ordering::Acquire) || broken(Mutation::AwaitedUnchecked));
            held.with(|driver| {
                driver.iter_mut().for_each(|driver| match sleeps {
                    true => driver.sleep(false),
                    false => driver.skip_sleep(),
                });
            });
            if sleeps {
                held.wake_up();
                held.with(|driver| {
                    driver
                        .as_mut()
                        .map(|driver| self.round_before_sleep(driver))
                });
            }
        }
        let done = self.collect(&mut held);
        held.leave();
        self.deliver(done);
    }

    /// Does one round, and leaves the entries that do not fill a chunk for the sleep. Returns whether there is
    /// something to deliver.
    fn round_before_sleep(&self, driver: &mut Driver<K>) -> bool {
        driver.keep_rest(true);
        self.round(driver);
        driver.keep_rest(false);
        driver.has_done()
    }

    /// Ends a `drive` that sleeps, or is about to.
    pub(crate) fn interrupt(&self) {
        if self.turn.call() {
            self.interrupt.wake(Why::Work);
        }
    }

    /// Sets the waker that is woken when the driver has ended.
    pub(crate) fn set_end_waker(&self, waker: &Waker) {
        self.end_waker.register(waker);
    }

    /// Returns whether the driver has ended, or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.turn.is_over() || self.handle.is_elsewhere()
    }

    /// Marks the owner as awake: a thread that runs nothing but this driver and its futures. Returns `true` if it
    /// already was; the caller must then leave the end to the call that started it.
    pub(crate) fn begin_owner_polls(&self) -> bool {
        let before = !self.turn.begin_batch();
        if self.is_over() {
            // The handle may belong to another driver.
            return before;
        }
        self.state.set_waits(true);
        self.handle.sleeper.awake();
        before
    }

    /// Ends the owner's polls.
    pub(crate) fn end_owner_polls(&self) {
        self.turn.end_batch();
        if self.is_over() {
            return;
        }
        self.state.set_waits(false);
        self.poll();
    }

    #[cfg(test)]
    pub(super) fn with_kernel<T>(&self, act: impl FnOnce(&mut K) -> T) -> Option<T> {
        let mut held = self.turn.wait();
        held.with(|driver| driver.as_mut().map(|driver| act(driver.kernel())))
    }

    /// Releases the driver, which has ended except for `left` operations.
    fn release_driver(&self, driver: Driver<K>, left: u32) {
        let leaks = driver.has_lent(left);
        if leaks {
            self.handle.counters.leaked().add(u64::from(left));
            leak(driver);
        } else {
            // Before another driver uses the handle.
            drop(driver);
        }
        // A handle whose kernel failed is not reused: its callers still have to get the reason.
        let free = !leaks && self.handle.failed.load(Ordering::Acquire) == 0;
        self.state.vacate(free);
        contain(|| self.end_waker.wake());
        contain(|| self.batch_waker.wake());
    }
}

impl<K: Kernel + Send + 'static> Drive for ThreadlessDriver<K> {
    fn poll(&self) {
        if self.handle.is_elsewhere() {
            return;
        }
        loop {
            let Some(mut held) = self.enter() else {
                return;
            };
            if !self.rounds(&mut held) {
                return;
            }
            if self.is_delivering() {
                // The completions stay in the driver for the outer poll.
                held.with(|driver| driver.iter_mut().for_each(|driver| self.publish(driver)));
                return;
            }
            let done = self.collect(&mut held);
            let left = held.leave();
            self.deliver(done);
            if !self.goes_on(left) {
                return;
            }
        }
    }

    /// Delivers no completions, because the caller may be a user's `Drop`, unless another thread wanted the turn
    /// meanwhile.
    fn follow_arenas(&self) {
        if self.handle.is_elsewhere() {
            return;
        }
        let Some(mut held) = self.enter() else {
            return;
        };
        held.with(|driver| driver.iter_mut().for_each(Driver::follow_arenas));
        if held.leave().again() && !broken(Mutation::FollowerOverlooks) {
            self.poll();
        }
    }

    /// Refuses waiting operations, cancels those in flight as far as possible, and waits for the others. After that,
    /// memory that the kernel may still use is leaked.
    fn drain(&self, until_ns: Option<u64>) {
        if self.handle.is_elsewhere() {
            // The ring's memory is not mapped in the child, and the thread that had the turn may not exist.
            return;
        }
        self.turn.end();
        // Ends a sleep, and completes a read of its eventfd that is in flight.
        self.interrupt.wake(Why::Work);
        if broken(Mutation::StoppedUnlocked) {
            self.handle.stop.store(true, Ordering::SeqCst);
        }
        loop {
            let mut held = self.turn.wait();
            let driven = held.with(|driver| {
                let driver = driver.as_mut()?;
                (until_ns.into_iter()).for_each(|until_ns| driver.drain_by(until_ns));
                // In the turn, and while the driver exists: the handle does not belong to another driver yet.
                self.handle.stop.store(true, Ordering::SeqCst);
                Some(driver.drive_without_delivery())
            });
            let Some(ended) = driven else { return };
            let done = self.collect(&mut held);
            if broken(Mutation::DrainedInPlace) && ended.is_some() {
                return;
            }
            let over = ended.and_then(|left| Some((held.with(Option::take)?, left)));
            held.leave();
            self.deliver(done);
            if let Some((driver, left)) = over {
                return self.release_driver(driver, left);
            }
        }
    }
}
