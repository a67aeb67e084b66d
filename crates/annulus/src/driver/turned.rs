//! A driver without a thread: whoever has reason to turns it, under a lock that nobody waits for. One
//! per thread that keeps a ring of its own.
//!
//! Who finds the lock taken leaves a mark instead (`again`), and the holder looks for it after letting
//! go: nothing that was handed over is overlooked, and nobody blocks. Wakers and buffers are foreign
//! code and run with the lock released. Checked by loom (`ci/loom`).
//!
//! *Attended* is a lane whose thread has promised to turn it before it sleeps: then a hand-over only
//! queues, until there are enough for a submission. Otherwise every hand-over turns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, TryLockError};
use std::task::Waker;

use super::finish::Done;
use super::own::Turn;
use super::uring::{Driver, Tuning};
use super::{Lane, Limits, Wake, keep_for_ever};
use crate::sync::{AtomicBool, AtomicWaker, Mutex, Ordering};
use crate::sys::errno::EBADR;
use crate::sys::kernel::Kernel;

/// Rounds of a turn before what has been answered is delivered, however much more there is to do.
const ROUNDS_MAX: u32 = 16;

/// The driver, its lane and its lock.
pub(crate) struct Turned<K> {
    lane: Arc<Lane>,
    /// `None` when it has been drained.
    driver: Mutex<Option<Driver<K>>>,
    /// There may be something to do that the holder of the lock has not seen.
    again: AtomicBool,
    /// The holder of the lock sleeps in the kernel, or is about to.
    asleep: AtomicBool,
    /// Ends that sleep.
    interrupt: Box<dyn Wake>,
    /// The thread turns it before it sleeps, and has done so.
    attended: AtomicBool,
    /// Who is to know that the driver has gone.
    attendant: AtomicWaker,
    /// An empty list to deliver from, so that a turn allocates nothing.
    spare: Mutex<Done>,
}

impl<K: Kernel + Send + 'static> Turned<K> {
    /// `interrupt` ends a wait of `kernel`; `lane` is a new one, or one that has been drained.
    pub(crate) fn new(
        lane: Arc<Lane>,
        kernel: K,
        interrupt: Box<dyn Wake>,
        limits: Limits,
        tuning: Tuning,
    ) -> Arc<Turned<K>> {
        let driver = Driver::new(Arc::clone(&lane), kernel, limits, tuning);
        lane.sleeper.about_to_sleep();
        let turned = Arc::new(Turned {
            lane: Arc::clone(&lane),
            driver: Mutex::new(Some(driver)),
            again: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            interrupt,
            attended: AtomicBool::new(false),
            attendant: AtomicWaker::new(),
            spare: Mutex::new(Done::default()),
        });
        if let Some(own) = &lane.own {
            own.occupy(Arc::clone(&turned) as Arc<dyn Turn>);
        }
        turned
    }

    /// Submits what waits, and answers what has completed. Never blocks.
    pub(crate) fn turn(&self) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst) {
            let mut held = match self.driver.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(held)) => held.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    if self.asleep.load(Ordering::SeqCst) {
                        self.interrupt.wake();
                    }
                    return;
                }
            };
            let Some(driver) = held.as_mut() else { return };
            self.work(driver);
            let done = self.collect(driver);
            drop(held);
            self.deliver(done);
            if self.lane.stopping() {
                // The ring is of no more use; or somebody drains it, who waits for the lock.
                return self.drain();
            }
        }
    }

    /// Everything that can be done without sleeping.
    fn work(&self, driver: &mut Driver<K>) {
        for _ in 0..ROUNDS_MAX {
            self.again.store(false, Ordering::SeqCst);
            if !self.attended.load(Ordering::Relaxed) {
                // Whoever hands over from now on turns.
                self.lane.sleeper.about_to_sleep();
            }
            match catch_unwind(AssertUnwindSafe(|| driver.work())) {
                Ok(true) => {}
                Ok(false) => return driver.set_timer(),
                Err(panic) => {
                    // A buffer that panics where it must not. Nobody is left waiting for it.
                    std::mem::forget(panic);
                    return driver.fail(EBADR);
                }
            }
        }
        self.again.store(true, Ordering::SeqCst);
    }

    fn collect(&self, driver: &mut Driver<K>) -> Done {
        if let Some(own) = &self.lane.own {
            own.publish(driver.in_flight(), driver.chunk());
        }
        let mut done = match self.spare.try_lock() {
            Ok(mut spare) => std::mem::take(&mut *spare),
            Err(_) => Done::default(),
        };
        driver.swap_done(&mut done);
        done
    }

    fn deliver(&self, mut done: Done) {
        done.deliver(&self.lane);
        if let Ok(mut spare) = self.spare.try_lock() {
            *spare = done;
        }
    }

    /// The thread is about to sleep elsewhere: nothing stays unsubmitted.
    pub(crate) fn before_park(&self) {
        self.attended.store(true, Ordering::Relaxed);
        self.turn();
        if self.linger() {
            self.turn();
        }
        self.lane.sleeper.about_to_sleep();
        if !self.lane.inbox.is_empty() || !self.lane.cancels.is_empty() {
            self.turn();
        }
    }

    /// Looks out for a while, where that was asked for and has paid. True: there is something to do.
    fn linger(&self) -> bool {
        match self.driver.try_lock() {
            Ok(mut held) => held.as_mut().is_some_and(Driver::linger),
            Err(_) => false,
        }
    }

    /// The thread is up: from now on it is the one that turns.
    pub(crate) fn after_unpark(&self) {
        self.attended.store(true, Ordering::Relaxed);
        self.lane.sleeper.awake();
        self.turn();
    }

    /// Turns, and sleeps in the kernel if there was nothing to do, until something completes, is
    /// handed over, or `awaited` is set and the driver woken.
    pub(crate) fn turn_or_sleep(&self, awaited: &AtomicBool) {
        let mut held = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = held.as_mut() else { return };
        driver.keep_rest(true);
        self.work(driver);
        driver.keep_rest(false);
        let done = self.collect(driver);
        if done.is_empty() {
            self.asleep.store(true, Ordering::SeqCst);
            if !self.again.load(Ordering::SeqCst) && !awaited.load(Ordering::SeqCst) {
                driver.sleep();
            }
            self.asleep.store(false, Ordering::SeqCst);
        }
        drop(held);
        self.deliver(done);
    }

    /// Ends a `turn_or_sleep` that sleeps, or is about to.
    pub(crate) fn interrupt(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.interrupt.wake();
        }
    }

    /// Who is woken when the driver has gone.
    pub(crate) fn set_attendant(&self, waker: &Waker) {
        self.attendant.register(waker);
    }

    /// Whether the driver has gone, or is about to.
    pub(crate) fn is_over(&self) -> bool {
        self.lane.stopping()
    }

    /// Starts or ends attendance by a thread that runs nothing but this driver and its future.
    pub(crate) fn attend(&self, attended: bool) {
        self.attended.store(attended, Ordering::Relaxed);
        if let Some(own) = &self.lane.own {
            own.set_waits(attended);
        }
        if attended {
            self.lane.sleeper.awake();
        } else {
            self.turn();
        }
    }

    /// Refuses what waits, cancels what can be cancelled, and waits for the rest, at most as long as
    /// the drain timeout says. Past it, what the kernel may still touch is leaked.
    pub(crate) fn drain(&self) {
        self.lane.stop.store(true, Ordering::SeqCst);
        // Ends a sleep, and a read of its eventfd that is in flight.
        self.interrupt.wake();
        loop {
            let mut held = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(driver) = held.as_mut() else { return };
            let ended = driver.advance();
            let done = self.collect(driver);
            let over = ended.and_then(|left| held.take().map(|driver| (driver, left)));
            drop(held);
            self.deliver(done);
            if let Some((driver, left)) = over {
                let leaks = driver.has_lent(left);
                if leaks {
                    self.lane.counters.leaked.add(u64::from(left));
                    keep_for_ever(driver);
                }
                if let Some(own) = &self.lane.own {
                    own.vacate(!leaks);
                }
                self.attendant.wake();
                return;
            }
        }
    }
}

impl<K: Kernel + Send + 'static> Turn for Turned<K> {
    fn turn(&self) {
        Turned::turn(self);
    }

    fn drain(&self) {
        Turned::drain(self);
    }
}
