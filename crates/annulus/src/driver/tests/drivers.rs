//! # Safety
//!
//! Promises of the drivers besides correct results: no task waits in vain, nothing is dropped twice or never, and
//! foreign code (a waker, a buffer's `Drop`) may do anything. The tests take the driver's role and uphold its
//! invariants: Lent, Once, Drained.
#![allow(unsafe_code)]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake as WakeTask, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::handle::{Wake, Why};
use crate::driver::lifecycle::{Abandon, PollResult};
use crate::driver::many::Batch;
use crate::driver::slot::Slot;
use crate::driver::uring::{self, Driver, Tuning};
use crate::driver::{DriverHandle, Limits, Opcodes, Operation, Submitter, blocking};
use crate::op::{FileOp, Op, OpInfo, Returns};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EBUSY, ECANCELED, ENOMEM};
use crate::sys::kernel::{Entered, Kernel};
use crate::sys::sqe::{Cqe, Sqe, opcode};

/// Longer than anything here takes on any machine.
const LONG: Duration = Duration::from_secs(60);
/// The drain timeout of a pool, so long that no test ends by it.
const DRAIN: Duration = Duration::from_secs(600);

/// An operation made of closures. No kernel supports it, so it runs on a blocking thread.
struct Call {
    run: Box<dyn FnMut() -> i32 + Send>,
    complete: fn(i32) -> i32,
    bytes: fn() -> u32,
    dropped: Dropped,
}

/// Does something when it is dropped.
struct Dropped(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then();
        }
    }
}

impl Call {
    fn new(run: impl FnMut() -> i32 + Send + 'static) -> Call {
        Call {
            run: Box::new(run),
            complete: |res| res,
            bytes: || 0,
            dropped: Dropped(None),
        }
    }

    /// Returns an operation that runs until a message is sent.
    fn blocked() -> (Call, Sender<()>) {
        let (send, receive) = channel();
        (Call::new(move || i32::from(receive.recv().is_err())), send)
    }

    fn when_dropped(mut self, then: impl FnOnce() + Send + 'static) -> Call {
        self.dropped = Dropped(Some(Box::new(then)));
        self
    }

    fn counted(self, drops: &Arc<AtomicUsize>) -> Call {
        let drops = Arc::clone(drops);
        self.when_dropped(move || _ = drops.fetch_add(1, SeqCst))
    }
}

// SAFETY: Lent: points to nothing.
unsafe impl Op for Call {
    const INFO: OpInfo = OpInfo::of_test(opcode::GETDENTS);

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::NOP, -1)
    }

    fn complete(self, res: i32) -> i32 {
        (self.complete)(res)
    }
}

impl Returns for Call {
    type Output = i32;
}

impl FileOp for Call {
    fn syscall(&mut self) -> i32 {
        (self.run)()
    }

    fn bytes(&self) -> u32 {
        (self.bytes)()
    }
}

/// A waker that calls a closure.
struct Then(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl WakeTask for Then {
    fn wake(self: Arc<Self>) {
        let then = self.0.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
    }
}

fn waker(then: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(Then(Mutex::new(Some(Box::new(then))))))
}

fn pool(threads: usize) -> Arc<Submitter> {
    let limits = Limits {
        in_flight: 64,
        in_flight_bytes: 1 << 20,
    };
    let config = blocking::Config {
        threads,
        limits,
        drain_timeout: DRAIN,
        affinity: None,
    };
    Arc::new(Submitter::new(Vec::new(), Opcodes::NONE, config))
}

fn poll<T: FileOp>(operation: &mut Operation<'_, T>, waker: &Waker) -> Poll<T::Output> {
    Pin::new(operation).poll(&mut Context::from_waker(waker))
}

/// Polls once, which submits the operation.
fn start<T: FileOp>(operation: &mut Operation<'_, T>) {
    assert!(poll(operation, Waker::noop()).is_pending());
}

/// Returns the result, or panics if the operation does not complete.
fn output<T: FileOp>(mut operation: Operation<'_, T>) -> T::Output {
    let (woken, wait) = channel();
    let signal = Arc::new(Mutex::new(woken));
    loop {
        let signal = Arc::clone(&signal);
        match poll(
            &mut operation,
            &waker(move || _ = signal.lock().unwrap().send(())),
        ) {
            Poll::Ready(output) => return output,
            Poll::Pending => wait
                .recv_timeout(LONG)
                .expect("a result, or at least a wake-up"),
        }
    }
}

fn soon(wait: &Receiver<()>) {
    assert_ne!(
        wait.recv_timeout(LONG),
        Err(RecvTimeoutError::Timeout),
        "it never came"
    );
}

/// Waits for a condition.
fn until(mut is_met: impl FnMut() -> bool, otherwise: &str) {
    let by = Instant::now() + LONG;
    while !is_met() {
        assert!(Instant::now() < by, "{otherwise}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn handle(submitter: &Submitter) -> &DriverHandle {
    submitter.handle(Call::INFO.opcode)
}

#[test]
fn a_result_whose_reading_panics_is_dropped_once() {
    let pool = pool(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let mut call = Call::new(|| 0).counted(&drops);
    call.complete = |_| panic!("as a foreign buffer might");
    let mut operation = Operation::new(&pool, call);
    let result = loop {
        let polled = catch_unwind(AssertUnwindSafe(|| poll(&mut operation, Waker::noop())));
        match polled {
            Ok(Poll::Pending) => thread::sleep(Duration::from_millis(1)),
            other => break other,
        }
    };
    assert!(result.is_err());
    drop(operation);
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_payload_dropped_by_a_driver_may_use_the_engine() {
    let pool = pool(1);
    let (ended, wait) = channel();
    let keeper = Arc::clone(&pool);
    let call = Call::blocked();
    let call = (
        call.0.when_dropped(move || {
            drop(keeper);
            _ = ended.send(());
        }),
        call.1,
    );
    {
        let mut dropped = Operation::new(&pool, call.0);
        start(&mut dropped);
    }
    drop(pool);
    drop(call.1);
    soon(&wait);
}

#[test]
fn a_waker_may_end_the_engine_while_more_work_waits() {
    let pool = pool(1);
    let (ended, wait) = channel();
    let (call, release) = Call::blocked();
    let keeper = Arc::clone(&pool);
    let mut first = Operation::new(&pool, call);
    let ends = waker(move || {
        drop(keeper);
        _ = ended.send(());
    });
    assert!(poll(&mut first, &ends).is_pending());
    drop(ends);
    let mut second = Operation::new(&pool, Call::new(|| 0));
    start(&mut second);
    // From here on only the waker holds the engine.
    std::mem::forget((first, second));
    drop(pool);
    drop(release);
    soon(&wait);
}

#[test]
fn a_thread_is_there_for_new_work_however_long_another_is_busy() {
    // More than the number of threads in the pool, so that all could fall asleep if each ended when it wakes without
    // work.
    const SLEEPS: usize = 20;
    let pool = pool(8);
    let (call, release) = Call::blocked();
    let mut busy = Operation::new(&pool, call);
    start(&mut busy);
    assert_eq!(output(Operation::new(&pool, Call::new(|| 7))), 7);
    for _ in 0..SLEEPS {
        until(|| handle(&pool).sleeper.must_wake(), "all have left");
    }
    // The last check has cleared the flag of a sleeping thread; it is set again for the next submission.
    handle(&pool).sleeper.about_to_sleep();
    assert_eq!(output(Operation::new(&pool, Call::new(|| 8))), 8);
    drop(release);
    assert_eq!(output(busy), 1);
}

#[test]
fn a_cancel_that_comes_after_the_driver_has_ended_still_drops_the_payload() {
    let pool = pool(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let handle = handle(&pool);
    let slot = handle.table.take().unwrap();
    slot.lifecycle.reset(None);
    // SAFETY: Once: just taken.
    unsafe { slot.fill(Call::new(|| 0).counted(&drops), 0, 0, 0) };
    // The steps of `Operation::drop`, with the end of the driver in between.
    assert_eq!(slot.lifecycle.abandon(), Abandon::Request);
    // SAFETY: Lent: filled above.
    assert!(unsafe { handle.submit(NonNull::from(slot), 1) });
    pool.drain();
    // SAFETY: Once: `QUEUED` has been set above, and only there.
    unsafe { handle.request_cancel(NonNull::from(slot)) };
    assert_eq!(drops.load(SeqCst), 1);
}

#[test]
fn a_timeout_passes_although_every_thread_is_busy() {
    let pool = pool(1);
    let (call, release) = Call::blocked();
    let mut busy = Operation::new(&pool, call);
    start(&mut busy);
    until(
        || handle(&pool).counters.submitted().get() > 0,
        "it does not run",
    );
    let late = Operation::new(&pool, Call::new(|| 0)).timeout(Duration::from_millis(10));
    assert_eq!(output(late), -EngineError::TimedOut.code());
    drop(release);
    assert_eq!(output(busy), 1);
}

#[test]
fn a_batch_dropped_with_results_whose_reading_panics_leaves_nothing() {
    let pool = pool(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let mut batch = Batch::new(&pool);
    for key in 0..3 {
        let mut call = Call::new(|| 0).counted(&drops);
        call.complete = |_| panic!("as a foreign buffer might");
        batch.add(call, key);
    }
    let (call, release) = Call::blocked();
    batch.add(call.counted(&drops), 3);
    batch.flush();
    // One of the four is blocked, and was the last in the queue.
    while handle(&pool).counters.completed() < 3 {
        thread::sleep(Duration::from_millis(1));
    }
    drop(batch);
    drop(release);
    pool.drain();
    assert_eq!(drops.load(SeqCst), 4);
    assert_eq!(handle(&pool).table.in_use(), 0);
}

/// A buffer is asked for its length.
#[test]
fn an_operation_that_panics_before_its_submission_leaves_no_slot() {
    let panicking_call = |drops: &_| {
        let mut call = Call::new(|| 0).counted(drops);
        call.bytes = || panic!("as a foreign buffer might");
        call
    };
    let pool = pool(1);
    let drops = Arc::new(AtomicUsize::new(0));
    let mut operation = Operation::new(&pool, panicking_call(&drops));
    let polled = catch_unwind(AssertUnwindSafe(|| poll(&mut operation, Waker::noop())));
    assert!(polled.is_err());
    drop(operation);
    assert_eq!((handle(&pool).table.in_use(), drops.load(SeqCst)), (0, 1));

    let mut batch = Batch::new(&pool);
    batch.add(Call::new(|| 0).counted(&drops), 0);
    let call = panicking_call(&drops);
    assert!(catch_unwind(AssertUnwindSafe(|| batch.add(call, 1))).is_err());
    assert_eq!((handle(&pool).table.in_use(), batch.outstanding()), (1, 1));
    drop(batch);
    pool.drain();
    assert_eq!((handle(&pool).table.in_use(), drops.load(SeqCst)), (0, 3));
}

/// A kernel that completes when the test says so.
#[derive(Default)]
struct Stub {
    pushed: Vec<Sqe>,
    cqes: Vec<Cqe>,
    /// True if the submission queue is full until the next submission.
    full: bool,
    /// The number of submissions that fail because the kernel is busy.
    refusals: u32,
    broken: bool,
    armed: bool,
    /// The number of sleeps that no wake-up would have ended.
    deaf: u32,
    now_ns: u64,
}

impl Kernel for Stub {
    fn push(&mut self, sqe: Sqe) -> bool {
        if !self.full {
            self.pushed.push(sqe);
        }
        !self.full
    }

    fn unsubmitted(&self) -> u32 {
        u32::from(self.full)
    }

    fn submit(&mut self) -> io::Result<()> {
        if self.refusals > 0 {
            self.refusals -= 1;
            return Err(io::Error::from_raw_os_error(EBUSY));
        }
        self.full = false;
        Ok(())
    }

    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        self.deaf += u32::from(!self.armed && timeout_ns.is_none());
        self.now_ns += timeout_ns.unwrap_or(1);
        self.submit()
    }

    fn ready(&mut self) -> bool {
        assert!(!self.broken, "as a driver with a bug would");
        !self.cqes.is_empty()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        into.append(&mut self.cqes);
    }

    fn arm_wake(&mut self, _: u64) -> bool {
        self.armed = !self.full;
        self.armed
    }

    fn supports(&self, _: u8) -> bool {
        true
    }

    fn entered(&self) -> Entered {
        Entered::default()
    }

    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn pause(&mut self, ns: u64) {
        self.now_ns += ns;
    }
}

struct Unheard;

impl Wake for Unheard {
    fn wake(&self, _: Why) {}
}

/// Creates a driver of a stub, and an operation that it has submitted.
fn stub() -> (Arc<DriverHandle>, Driver<Stub>, NonNull<Slot>) {
    let handle = Arc::new(DriverHandle::new(Box::new(Unheard)));
    let (driver, slot) = stub_on(&handle);
    (handle, driver, slot)
}

fn stub_on(handle: &Arc<DriverHandle>) -> (Driver<Stub>, NonNull<Slot>) {
    let limits = Limits {
        in_flight: 64,
        in_flight_bytes: 1 << 20,
    };
    let tuning = Tuning {
        chunk: None,
        alone: false,
        batch_delay_ns: 0,
        busy_poll_ns: 0,
        drain_timeout: LONG,
    };
    let mut driver = Driver::new(Arc::clone(handle), Stub::default(), limits, tuning);
    let slot = NonNull::from(handle.table.take().unwrap());
    // SAFETY: Once: just taken, so it belongs to this test, which fills and submits it.
    unsafe {
        drop(slot.as_ref().lifecycle.reset(None));
        slot.as_ref().fill(Call::new(|| 0), 0, 0, 0);
        assert!(handle.submit(slot, 1));
    }
    assert!(driver.poll());
    assert_eq!(driver.kernel().pushed.len(), 1);
    (driver, slot)
}

#[test]
fn a_drain_ends_with_the_last_completion() {
    let (handle, mut driver, slot) = stub();
    assert_eq!(driver.drive(), None);
    handle.request_stop();
    let (mut end, mut drives) = (None, 0);
    while end.is_none() {
        // The stop has completed the read that was armed when it came, and nothing completes another one.
        if drives == 0 && std::mem::take(&mut driver.kernel().armed) {
            driver.kernel().cqes.push(Cqe {
                user_data: uring::WAKE,
                res: 8,
                flags: 0,
            });
        }
        if drives == 5 {
            // SAFETY: Lent: in flight for this test.
            let user_data = unsafe { slot.as_ref() }.token();
            driver.kernel().cqes.push(Cqe {
                user_data,
                res: -ECANCELED,
                flags: 0,
            });
        }
        end = driver.drive();
        drives += 1;
    }
    assert_eq!(end, Some(0));
    assert!(
        u128::from(driver.kernel().now_ns) < LONG.as_nanos() / 2,
        "it waited for the drain timeout"
    );
}

#[test]
fn a_driver_sleeps_only_where_it_can_be_woken() {
    let (_handle, mut driver, _) = stub();
    *driver.kernel() = Stub {
        full: true,
        refusals: 1,
        ..Stub::default()
    };
    for _ in 0..3 {
        assert_eq!(driver.drive(), None);
    }
    assert!(driver.kernel().armed);
    assert_eq!(driver.kernel().deaf, 0);
}

#[test]
fn a_driver_that_panics_leaves_no_task_waiting_and_frees_nothing() {
    let (handle, mut driver, in_flight) = stub();
    driver.kernel().broken = true;
    driver.run();
    // SAFETY: Lent: in flight for this test.
    let lifecycle = unsafe { &in_flight.as_ref().lifecycle };
    assert_eq!(lifecycle.poll_result(Waker::noop()), PollResult::Expired);
    assert_eq!(handle.counters.leaked().get(), 1);
    let late = handle.table.take().unwrap();
    // SAFETY: Once: just taken, so it belongs to this test, which fills and submits it.
    unsafe {
        late.fill(Call::new(|| 0), 0, 0, 0);
        assert!(
            !handle.submit(NonNull::from(late), 1),
            "an engine without a driver refuses"
        );
    }
}

impl Stub {
    /// Completes all operations.
    fn complete(&mut self, res: i32) {
        let pushed = self.pushed.drain(..);
        self.cqes.extend(pushed.map(|sqe| Cqe {
            user_data: sqe.user_data,
            res,
            flags: 0,
        }));
    }
}

#[test]
fn an_operation_undone_by_the_end_of_the_polling_thread_is_submitted_again() {
    let handle = Arc::new(DriverHandle::threadless());
    let (mut driver, slot) = stub_on(&handle);
    // SAFETY: Lent: in flight for this test.
    let lifecycle = unsafe { &slot.as_ref().lifecycle };
    driver.kernel().complete(-ECANCELED);
    driver.poll();
    assert_eq!(lifecycle.poll_result(Waker::noop()), PollResult::Pending);
    // One resubmission; the next result is final.
    assert_eq!(driver.kernel().pushed.len(), 1);
    driver.kernel().complete(-ECANCELED);
    driver.poll();
    assert_eq!(lifecycle.poll_result(Waker::noop()), PollResult::Done);
}

#[test]
fn a_call_that_lacks_memory_is_made_twice_more_and_then_fails() {
    let pool = pool(1);
    let calls = Arc::new(AtomicUsize::new(0));
    let lacks_memory = |until: usize| {
        let calls = Arc::clone(&calls);
        Call::new(move || match calls.fetch_add(1, SeqCst) {
            call if call < until => -ENOMEM,
            _ => 7,
        })
    };
    assert_eq!(output(Operation::new(&pool, lacks_memory(2))), 7);
    assert_eq!(calls.swap(0, SeqCst), 3);
    let always = lacks_memory(usize::MAX);
    assert_eq!(output(Operation::new(&pool, always)), -ENOMEM);
    assert_eq!(calls.load(SeqCst), 3);
}
