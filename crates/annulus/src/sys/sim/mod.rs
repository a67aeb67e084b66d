//! A simulated kernel: an implementation of `Kernel` with a file system in memory. A seed selects among the faults that
//! a real kernel may show.
//!
//! A `World` outlives the drivers that use it. It has the files, the disk, the random numbers and the trace. Each
//! driver has its own `SimKernel`, as each ring belongs to one thread.

mod body;
mod config;
mod dice;
mod execute;
mod files;
mod kernel;
mod memory;
mod request;
mod stat;
mod trace;
mod tree;

pub use config::{Errno, OpKind, SimConfig};
pub use trace::{Event, EventKind, FaultCounts, HighWater};

pub(crate) use dice::Dice;
pub(crate) use kernel::SimKernel;
#[cfg(test)]
pub(crate) use request::knows;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::call;
use files::Files;
use trace::Trace;

/// The first time of a virtual clock, ns. Not 0, which means "no deadline".
pub(crate) const START_NS: u64 = 1_000_000_000;

/// The state that all drivers of a simulation share.
#[derive(Debug)]
pub(crate) struct World {
    config: SimConfig,
    state: Mutex<SimState>,
    /// The clock of runs on the caller's thread. It continues from run to run.
    pub(crate) clock: Arc<SimClock>,
    /// True if a driver on the caller's thread would wait although nothing can ever happen.
    stuck: AtomicBool,
    /// True if faults are disabled, so that a failed run can finish.
    calm: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct SimState {
    pub(crate) files: Files,
    pub(crate) dice: Dice,
    pub(crate) counts: FaultCounts,
    pub(crate) trace: Trace,
    pub(crate) high_water: HighWater,
    /// The total number of operations started.
    operations: u64,
    /// The total number of operations completed.
    pub(crate) completed: u64,
    /// True if the power is off: operations have no effect.
    dead: bool,
}

impl SimState {
    /// Makes all later operations complete without any effect.
    pub(crate) fn power_off(&mut self) {
        self.dead = true;
    }

    pub(crate) fn power_on(&mut self) {
        self.dead = false;
    }
}

impl World {
    pub(crate) fn new(config: SimConfig) -> World {
        World {
            config,
            state: Mutex::new(SimState {
                files: Files::new(&config),
                dice: Dice::new(config.seed),
                counts: FaultCounts::default(),
                trace: Trace::default(),
                high_water: HighWater::default(),
                operations: 0,
                completed: 0,
                dead: false,
            }),
            clock: Arc::new(SimClock::Virtual(AtomicU64::new(START_NS))),
            stuck: AtomicBool::new(false),
            calm: AtomicBool::new(false),
        }
    }

    /// Returns the current behaviour of the kernel.
    pub(crate) fn config(&self) -> SimConfig {
        if self.calm.load(Ordering::Relaxed) {
            SimConfig::new(self.config.seed)
        } else {
            self.config
        }
    }

    fn become_calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// Locks the state. No code panics while it holds the lock, except in a test that has failed anyway.
    pub(crate) fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a descriptor as `close(2)` does, without a queue.
    pub(crate) fn close(&self, fd: i32) -> i32 {
        self.state()
            .files
            .close(fd)
            .map_or_else(|errno| -errno, |_| 0)
    }

    /// Returns and clears whether the driver on this thread cannot make progress.
    pub(crate) fn take_stuck(&self) -> bool {
        self.stuck.swap(false, Ordering::Relaxed)
    }
}

/// The clock of a simulated kernel and its deadlines.
#[derive(Debug)]
pub(crate) enum SimClock {
    /// Advanced by the kernel to the next event.
    Virtual(AtomicU64),
    /// The machine's clock, for drivers on separate threads.
    Real,
}

impl SimClock {
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            SimClock::Virtual(now) => now.load(Ordering::Relaxed),
            SimClock::Real => call::now_ns(),
        }
    }

    /// Advances a virtual clock; never moves it back.
    fn advance_to(&self, ns: u64) {
        if let SimClock::Virtual(now) = self {
            now.fetch_max(ns, Ordering::Relaxed);
        }
    }
}

/// The simulation's eventfd: other threads wake the driver with it.
#[derive(Debug, Default)]
pub(crate) struct SimEventFd {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl SimEventFd {
    pub(crate) fn signal(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    fn is_signalled(&self) -> bool {
        *self.lock()
    }

    /// Completes the read of the eventfd.
    fn clear(&self) {
        *self.lock() = false;
    }

    /// Sleeps until it is signalled, if a read is armed (`listens`), or until the time is up.
    fn wait(&self, listens: bool, most: Option<Duration>) {
        let signalled = self.lock();
        if *signalled && listens {
            return;
        }
        match most {
            // A spurious wake-up is harmless: the waiting thread checks again.
            Some(most) => drop(self.changed.wait_timeout(signalled, most)),
            None => drop(self.changed.wait(signalled)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.signalled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
