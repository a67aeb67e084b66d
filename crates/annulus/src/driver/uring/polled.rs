//! # Safety
//!
//! The special case of a ring that polls devices: how such a driver is started, and how operations are handled that the
//! kernel does not poll for after all. There is one per engine that requested it, beside the others. Invariant: Lent.
#![allow(unsafe_code)]

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;

use super::{Driver, Tuning};
use crate::driver::slot::{Slot, Stage};
use crate::driver::{DriverHandle, DriverThread, Limits, Thread};
use crate::error::SetupError;
use crate::sys::errno::{ECANCELED, EOPNOTSUPP};
use crate::sys::kernel::Kernel;
use crate::sys::polling::{PolledRing, RingPoll};
use crate::sys::ring::{Ring, RingConfig};
use crate::sys::size_limit;

/// Starts a driver thread whose ring polls devices.
pub(crate) fn start(
    config: RingConfig,
    limits: Limits,
    tuning: Tuning,
) -> Result<DriverThread, SetupError> {
    let config = RingConfig {
        poll: RingPoll::Completions,
        ..config
    };
    let tuning = Tuning {
        // It never sleeps with operations in flight, and completions appear only in an enter.
        batch_delay_ns: 0,
        ..tuning
    };
    start_thread("annulus-poll", move || {
        size_limit::block_signal();
        let mut ring = Ring::new(config)?;
        ring.bind_to_thread();
        let ring = PolledRing::new(ring)?;
        let handle = Arc::new(DriverHandle::new(Box::new(ring.waker())));
        let limits = limits.within(ring.cq_entries());
        Ok(Driver::new(handle, ring, limits, tuning))
    })
}

/// Starts the thread of a driver, which that thread makes with `make`.
pub(in crate::driver) fn start_thread<K: Kernel>(
    name: &str,
    make: impl FnOnce() -> Result<Driver<K>, SetupError> + Send + 'static,
) -> Result<DriverThread, SetupError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || match make() {
        Ok(driver) => {
            if sender.send(Ok(Arc::clone(&driver.handle))).is_ok() {
                driver.run();
            }
        }
        Err(error) => drop(sender.send(Err(error))),
    };
    let failed = |error| SetupError::Os {
        what: "starting a driver thread",
        error,
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    let thread = Thread::Running(thread.map_err(failed)?);
    let ended = |_| Err(failed(io::Error::other("it ended immediately")));
    let handle = receiver.recv().unwrap_or_else(ended)?;
    Ok(DriverThread { handle, thread })
}

impl<K: Kernel> Driver<K> {
    /// Checks the device once, in place of a sleep. Such a driver needs no wake-up, because it checks its submissions
    /// each time. Returns `false` if this is not such a driver, or if nothing is in flight.
    pub(super) fn polls_on(&mut self) -> bool {
        let polls = self.kernel.polls_devices() && self.in_flight > 0;
        if polls {
            let result = self.kernel.wait(None);
            self.judge(result);
        }
        polls
    }

    /// Returns the final result of an operation. If the kernel refused to poll for it (the device has lost its queues,
    /// or the file system took another path), makes the system call instead. That blocks this driver, once per
    /// operation that was in flight; the file's later operations go elsewhere.
    pub(super) fn unless_refused(&mut self, slot: &Slot, res: i32) -> i32 {
        if res != -EOPNOTSUPP || !self.kernel.polls_devices() {
            return res;
        }
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        let is_live = side.stage == Stage::InFlight && !side.timed_out;
        if !is_live || slot.lifecycle.is_abandoned() || self.draining_until_ns.is_some() {
            return -ECANCELED;
        }
        self.handle.counters.poll_refused().add(1);
        // SAFETY: Lent: the kernel has released the op's memory, and the op belongs to this driver.
        unsafe {
            slot.stop_polling();
            slot.syscall()
        }
    }
}
