//! A kernel in memory: what a ring's driver needs of one (`Kernel`), with a file system behind it and
//! every misbehaviour a real kernel allows itself, chosen by a seed.
//!
//! A `World` is what survives the drivers that use it: files, disk, dice, the record of what happened.
//! Each driver has a `SimKernel` of its own on it, as each ring belongs to one thread.

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

/// What a clock that starts with the simulation shows first, ns: 0 would mean "no deadline".
pub(crate) const START_NS: u64 = 1_000_000_000;

/// Files, dice and record.
#[derive(Debug)]
pub(crate) struct World {
    config: SimConfig,
    state: Mutex<State>,
    /// The clock of runs on the caller's thread; goes on from run to run.
    pub(crate) clock: Arc<SimClock>,
    /// A driver on the caller's thread found nothing that could ever happen.
    stuck: AtomicBool,
    /// No more faults: a run that has failed is to come to its end.
    calm: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) files: Files,
    pub(crate) dice: Dice,
    pub(crate) counts: FaultCounts,
    pub(crate) trace: Trace,
    pub(crate) high_water: HighWater,
    /// Operations started, in all.
    operations: u64,
    /// Operations answered, in all.
    pub(crate) completed: u64,
    /// The power is off: nothing has an effect any more.
    dead: bool,
}

impl State {
    /// From now on operations are answered, without having done anything.
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
            state: Mutex::new(State {
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

    /// How the kernel behaves at present.
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

    /// Nothing panics while the lock is held; if it did, a test has failed anyway.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a descriptor as `close(2)` does, without any queue.
    pub(crate) fn close(&self, fd: i32) -> i32 {
        self.state()
            .files
            .close(fd)
            .map_or_else(|errno| -errno, |_| 0)
    }

    /// Whether the driver on this thread can't go on; asking forgets it.
    pub(crate) fn take_stuck(&self) -> bool {
        self.stuck.swap(false, Ordering::Relaxed)
    }
}

/// What time it is for a simulated kernel and those who set deadlines for it.
#[derive(Debug)]
pub(crate) enum SimClock {
    /// Moves when the kernel says so: to the next thing that happens.
    Virtual(AtomicU64),
    /// The machine's, for drivers on threads of their own.
    Real,
}

impl SimClock {
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            SimClock::Virtual(now) => now.load(Ordering::Relaxed),
            SimClock::Real => call::now_ns(),
        }
    }

    /// Moves a virtual clock on; never back.
    fn advance_to(&self, ns: u64) {
        if let SimClock::Virtual(now) = self {
            now.fetch_max(ns, Ordering::Relaxed);
        }
    }
}

/// What other threads wake a simulated kernel's driver with: an eventfd's stand-in.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    signalled: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.lock() = true;
        self.ringing.notify_all();
    }

    fn is_signalled(&self) -> bool {
        *self.lock()
    }

    /// The read of it completes.
    fn silence(&self) {
        *self.lock() = false;
    }

    /// Sleeps until it is signalled, if anybody `listens`, or the time is up.
    fn wait(&self, listens: bool, most: Option<Duration>) {
        let signalled = self.lock();
        if *signalled && listens {
            return;
        }
        match most {
            // A wake-up for nothing is allowed: a waiting thread looks again.
            Some(most) => drop(self.ringing.wait_timeout(signalled, most)),
            None => drop(self.ringing.wait(signalled)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.signalled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
