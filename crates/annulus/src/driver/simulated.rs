//! Drivers on a simulated kernel, on separate threads or polled by the calling thread. The driver
//! is the ring's; its wake-up, the closing of descriptors, and the clock differ.

use std::sync::Arc;

use super::handle::{Wake, Why};
use super::uring::polled::start_thread;
use super::uring::{Driver, Tuning};
use super::{Clock, DriverHandle, DriverThread, Limits, Opcodes, Submitter, blocking};
use crate::error::SetupError;
use crate::fd::CloseFd;
use crate::sys::sim::{SimClock, SimEventFd, SimKernel, World};

impl Wake for Arc<SimEventFd> {
    fn wake(&self, why: Why) {
        if why != Why::Deadline {
            self.signal();
        }
    }
}

impl CloseFd for World {
    fn close(&self, fd: i32) -> i32 {
        World::close(self, fd)
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        SimClock::now_ns(self)
    }
}

/// Creates a driver and its handle.
pub(crate) fn driver(
    world: &Arc<World>,
    clock: &Arc<SimClock>,
    limits: Limits,
    tuning: Tuning,
) -> (Arc<DriverHandle>, Driver<SimKernel>) {
    let eventfd = Arc::new(SimEventFd::default());
    let handle = Arc::new(DriverHandle::new(Box::new(Arc::clone(&eventfd))));
    let kernel = SimKernel::new(Arc::clone(world), Arc::clone(clock), eventfd);
    // On a clock that only the kernel advances, busy-polling and a wait for a batch would never end.
    let tuning = Tuning {
        batch_delay_ns: 0,
        busy_poll_ns: 0,
        ..tuning
    };
    (
        Arc::clone(&handle),
        Driver::new(handle, kernel, limits, tuning),
    )
}

/// Creates the driver handles of an engine with a simulated kernel.
pub(crate) fn submitter(
    handles: Vec<DriverThread>,
    world: &Arc<World>,
    clock: &Arc<SimClock>,
    blocking: blocking::Config,
) -> Submitter {
    let mut submitter = Submitter::new(handles, Opcodes::of(|_| true), blocking);
    submitter.closer = Some(Arc::clone(world) as Arc<dyn CloseFd>);
    submitter.clock = Some(Arc::clone(clock) as Arc<dyn Clock>);
    submitter
}

/// Starts a driver thread with a simulated kernel.
pub(crate) fn start(
    world: &Arc<World>,
    clock: &Arc<SimClock>,
    limits: Limits,
    tuning: Tuning,
) -> Result<DriverThread, SetupError> {
    let (world, clock) = (Arc::clone(world), Arc::clone(clock));
    start_thread("annulus-sim", move || {
        Ok(driver(&world, &clock, limits, tuning).1)
    })
}
