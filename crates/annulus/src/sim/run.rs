//! One simulated run: the executor's tasks and the driver alternate on the calling thread.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::thread;

use super::Sim;
use super::executor::Executor;
use crate::driver::uring::Driver;
use crate::driver::{DriverHandle, leak};
use crate::engine::{Engine, EngineBuilder};
use crate::metrics::Metrics;
use crate::sys::sim::{Dice, SimKernel, World};

/// The maximum number of task polls in a row before the driver is polled.
const POLLS_MAX: u64 = 8;
/// Makes the executor's random numbers differ from the kernel's.
const EXECUTOR_SALT: u64 = 0x5eed_0f0e_8ec0_7041;

thread_local! {
    /// The driver of the current run on this thread.
    static DRIVER: RefCell<Option<Rc<RefCell<CallerDriver>>>> = const { RefCell::new(None) };
}

/// The state after a run was drained.
///
/// ```
/// use annulus::sim::{Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1));
/// sim.run(async |engine| engine.write("/file", "contents").await)?;
/// let report = sim.report();
/// assert_eq!(report.slots_in_use, 0); // every operation was completed or cancelled
/// assert!(report.metrics.completed > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The counters of the driver.
    pub metrics: Metrics,
    /// Slots of the driver's table that still hold an operation. 0 unless the drain timed out.
    pub slots_in_use: usize,
    /// The number of task polls.
    pub polls: u64,
    /// The number of driver polls.
    pub driver_polls: u64,
}

/// A driver that the calling thread polls.
struct CallerDriver {
    handle: Arc<DriverHandle>,
    /// `None` once it has ended.
    driver: Option<Driver<SimKernel>>,
    polls: u64,
}

impl CallerDriver {
    /// Polls the driver once, and advances time if it has nothing to do. Returns `false` once the driver has ended.
    fn drive(&mut self) -> bool {
        let Some(driver) = &mut self.driver else {
            return false;
        };
        self.polls += 1;
        let Some(left) = driver.drive() else {
            return true;
        };
        let driver = self.driver.take();
        if left > 0 {
            // The kernel still has the memory of these operations.
            self.handle.counters.leaked().add(u64::from(left));
            leak((driver, Arc::clone(&self.handle)));
        }
        false
    }

    /// Polls the driver once, without advancing time.
    fn poll(&mut self) {
        if let Some(driver) = &mut self.driver {
            self.polls += 1;
            driver.poll();
        }
    }
}

/// Runs the driver on this thread to its end. Called by an engine that ends.
fn finish_on_this_thread() {
    // Also `None` while the thread's cells are being dropped.
    let caller_driver = DRIVER.try_with(|driver| driver.borrow().clone());
    let Some(caller_driver) = caller_driver.ok().flatten() else {
        return;
    };
    // Borrowed if a waker or a buffer's drop runs within the driver. The run loop will finish the driver.
    let Ok(mut caller_driver) = caller_driver.try_borrow_mut() else {
        return;
    };
    if caller_driver.handle.stopping() {
        while caller_driver.drive() {}
    }
}

/// Ends a run on return and on panic.
struct Guard {
    world: Arc<World>,
    executor: Rc<Executor>,
    caller_driver: Rc<RefCell<CallerDriver>>,
}

impl Guard {
    /// Drops the remaining tasks and drains the driver.
    fn finish(&self) {
        self.executor.leave();
        self.caller_driver.borrow().handle.request_stop();
        finish_on_this_thread();
        DRIVER.set(None);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "the simulation failed with seed {}",
                self.world.config().seed
            );
        }
        self.finish();
    }
}

/// Runs `body` to its end, or until the kernel has completed `crash_after` operations.
pub(super) fn run<T>(
    sim: &Sim,
    builder: &EngineBuilder,
    crash_after: Option<u64>,
    body: impl AsyncFnOnce(Engine) -> T,
) -> Option<T> {
    let world = &sim.world;
    let executor = Executor::enter();
    let (engine, handle, driver) = builder.build_sim_on_this_thread(world, finish_on_this_thread);
    let caller_driver = CallerDriver {
        handle: Arc::clone(&handle),
        driver: Some(driver),
        polls: 0,
    };
    let caller_driver = Rc::new(RefCell::new(caller_driver));
    DRIVER.set(Some(Rc::clone(&caller_driver)));
    let guard = Guard {
        world: Arc::clone(world),
        executor,
        caller_driver,
    };
    let crash_at = crash_after.map(|completions| world.state().completed + completions);
    let (output, polls) = guard.go_on(engine, crash_at, body);
    if output.is_none() {
        world.state().power_off();
    }
    guard.finish();
    world.state().power_on();
    let mut metrics = Metrics::default();
    metrics.add(&handle.counters);
    let report = Report {
        metrics,
        slots_in_use: handle.table.in_use(),
        polls,
        driver_polls: guard.caller_driver.borrow().polls,
    };
    *sim.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    output
}

impl Guard {
    fn go_on<T>(
        &self,
        engine: Engine,
        crash_at: Option<u64>,
        body: impl AsyncFnOnce(Engine) -> T,
    ) -> (Option<T>, u64) {
        let mut dice = Dice::new(self.world.config().seed ^ EXECUTOR_SALT);
        let mut main = pin!(body(engine));
        let mut polls = 0;
        loop {
            for _ in 0..=dice.below(POLLS_MAX) {
                match self.executor.poll_one(main.as_mut(), &mut dice) {
                    None => break,
                    Some(None) => polls += 1,
                    Some(output) => return (output, polls),
                }
            }
            if crash_at.is_some_and(|completions| self.world.state().completed >= completions) {
                return (None, polls);
            }
            if self.executor.is_idle() {
                self.caller_driver.borrow_mut().drive();
                let stuck = self.world.take_stuck() && self.executor.is_idle();
                assert!(
                    !stuck,
                    "the simulation cannot continue: every task waits for an event that is not simulated"
                );
            } else {
                self.caller_driver.borrow_mut().poll();
            }
        }
    }
}
