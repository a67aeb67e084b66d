//! Drivers on a simulated kernel: on threads of their own, or turned by the calling thread. The
//! driver is the ring's; what differs is who wakes it, who closes its descriptors, and its clock.

use std::sync::{Arc, mpsc};
use std::thread;

use super::uring::{Driver, Tuning};
use super::{Clock, Lane, LaneThread, Limits, Opcodes, Submitter, Thread, Wake, blocking};
use crate::error::SetupError;
use crate::fd::CloseFd;
use crate::sys::sim::{Bell, SimClock, SimKernel, World};

impl Wake for Arc<Bell> {
    fn wake(&self) {
        self.ring();
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

/// A driver, and its lane.
pub(crate) fn driver(
    world: &Arc<World>,
    clock: &Arc<SimClock>,
    limits: Limits,
    tuning: Tuning,
) -> (Arc<Lane>, Driver<SimKernel>) {
    let bell = Arc::new(Bell::default());
    let lane = Arc::new(Lane::new(Box::new(Arc::clone(&bell))));
    let kernel = SimKernel::new(Arc::clone(world), Arc::clone(clock), bell);
    // On a clock that only the kernel moves, looking out for a while would take for ever.
    let tuning = Tuning {
        look_out_ns: 0,
        ..tuning
    };
    (Arc::clone(&lane), Driver::new(lane, kernel, limits, tuning))
}

/// The lanes of an engine whose kernel is simulated.
pub(crate) fn submitter(
    lanes: Vec<LaneThread>,
    world: &Arc<World>,
    clock: &Arc<SimClock>,
    blocking: blocking::Config,
) -> Submitter {
    let mut submitter = Submitter::new(lanes, Opcodes::of(|_| true), blocking);
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
) -> Result<LaneThread, SetupError> {
    let (tell, told) = mpsc::sync_channel(1);
    let (world, clock) = (Arc::clone(world), Arc::clone(clock));
    let run = move || {
        let (lane, driver) = driver(&world, &clock, limits, tuning);
        if tell.send(lane).is_ok() {
            driver.drive();
        }
    };
    let thread = thread::Builder::new()
        .name("annulus-sim".to_owned())
        .spawn(run)
        .map_err(|error| SetupError::Os {
            what: "starting a driver thread",
            error,
        })?;
    match told.recv() {
        Ok(lane) => Ok(LaneThread {
            lane,
            thread: Thread::Running(thread),
        }),
        Err(_) => {
            let error = std::io::Error::other("it ended at once");
            Err(SetupError::Os {
                what: "a driver thread",
                error,
            })
        }
    }
}
