//! One simulated run: the executor's tasks and the driver take turns on the calling thread.

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
/// Sets the executor's dice apart from the kernel's.
const EXECUTOR_SALT: u64 = 0x5eed_0f0e_8ec0_7041;

thread_local! {
    /// The driver of the run under way on this thread.
    static DRIVER: RefCell<Option<Rc<RefCell<CallerDriver>>>> = const { RefCell::new(None) };
}

/// What a run left behind, after it was drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What the driver counted.
    pub metrics: Metrics,
    /// Slots of the driver's table that still hold an operation. 0 unless the drain timed out.
    pub slots_in_use: usize,
    /// Times that a task was polled.
    pub polls: u64,
    /// Polls of the driver.
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
    /// Polls the driver once; with nothing to do, time passes. False: it has ended.
    fn step(&mut self) -> bool {
        let Some(driver) = &mut self.driver else {
            return false;
        };
        self.polls += 1;
        let Some(left) = driver.step() else {
            return true;
        };
        let driver = self.driver.take();
        if left > 0 {
            // The kernel was given their memory and never gave it back.
            self.handle.counters.leaked().add(u64::from(left));
            leak((driver, Arc::clone(&self.handle)));
        }
        false
    }

    /// Polls the driver once, and lets no time pass.
    fn poll(&mut self) {
        if let Some(driver) = &mut self.driver {
            self.polls += 1;
            driver.poll();
        }
    }
}

/// Runs the driver on this thread to its end. Called by an engine that ends.
fn finish_on_this_thread() {
    // None, too, while the thread's cells are being dropped.
    let caller_driver = DRIVER.try_with(|driver| driver.borrow().clone());
    let Some(caller_driver) = caller_driver.ok().flatten() else {
        return;
    };
    // Borrowed: a waker or a buffer's drop runs on the driver. The run loop will finish it.
    let Ok(mut caller_driver) = caller_driver.try_borrow_mut() else {
        return;
    };
    if caller_driver.handle.stopping() {
        while caller_driver.step() {}
    }
}

/// Sees to the end of a run, however it comes.
struct Guard {
    world: Arc<World>,
    executor: Rc<Executor>,
    caller_driver: Rc<RefCell<CallerDriver>>,
}

impl Guard {
    /// Drains what is left.
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

/// Runs `body` to its end, or until the kernel has given `crash_after` answers.
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
                self.caller_driver.borrow_mut().step();
                let stuck = self.world.take_stuck() && self.executor.is_idle();
                assert!(
                    !stuck,
                    "nothing can happen any more: the future waits for something that is not simulated"
                );
            } else {
                self.caller_driver.borrow_mut().poll();
            }
        }
    }
}
