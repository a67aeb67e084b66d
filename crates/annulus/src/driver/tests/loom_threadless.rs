//! # Safety
//!
//! Threadless drivers under the model checker, as in `loom_models.rs`: which thread polls them, which changes it sees,
//! and which thread ends them. If no thread is going to process an operation, its waiting thread waits forever, and the
//! checker finds that. Each model names the mistakes that it finds, and `loom_mutations.rs` makes them. The models
//! uphold the driver's invariants: Lent, Once.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Count, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::sync::Notify;
use loom::thread;

use super::loom_models::{Drops, EventFdWake, Nothing, block_on, poll};
use crate::driver::threadless::ThreadlessDriver;
use crate::driver::threadless_state::Drive;
use crate::driver::turn::{Attempt, Turn};
use crate::driver::uring::{Tuning, WAKE};
use crate::driver::{
    DriverHandle, DriverThread, Limits, Opcodes, Operation, Submitter, Thread, blocking,
};
use crate::sync::{AtomicBool, Ordering};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ECANCELED;
use crate::sys::kernel::{Entered, Kernel};
use crate::sys::sqe::{Cqe, Sqe, opcode};

/// A kernel that completes immediately, or after a cancel.
struct Puppet {
    eventfd: Arc<Notify>,
    late: bool,
    in_flight: Vec<u64>,
    cqes: Vec<Cqe>,
    armed: bool,
}

impl Puppet {
    fn complete(&mut self, user_data: u64, res: i32) {
        self.cqes.push(Cqe {
            user_data,
            res,
            flags: 0,
        });
    }
}

impl Kernel for Puppet {
    fn push(&mut self, sqe: Sqe) -> bool {
        if sqe.opcode == opcode::NOP && self.late {
            self.in_flight.push(sqe.user_data);
        } else {
            self.complete(sqe.user_data, 0);
        }
        if sqe.opcode != opcode::NOP {
            for user_data in std::mem::take(&mut self.in_flight) {
                self.complete(user_data, -ECANCELED);
            }
        }
        true
    }

    fn unsubmitted(&self) -> u32 {
        0
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        if !self.cqes.is_empty() {
            return Ok(());
        }
        assert!(
            self.armed || timeout_ns.is_some(),
            "a sleep that no wake-up would end"
        );
        if std::mem::take(&mut self.armed) {
            self.eventfd.wait();
            self.complete(WAKE, 8);
        }
        Ok(())
    }

    fn ready(&mut self) -> bool {
        !self.cqes.is_empty()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        into.append(&mut self.cqes);
    }

    fn arm_wake(&mut self, _: u64) -> bool {
        self.armed = true;
        true
    }

    fn supports(&self, _: u8) -> bool {
        true
    }

    fn entered(&self) -> Entered {
        Entered::default()
    }

    fn now_ns(&self) -> u64 {
        1
    }

    fn pause(&mut self, _: u64) {}
}

const LIMITS: Limits = Limits {
    in_flight: 8,
    in_flight_bytes: 8,
};

fn drive(handle: &Arc<DriverHandle>, late: bool) -> Arc<ThreadlessDriver<Puppet>> {
    let eventfd = Arc::new(Notify::new());
    let kernel = Puppet {
        eventfd: Arc::clone(&eventfd),
        late,
        in_flight: Vec::new(),
        cqes: Vec::new(),
        armed: false,
    };
    let tuning = Tuning {
        // Queued operations stay queued until another thread polls for another reason.
        chunk: Some(8),
        alone: true,
        batch_delay_ns: 0,
        busy_poll_ns: 0,
        drain_timeout: Duration::from_secs(1),
    };
    ThreadlessDriver::new(
        Arc::clone(handle),
        kernel,
        Box::new(EventFdWake(eventfd)),
        LIMITS,
        tuning,
    )
}

/// Checks a model with a higher limit, because the models are longer than the checker expects.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    // With three preemptions the two submitting threads take minutes; all mistakes are found with two.
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// A threadless driver, its handle, and the threads that submit to it.
struct Stage {
    handle: Arc<DriverHandle>,
    driver: Arc<ThreadlessDriver<Puppet>>,
    submitter: Submitter,
    drops: Arc<Drops>,
}

impl Stage {
    fn new(late: bool) -> Arc<Stage> {
        let handle = Arc::new(DriverHandle::threadless());
        let driver = drive(&handle, late);
        let config = blocking::Config {
            threads: 1,
            limits: LIMITS,
            drain_timeout: Duration::ZERO,
            affinity: None,
        };
        let handles = vec![DriverThread {
            handle: Arc::clone(&handle),
            thread: Thread::None,
        }];
        Arc::new(Stage {
            handle,
            driver,
            submitter: Submitter::new(handles, Opcodes::of(|_| true), config),
            drops: Arc::new(Drops {
                count: Count::new(0),
                one_more: Notify::new(),
            }),
        })
    }

    fn operation(&self) -> Operation<'_, Nothing> {
        Operation::new(&self.submitter, Nothing(Arc::clone(&self.drops)))
    }

    fn awaits(&self) -> i32 {
        let mut operation = self.operation();
        block_on(|context| poll(&mut operation, context))
    }

    fn submit(&self) -> Operation<'_, Nothing> {
        let mut operation = self.operation();
        let _ = poll(&mut operation, &mut Context::from_waker(Waker::noop()));
        operation
    }

    fn ends(&self, operations: usize) {
        self.driver.drain(None);
        assert!(self.driver.is_over());
        assert_eq!(self.drops.count.load(SeqCst), operations);
        assert_eq!(self.handle.table.in_use(), 0);
        assert_eq!(self.handle.counters.leaked().get(), 0);
    }
}

/// Finds: a sleep that begins although there is a mark.
#[test]
fn a_mark_prevents_the_sleep_or_finds_it() {
    check(|| {
        let stage = Arc::new((Turn::new(()), AtomicBool::new(false), Notify::new()));
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || {
            let (turn, work, eventfd) = &*other;
            // Relaxed: the word orders it.
            work.store(true, Ordering::Relaxed);
            match turn.enter() {
                Attempt::Held(held) => assert!(!held.leave().is_over()),
                Attempt::Taken { asleep: true } => eventfd.notify(),
                Attempt::Taken { asleep: false } => {}
            }
        });
        let (turn, work, eventfd) = &*stage;
        loop {
            let mut held = turn.wait();
            held.answer();
            if work.load(Ordering::Relaxed) {
                break;
            }
            if held.fall_asleep() {
                eventfd.wait();
            }
        }
        thread.join().unwrap();
    });
}

/// Finds: a thread that finds the turn taken and leaves no mark, and one that ends its turn and overlooks a mark.
#[test]
fn a_thread_that_finds_the_turn_taken_is_noticed() {
    check(|| {
        let stage = Stage::new(false);
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || assert_eq!(other.awaits(), 0));
        assert_eq!(stage.awaits(), 0);
        thread.join().unwrap();
        stage.ends(2);
    });
}

/// Finds: a thread that drops an arena and overlooks a mark.
#[test]
fn a_thread_that_drops_an_arena_notices_one_that_found_the_turn_taken() {
    check(|| {
        let stage = Stage::new(false);
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || other.handle.wake_for_registration());
        assert_eq!(stage.awaits(), 0);
        thread.join().unwrap();
        stage.ends(1);
    });
}

/// Finds: a batch that goes on after its end, so that later submissions and cancels are not polled.
#[test]
fn operations_queued_until_a_flush_are_submitted() {
    check(|| {
        let stage = Stage::new(true);
        let first = stage.submit();
        assert!(stage.driver.begin_batch());
        let second = stage.submit();
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || {
            other.driver.flush();
            // It sleeps indefinitely.
        });
        drop(first);
        while stage.drops.count.load(SeqCst) < 1 {
            stage.drops.one_more.wait();
        }
        drop(second);
        let third = stage.submit();
        drop(third);
        while stage.drops.count.load(SeqCst) < 3 {
            stage.drops.one_more.wait();
        }
        thread.join().unwrap();
        stage.ends(3);
    });
}

/// Finds: a batch that marks the driver as awake when it has been ended already.
#[test]
fn a_batch_that_begins_while_another_ends_leaves_nothing_queued() {
    check(|| {
        let stage = Stage::new(true);
        let first = stage.submit();
        let other = Arc::clone(&stage);
        let look = |stage: &Stage| {
            let context = Context::from_waker(Waker::noop());
            if stage.driver.poll_batch(&context) == Poll::Ready(true) {
                stage.driver.flush();
            }
        };
        // The executor's task, which has ended the last batch and looks for the next one.
        let thread = thread::spawn(move || look(&other));
        assert!(stage.driver.begin_batch());
        let second = stage.submit();
        thread.join().unwrap();
        // The batch has woken the task.
        look(&stage);
        assert!(stage.handle.inbox.is_empty());
        drop((first, second));
        stage.ends(2);
    });
}

/// Finds: the end of a whole read that does not submit the read that waited for it.
#[test]
fn a_whole_read_that_waits_for_one_that_ends_is_submitted() {
    check(|| {
        let stage = Stage::new(true);
        stage.handle.begin_whole_read();
        stage.handle.begin_whole_read();
        assert!(stage.driver.begin_batch());
        let first = stage.submit();
        assert!(!stage.handle.inbox.is_empty(), "it waits for the other");
        // The other one ends on another thread, and no thread flushes.
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || other.handle.end_whole_read());
        thread.join().unwrap();
        assert!(stage.handle.inbox.is_empty());
        drop(first);
        stage.driver.flush();
        stage.ends(1);
    });
}

/// Finds: a flush that leaves whole reads queued, because they wait for one that ends on another thread meanwhile.
#[test]
fn whole_reads_queued_while_others_end_are_submitted_by_a_flush() {
    check(|| {
        let stage = Stage::new(true);
        for _ in 0..3 {
            stage.handle.begin_whole_read();
        }
        assert!(stage.driver.begin_batch());
        let first = stage.submit();
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || other.handle.end_whole_read());
        // Each thread may overlook what the other has just counted.
        let second = stage.submit();
        stage.driver.flush();
        thread.join().unwrap();
        assert!(stage.handle.inbox.is_empty());
        // The owner sleeps from here on, so these cancels, and this operation, are submitted by their own thread.
        drop((first, second));
        drop(stage.submit());
        while stage.drops.count.load(SeqCst) < 3 {
            stage.drops.one_more.wait();
        }
        stage.ends(3);
    });
}

/// Finds: a thread that looks for missed work and overlooks a mark.
#[test]
fn a_thread_that_looks_for_missed_work_notices_one_that_found_the_turn_taken() {
    check(|| {
        let stage = Stage::new(false);
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || {
            other.driver.inspect();
        });
        assert_eq!(stage.awaits(), 0);
        thread.join().unwrap();
        stage.ends(1);
    });
}

/// Finds: a driver that publishes that nothing is in flight and does not check the inbox afterwards.
#[test]
fn an_operation_left_to_a_completion_that_has_already_come_is_submitted() {
    check(|| {
        let stage = Stage::new(true);
        let first = stage.submit();
        assert!(stage.driver.begin_batch());
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || drop(other.submit()));
        drop(first);
        stage.driver.poll();
        thread.join().unwrap();
        // No thread flushes in this model: the operation was submitted by the thread that pushed it, or by the one that
        // polled.
        assert!(stage.handle.inbox.is_empty());
        stage.ends(2);
    });
}

/// Finds: a sleep that begins without a last look at `awaited`.
#[test]
fn a_driver_that_sleeps_in_its_ring_is_woken_by_wakers_and_submissions() {
    check(|| {
        let stage = Stage::new(false);
        let woken = Arc::new((AtomicBool::new(false), AtomicBool::new(true)));
        stage.driver.begin_owner_polls();
        let (other, signal) = (Arc::clone(&stage), Arc::clone(&woken));
        let thread = thread::spawn(move || {
            assert_eq!(other.awaits(), 0);
            signal.0.store(true, Ordering::SeqCst);
            // An exchange, because the checker would order a store before one that did not see it.
            signal.1.swap(true, Ordering::SeqCst);
            other.driver.interrupt();
        });
        let (ready, awaited) = &*woken;
        loop {
            if awaited.swap(false, Ordering::SeqCst) && ready.load(Ordering::SeqCst) {
                break;
            }
            stage.driver.drive(awaited);
        }
        stage.driver.end_owner_polls();
        thread.join().unwrap();
        stage.ends(1);
    });
}

/// Finds: a driver that is drained and stays in place, so that the next drain finds it again; the end of a turn that
/// leaves a thread waiting for it.
#[test]
fn operations_during_a_drain_are_completed_or_refused_and_the_driver_ends_once() {
    for late in [false, true] {
        check(move || {
            let stage = Stage::new(late);
            let other = Arc::clone(&stage);
            let thread = thread::spawn(move || {
                // No other driver takes the operations that this one refuses.
                other.submitter.drain();
                other.driver.drain(None);
            });
            let result = stage.awaits();
            assert!([0, -ECANCELED, -EngineError::Ended.code()].contains(&result));
            stage.driver.poll();
            thread.join().unwrap();
            stage.ends(1);
        });
    }
}

/// Finds: a drained driver that is drained again, and sets the stop flag before it has the turn and finds a driver.
#[test]
fn a_handle_with_a_new_driver_is_left_alone_by_the_old_one() {
    check(|| {
        let stage = Stage::new(true);
        let old = stage.submit();
        let other = Arc::clone(&stage);
        let thread = thread::spawn(move || {
            other.driver.drain(None);
            // The other thread may be the one that ends the driver, and may not have done so yet.
            while !other.handle.reopen() {
                thread::yield_now();
            }
            let new = drive(&other.handle, false);
            assert_eq!(other.awaits(), 0);
            new.drain(None);
        });
        drop(old);
        // As the executor does when it is notified that the driver has ended.
        stage.driver.drain(None);
        thread.join().unwrap();
        stage.ends(2);
    });
}
