//! The timer that makes a threadless driver be polled at its next deadline. There is at most one, whatever the
//! deadlines.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::{Fixture, NoWake, Still, blocking_threads, limits, tuning};
use crate::driver::submitter::Clock;
use crate::driver::threadless::ThreadlessDriver;
use crate::driver::threadless_state::Drive;
use crate::driver::{DriverHandle, DriverThread, Opcodes, Operation, Submitter, Thread};
use crate::op::{FileOp, Sleep};
use crate::sys::errno::ETIME;
use crate::sys::kernel::Kernel;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{Ring, RingConfig, SetupMode};
use crate::sys::sqe::Sqe;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);
const ROUNDS: u32 = 20;

impl Clock for Still {
    fn now_ns(&self) -> u64 {
        Kernel::now_ns(self)
    }
}

impl Fixture {
    /// Creates a fixture with deadlines on the kernel's clock.
    fn timed() -> Fixture {
        let mut fixture = Fixture::new();
        fixture.submitter.clock = Some(Arc::new(fixture.kernel.clone()));
        fixture
    }
}

fn is_completed<T: FileOp>(operation: &mut Operation<'_, T>) -> bool {
    let mut context = std::task::Context::from_waker(Waker::noop());
    std::pin::Pin::new(operation).poll(&mut context).is_ready()
}

/// Starts a sleep.
fn begun(submitter: &Submitter, time: Duration) -> Operation<'_, Sleep> {
    let mut sleep = Operation::new(submitter, Sleep::new(time)).timeout(time);
    assert!(!is_completed(&mut sleep));
    sleep
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

#[test]
fn a_long_deadline_and_many_short_ones_have_one_timer_at_a_time() {
    let fixture = Fixture::timed();
    let mut long = begun(&fixture.submitter, LONG);
    for _ in 0..ROUNDS {
        let mut short = begun(&fixture.submitter, SHORT);
        let at_ns = Clock::now_ns(&fixture.kernel) + ns(SHORT);
        assert_eq!(fixture.kernel.timers(), [at_ns]);
        fixture.kernel.pass(ns(SHORT));
        fixture.driver.poll();
        assert!(is_completed(&mut short));
        assert_eq!(fixture.kernel.timers(), [ns(LONG)]);
    }
    fixture.kernel.pass(ns(LONG));
    fixture.driver.poll();
    assert!(is_completed(&mut long));
    assert!(fixture.kernel.timers().is_empty());
    fixture.driver.drain(None);
}

#[test]
fn deadlines_that_are_met_leave_one_timer_that_fires_once() {
    let fixture = Fixture::timed();
    let long = begun(&fixture.submitter, LONG);
    for n in 1..ROUNDS {
        drop(begun(&fixture.submitter, LONG / 2 / n));
    }
    assert_eq!(fixture.kernel.timers().len(), 1);
    fixture.kernel.pass(fixture.kernel.timers()[0]);
    fixture.driver.poll();
    assert_eq!(fixture.kernel.timers(), [ns(LONG)]);
    drop(long);
    fixture.driver.drain(None);
}

#[test]
fn a_timer_that_fires_while_it_is_moved_is_armed_again() {
    let fixture = Fixture::timed();
    let _long = begun(&fixture.submitter, LONG);
    // It has fired, and the driver has not noticed yet.
    fixture.kernel.pass(ns(LONG) - ns(SHORT) * 3);
    let early = fixture.kernel.state.lock().unwrap().timers[0].1;
    fixture.kernel.state.lock().unwrap().timers.clear();
    let mut short = begun(&fixture.submitter, SHORT);
    assert!(fixture.kernel.timers().is_empty());
    fixture.kernel.complete(early, -ETIME);
    fixture.driver.poll();
    let at_ns = Clock::now_ns(&fixture.kernel) + ns(SHORT);
    assert_eq!(fixture.kernel.timers(), [at_ns]);
    fixture.kernel.pass(ns(SHORT));
    fixture.driver.poll();
    assert!(is_completed(&mut short));
    fixture.driver.drain(None);
}

#[test]
fn a_thread_that_waits_in_its_ring_needs_no_timer() {
    let fixture = Fixture::timed();
    fixture.driver.begin_owner_polls();
    let _sleeps = [LONG, SHORT].map(|time| begun(&fixture.submitter, time));
    fixture.driver.poll();
    assert!(fixture.kernel.timers().is_empty());
    fixture.driver.end_owner_polls();
    assert_eq!(fixture.kernel.timers(), [ns(SHORT)]);
    fixture.driver.drain(None);
}

/// Returns the number of timers, by cancelling those in the kernel; `None` if the kernel does not count (before Linux
/// 5.19). One may have fired since the driver noticed its deadline, and then there is none in the kernel.
fn timers(ring: &mut Ring) -> Option<usize> {
    const COUNT: u64 = 77;
    assert!(ring.push(Sqe::cancel_all(COUNT)));
    let mut cqes = Vec::new();
    loop {
        ring.wait(None).unwrap();
        ring.reap(&mut cqes);
        if let Some(cqe) = cqes.iter().find(|cqe| cqe.user_data == COUNT) {
            let fired = cqes.iter().filter(|cqe| cqe.res == -ETIME).count();
            let pending = usize::try_from(cqe.res).ok()?;
            return Some(pending + fired);
        }
    }
}

#[test]
fn a_ring_without_a_thread_has_one_timer_with_the_kernel() {
    let ring = Ring::new(RingConfig {
        sq_entries: 8,
        cq_entries: 128,
        setup_mode: SetupMode::Cooperative,
        workers: [1, 1],
        poll: RingPoll::Nothing,
    });
    let ring = match ring {
        Ok(ring) => ring,
        Err(error) => return println!("skip: {error}"),
    };
    let handle = Arc::new(DriverHandle::threadless());
    let driver = ThreadlessDriver::new(
        Arc::clone(&handle),
        ring,
        Box::new(NoWake),
        limits(),
        tuning(),
    );
    let thread = Thread::None;
    let handles = vec![DriverThread { handle, thread }];
    let submitter = Submitter::new(handles, Opcodes::of(|_| true), blocking_threads());
    let long = begun(&submitter, LONG);
    for _ in 0..ROUNDS {
        let mut short = begun(&submitter, SHORT);
        while !is_completed(&mut short) {
            driver.poll();
            std::thread::yield_now();
        }
    }
    match driver.with_kernel(timers).flatten() {
        Some(timers) => assert_eq!(timers, 1),
        None => println!("skip: this kernel cancels one operation at a time"),
    }
    drop(long);
    driver.drain(None);
}
