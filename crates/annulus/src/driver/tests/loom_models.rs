//! # Safety
//!
//! The cross-thread protocols under a model checker, which tries every order of their atomic operations, up to a number
//! of preemptions (`ci/loom`). Each model names the mistakes that it finds; `loom_mutations.rs` makes these mistakes
//! and checks that they are found.
//!
//! The models run the real code: the driver, the future and the batch, a driver handle between them, and a kernel that
//! completes immediately or late. Accesses to slots are tracked: it is an error if two threads access one without
//! ordering, and if a thread is never woken. The models uphold the driver's invariants: Lent, Once, One side.
#![allow(unsafe_code)]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Count, Ordering::SeqCst};
use std::task::{Context, Poll, Wake as WakeTask, Waker};
use std::time::Duration;

use loom::sync::Notify;
use loom::thread;

use crate::driver::handle::{Wake, Why};
use crate::driver::many::Batch;
use crate::driver::uring::{Driver, Tuning, WAKE};
use crate::driver::{
    DriverHandle, DriverThread, Limits, Opcodes, Operation, Submitter, Thread, blocking,
};
use crate::op::{FileOp, Op, OpInfo, Returns};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ECANCELED;
use crate::sys::kernel::{Entered, Kernel};
use crate::sys::sqe::{Cqe, Sqe, opcode};
use crate::sys::wake::Parking;

/// An operation that counts its drops.
pub(super) struct Nothing(pub(super) Arc<Drops>);

pub(super) struct Drops {
    pub(super) count: Count,
    pub(super) one_more: Notify,
}

impl Drop for Nothing {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, SeqCst);
        self.0.one_more.notify();
    }
}

// SAFETY: Lent: points to nothing.
unsafe impl Op for Nothing {
    const INFO: OpInfo = OpInfo::of_test(opcode::NOP);

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::NOP, -1)
    }

    fn complete(self, res: i32) -> i32 {
        res
    }
}

impl Returns for Nothing {
    type Output = i32;
}

impl FileOp for Nothing {
    fn syscall(&mut self) -> i32 {
        0
    }
}

/// The wake-up of a sleeping driver.
pub(super) struct EventFdWake(pub(super) Arc<Notify>);

impl Wake for EventFdWake {
    fn wake(&self, _: Why) {
        self.0.notify();
    }
}

/// The wake-up of a driver that also sleeps outside of its kernel.
struct ParkingWake {
    eventfd: Arc<Notify>,
    parking: Parking,
    /// Ends the sleep of a parked driver.
    unpark: Notify,
}

impl Wake for Arc<ParkingWake> {
    fn wake(&self, why: Why) {
        let parks = self.parking.notify();
        if parks {
            self.unpark.notify();
        }
        if !parks || why == Why::Stop {
            self.eventfd.notify();
        }
    }
}

/// A kernel that completes immediately, or only after a cancel, and then late.
struct Doll {
    eventfd: Arc<Notify>,
    parks_by: Option<Arc<ParkingWake>>,
    late: bool,
    submitted: Vec<u64>,
    /// True if a cancel was requested; the cancelled operation completes at the next sleep.
    cancelled: bool,
    cqes: Vec<Cqe>,
    armed: bool,
}

impl Doll {
    fn complete(&mut self, res: i32) {
        let completions = self.submitted.drain(..).map(|user_data| Cqe {
            user_data,
            res,
            flags: 0,
        });
        self.cqes.extend(completions);
    }
}

impl Kernel for Doll {
    fn push(&mut self, sqe: Sqe) -> bool {
        if sqe.opcode == opcode::NOP {
            self.submitted.push(sqe.user_data);
        } else {
            // A cancel, which always arrives too late.
            self.cancelled = true;
            self.cqes.push(Cqe {
                user_data: sqe.user_data,
                res: -1,
                flags: 0,
            });
        }
        if !self.late {
            self.complete(0);
        }
        true
    }

    fn unsubmitted(&self) -> u32 {
        0
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<u64>) -> io::Result<()> {
        if std::mem::take(&mut self.cancelled) {
            self.complete(-ECANCELED);
        }
        if self.cqes.is_empty() {
            assert!(self.armed, "a sleep that no wake-up would end");
            self.eventfd.wait();
            self.armed = false;
            self.cqes.push(Cqe {
                user_data: WAKE,
                res: 8,
                flags: 0,
            });
        }
        Ok(())
    }

    fn can_park(&self) -> bool {
        self.parks_by.is_some()
    }

    fn park(&mut self, _: Option<u64>) {
        if let Some(wake) = &self.parks_by {
            if wake.parking.begin() {
                wake.unpark.wait();
            }
            wake.parking.end();
        }
    }

    fn note_awake(&mut self) {
        self.parks_by.iter().for_each(|wake| wake.parking.end());
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
        // Every deadline has passed.
        u64::MAX / 2
    }

    fn pause(&mut self, _: u64) {}
}

/// A waker that a thread can wait for.
struct Signal(Notify);

impl WakeTask for Signal {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

pub(super) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let signal = Arc::new(Signal(Notify::new()));
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => signal.0.wait(),
        }
    }
}

pub(super) fn poll<T: FileOp>(
    operation: &mut Operation<'_, T>,
    context: &mut Context<'_>,
) -> Poll<T::Output> {
    Pin::new(operation).poll(context)
}

/// The time of a driver's completions, and of its stop.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Completes at once; stopped when the caller is done.
    Prompt,
    /// Completes only after a cancel; stopped when the caller is done.
    Late,
    /// Completes immediately; stopped while the caller submits.
    Stopping,
    /// Completes immediately, and sleeps outside of its kernel; stopped when the caller is done.
    Parking,
}

/// Runs `caller` against a driver, and checks that all `operations` were dropped exactly once and all slots were given
/// back.
fn against_driver(manner: Manner, operations: usize, caller: fn(&Submitter, &Arc<Drops>)) {
    let eventfd = Arc::new(Notify::new());
    let parks_by = (manner == Manner::Parking).then(|| {
        Arc::new(ParkingWake {
            eventfd: Arc::clone(&eventfd),
            parking: Parking::new(),
            unpark: Notify::new(),
        })
    });
    let wake: Box<dyn Wake> = match &parks_by {
        Some(wake) => Box::new(Arc::clone(wake)),
        None => Box::new(EventFdWake(Arc::clone(&eventfd))),
    };
    let handle = Arc::new(DriverHandle::new(wake));
    let late = manner == Manner::Late;
    let kernel = Doll {
        eventfd,
        parks_by,
        late,
        submitted: Vec::new(),
        cancelled: false,
        cqes: Vec::new(),
        armed: false,
    };
    let limits = Limits {
        in_flight: 8,
        in_flight_bytes: 8,
    };
    let tuning = Tuning {
        chunk: None,
        alone: false,
        batch_delay_ns: 0,
        busy_poll_ns: 0,
        drain_timeout: Duration::from_secs(1),
    };
    let mut driver = Driver::new(Arc::clone(&handle), kernel, limits, tuning);
    let config = blocking::Config {
        threads: 1,
        limits,
        drain_timeout: Duration::ZERO,
        affinity: None,
    };
    let handles = vec![DriverThread {
        handle: Arc::clone(&handle),
        thread: Thread::None,
    }];
    let submitter = Submitter::new(handles, Opcodes::of(|_| true), config);
    let drops = Arc::new(Drops {
        count: Count::new(0),
        one_more: Notify::new(),
    });
    let counted = Arc::clone(&drops);
    // The caller thread owns the submitter, and its drop stops the driver.
    let thread = thread::spawn(move || caller(&submitter, &counted));
    if manner == Manner::Stopping {
        handle.request_stop();
    }
    assert_eq!(driver.drive_to_end(), 0);
    thread.join().unwrap();
    assert_eq!(drops.count.load(SeqCst), operations);
    assert_eq!(handle.table.in_use(), 0);
}

fn awaits(submitter: &Submitter, drops: &Arc<Drops>) {
    let mut operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
    assert_eq!(block_on(|context| poll(&mut operation, context)), 0);
}

/// Finds: the sleep flag checked before the push, or raised after the check; a missing fence on either side; a driver
/// that sleeps without a second check.
#[test]
fn a_caller_alone_is_not_forgotten() {
    loom::model(|| against_driver(Manner::Prompt, 1, awaits));
}

/// Finds: a driver that parks although a caller has notified it since it checked its lists; a notification that is lost
/// because it came before the driver parked.
#[test]
fn a_caller_does_not_miss_a_driver_that_parks() {
    loom::model(|| against_driver(Manner::Parking, 1, awaits));
}

fn starts_and_drops(submitter: &Submitter, drops: &Arc<Drops>) {
    let mut operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
    assert!(poll(&mut operation, &mut Context::from_waker(Waker::noop())).is_pending());
}

/// Finds: an abandoned operation freed while its cancel request is on the list; `unqueue` that does not check for
/// `DONE`; a payload dropped by both sides, or by neither; a cancel request that the driver does not notice.
#[test]
fn a_future_dropped_at_any_point_leaves_nothing() {
    loom::model(|| against_driver(Manner::Prompt, 1, starts_and_drops));
    loom::model(|| against_driver(Manner::Late, 1, starts_and_drops));
}

/// Finds: a driver that sleeps without a second check of the cancel requests, or that a request does not wake.
#[test]
fn a_cancel_is_heard() {
    loom::model(|| {
        against_driver(Manner::Late, 1, |submitter, drops| {
            starts_and_drops(submitter, drops);
            while drops.count.load(SeqCst) == 0 {
                drops.one_more.wait();
            }
        });
    });
}

/// Finds: a waker taken although `WAKER` was clear; a `poll_result` that does not check again after it has registered;
/// the slot freed while the driver still has to take the waker out of it.
#[test]
fn the_last_waker_registered_is_woken() {
    loom::model(|| {
        against_driver(Manner::Prompt, 1, |submitter, drops| {
            let mut operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
            let noop = &mut Context::from_waker(Waker::noop());
            if poll(&mut operation, noop).is_pending() {
                assert_eq!(block_on(|context| poll(&mut operation, context)), 0);
            }
        });
    });
}

/// Finds: a payload that both the future and the driver take when the timeout and the completion coincide; a slot freed
/// by the first of the two; a wake-up lost between them.
#[test]
fn a_timeout_and_a_completion_do_not_both_get_the_payload() {
    loom::model(|| {
        against_driver(Manner::Late, 1, |submitter, drops| {
            let operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
            let mut operation = operation.timeout(Duration::from_nanos(1));
            assert_eq!(
                block_on(|context| poll(&mut operation, context)),
                -EngineError::TimedOut.code()
            );
        });
    });
    loom::model(|| {
        against_driver(Manner::Late, 1, |submitter, drops| {
            let operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
            let mut operation = operation.timeout(Duration::from_nanos(1));
            assert!(poll(&mut operation, &mut Context::from_waker(Waker::noop())).is_pending());
        });
    });
}

/// Finds: a submission to a closed list that is neither refused nor completed; a driver that ends with its list still
/// open; a cancel request that arrives after the driver's end and is lost.
#[test]
fn an_engine_that_stops_refuses_or_completes_each_operation() {
    loom::model(|| {
        against_driver(Manner::Stopping, 1, |submitter, drops| {
            let mut operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
            assert_eq!(
                block_on(|context| poll(&mut operation, context)),
                -EngineError::Ended.code()
            );
        });
    });
    loom::model(|| {
        against_driver(Manner::Stopping, 1, |submitter, drops| {
            let mut operation = Operation::new(submitter, Nothing(Arc::clone(drops)));
            let _ = poll(&mut operation, &mut Context::from_waker(Waker::noop()));
        });
    });
}

fn add_two<'a>(submitter: &'a Submitter, drops: &Arc<Drops>) -> Batch<'a, Nothing, u32> {
    let mut batch = Batch::new(submitter);
    for key in 0..2 {
        batch.add(Nothing(Arc::clone(drops)), key);
    }
    batch
}

/// Finds: a batch woken before it was given the completion.
#[test]
fn a_batch_gets_every_completion() {
    loom::model(|| {
        against_driver(Manner::Prompt, 2, |submitter, drops| {
            let mut batch = add_two(submitter, drops);
            let mut keys = 0;
            while let Some((key, _, res)) = block_on(|context| batch.poll_next(context)) {
                assert_eq!(res, 0);
                keys += 1 << key;
            }
            assert_eq!(keys, 0b11);
        });
    });
}

/// Finds: slots not claimed before the group is closed; slots in flight counted after their cancels were requested, so
/// that the group is freed too early or never; a closed group detected without an acquire, so that the earlier claim is
/// not visible.
#[test]
fn a_batch_dropped_half_way_leaves_nothing() {
    let dropped = |submitter: &Submitter, drops: &Arc<Drops>| {
        let mut batch = add_two(submitter, drops);
        let _ = batch.poll_next(&mut Context::from_waker(Waker::noop()));
    };
    // Two operations with three preemptions take minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.map(|bound| bound.min(2));
    model.check(move || against_driver(Manner::Prompt, 2, dropped));
    model.check(move || against_driver(Manner::Late, 2, dropped));
}
