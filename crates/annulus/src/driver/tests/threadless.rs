//! Threadless drivers on a kernel that does nothing on its own: which operations are queued, when
//! they are submitted, and which complete when a driver ends.

mod timers;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake as WakeTask, Waker};
use std::time::Duration;

use crate::driver::handle::{Wake, Why};
use crate::driver::threadless::ThreadlessDriver;
use crate::driver::threadless_state::Drive;
use crate::driver::uring::Tuning;
use crate::driver::{
    DriverHandle, DriverThread, Limits, Opcodes, Operation, Submitter, Thread, blocking,
};
use crate::op::Nop;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{ECANCELED, ETIME};
use crate::sys::kernel::{Entered, Kernel};
use crate::sys::sqe::{Cqe, Sqe, opcode};

/// The state that the kernel and the test share.
#[derive(Default)]
struct KernelState {
    /// SQEs that were taken and have not completed.
    taken: Vec<u64>,
    /// Completions to be reaped.
    completions: Vec<Cqe>,
    submissions: u32,
    /// Armed timers: the time, and the token.
    timers: Vec<(u64, u64)>,
    now_ns: u64,
}

/// A kernel that takes submissions, which the test completes.
#[derive(Clone, Default)]
struct Still {
    state: Arc<Mutex<KernelState>>,
    queue: Arc<Mutex<Vec<Sqe>>>,
}

impl Still {
    fn complete(&self, user_data: u64, res: i32) {
        let mut state = self.state.lock().unwrap();
        state.completions.push(Cqe {
            user_data,
            res,
            flags: 0,
        });
    }

    fn complete_all(&self) {
        let mut state = self.state.lock().unwrap();
        let taken = std::mem::take(&mut state.taken);
        state
            .completions
            .extend(taken.into_iter().map(|user_data| Cqe {
                user_data,
                res: 0,
                flags: 0,
            }));
    }

    /// Advances the time. Timers that fire complete.
    fn pass(&self, ns: u64) {
        let mut state = self.state.lock().unwrap();
        state.now_ns += ns;
        let now_ns = state.now_ns;
        let gone: Vec<_> = state
            .timers
            .extract_if(.., |timer| timer.0 <= now_ns)
            .collect();
        state
            .completions
            .extend(gone.into_iter().map(|(_, user_data)| Cqe {
                user_data,
                res: -ETIME,
                flags: 0,
            }));
    }

    fn timers(&self) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        state.timers.iter().map(|timer| timer.0).collect()
    }

    fn taken(&self) -> usize {
        self.state.lock().unwrap().taken.len()
    }
}

impl Kernel for Still {
    fn push(&mut self, sqe: Sqe) -> bool {
        self.queue.lock().unwrap().push(sqe);
        true
    }

    fn unsubmitted(&self) -> u32 {
        u32::try_from(self.queue.lock().unwrap().len()).unwrap()
    }

    fn submit(&mut self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.submissions += 1;
        for sqe in self.queue.lock().unwrap().drain(..) {
            if sqe.opcode == opcode::ASYNC_CANCEL {
                // All of them: this kernel can cancel everything.
                let taken = std::mem::take(&mut state.taken);
                state
                    .completions
                    .extend(taken.into_iter().map(|user_data| Cqe {
                        user_data,
                        res: -ECANCELED,
                        flags: 0,
                    }));
            } else {
                state.taken.push(sqe.user_data);
            }
        }
        Ok(())
    }

    fn wait(&mut self, _: Option<u64>) -> io::Result<()> {
        self.submit()
    }

    fn ready(&mut self) -> bool {
        !self.state.lock().unwrap().completions.is_empty()
    }

    fn reap(&mut self, into: &mut Vec<Cqe>) {
        into.append(&mut self.state.lock().unwrap().completions);
    }

    fn arm_wake(&mut self, _: u64) -> bool {
        false
    }

    fn arm_timer(&mut self, after_ns: u64, token: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        let at_ns = state.now_ns + after_ns;
        state.timers.push((at_ns, token));
        true
    }

    fn move_timer(&mut self, after_ns: u64, token: u64, completion: u64) -> bool {
        let mut state = self.state.lock().unwrap();
        let at_ns = state.now_ns + after_ns;
        match state.timers.iter_mut().find(|timer| timer.1 == token) {
            Some(timer) => timer.0 = at_ns,
            None => state.completions.push(Cqe {
                user_data: completion,
                res: -ECANCELED,
                flags: 0,
            }),
        }
        true
    }

    fn supports(&self, _: u8) -> bool {
        true
    }

    fn entered(&self) -> Entered {
        Entered::default()
    }

    fn now_ns(&self) -> u64 {
        self.state.lock().unwrap().now_ns
    }

    fn pause(&mut self, _: u64) {}
}

struct NoWake;

impl Wake for NoWake {
    fn wake(&self, _: Why) {}
}

/// A driver of the calling thread, its handle, its kernel, and an engine whose operations go there.
struct Fixture {
    driver: Arc<ThreadlessDriver<Still>>,
    kernel: Still,
    submitter: Submitter,
}

fn limits() -> Limits {
    Limits {
        in_flight: 64,
        in_flight_bytes: 1 << 20,
    }
}

fn tuning() -> Tuning {
    Tuning {
        chunk: Some(3),
        alone: true,
        batch_delay_ns: 0,
        busy_poll_ns: 0,
        drain_timeout: Duration::from_secs(60),
    }
}

fn blocking_threads() -> blocking::Config {
    blocking::Config {
        threads: 1,
        limits: limits(),
        drain_timeout: Duration::from_secs(60),
        affinity: None,
    }
}

fn driver_on(handle: &Arc<DriverHandle>) -> (Arc<ThreadlessDriver<Still>>, Still) {
    let kernel = Still::default();
    let driven = kernel.clone();
    let driver = ThreadlessDriver::new(
        Arc::clone(handle),
        driven,
        Box::new(NoWake),
        limits(),
        tuning(),
    );
    (driver, kernel)
}

impl Fixture {
    fn new() -> Fixture {
        let handle = Arc::new(DriverHandle::threadless());
        let (driver, kernel) = driver_on(&handle);
        // The engine treats it like any other driver.
        let handles = vec![DriverThread {
            handle,
            thread: Thread::Running(std::thread::spawn(|| {})),
        }];
        let submitter = Submitter::new(handles, Opcodes::of(|_| true), blocking_threads());
        Fixture {
            driver,
            kernel,
            submitter,
        }
    }

    /// Submits an operation.
    fn submit(&self, waker: &Waker) -> Operation<'_, Nop> {
        let mut operation = Operation::new(&self.submitter, Nop);
        assert!(poll(&mut operation, waker).is_pending());
        operation
    }
}

fn poll(operation: &mut Operation<'_, Nop>, waker: &Waker) -> Poll<io::Result<()>> {
    std::pin::Pin::new(operation).poll(&mut Context::from_waker(waker))
}

#[derive(Default)]
struct Count(AtomicU32);

impl WakeTask for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn without_an_awake_owner_each_operation_is_submitted_immediately() {
    let fixture = Fixture::new();
    let operations: Vec<_> = (1..5)
        .map(|count| {
            let operation = fixture.submit(Waker::noop());
            assert_eq!(fixture.kernel.taken(), count);
            operation
        })
        .collect();
    fixture.kernel.complete_all();
    fixture.driver.poll();
    for mut operation in operations {
        assert!(matches!(
            poll(&mut operation, Waker::noop()),
            Poll::Ready(Ok(()))
        ));
    }
    fixture.driver.drain(None);
}

#[test]
fn an_owner_queues_until_a_chunk_is_full_or_the_batch_ends() {
    let fixture = Fixture::new();
    assert!(
        !fixture.driver.begin_batch(),
        "with nothing in flight no completion would submit it"
    );
    let _first = fixture.submit(Waker::noop());
    assert_eq!(fixture.kernel.taken(), 1);
    assert!(fixture.driver.begin_batch());
    let _queued: Vec<_> = (0..2).map(|_| fixture.submit(Waker::noop())).collect();
    assert_eq!(fixture.kernel.taken(), 1);
    let _full = fixture.submit(Waker::noop());
    assert_eq!(fixture.kernel.taken(), 4);
    let _left = fixture.submit(Waker::noop());
    assert_eq!(fixture.kernel.taken(), 4);
    fixture.driver.flush();
    assert_eq!(fixture.kernel.taken(), 5);
    // Outside of a batch every submission polls.
    let _from_elsewhere = fixture.submit(Waker::noop());
    assert_eq!(fixture.kernel.taken(), 6);
    fixture.driver.drain(None);
}

#[test]
fn completions_wake_each_task_once_and_an_idle_poll_submits_nothing() {
    let fixture = Fixture::new();
    let woken = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut operation = fixture.submit(&waker);
    fixture.kernel.complete_all();
    fixture.driver.poll();
    fixture.driver.poll();
    assert_eq!(woken.0.load(SeqCst), 1);
    assert!(matches!(poll(&mut operation, &waker), Poll::Ready(Ok(()))));
    let before = fixture.kernel.state.lock().unwrap().submissions;
    fixture.driver.poll();
    assert_eq!(fixture.kernel.state.lock().unwrap().submissions, before);
    fixture.driver.drain(None);
}

#[test]
fn a_drain_completes_queued_operations_and_those_in_flight_and_refuses_others() {
    let fixture = Fixture::new();
    let mut in_flight = fixture.submit(Waker::noop());
    assert!(fixture.driver.begin_batch());
    let mut queued = fixture.submit(Waker::noop());
    assert_eq!(fixture.kernel.taken(), 1);
    fixture.driver.drain(None);
    assert!(fixture.driver.is_over());
    for operation in [&mut in_flight, &mut queued] {
        let Poll::Ready(Err(error)) = poll(operation, Waker::noop()) else {
            panic!("not completed by the drain");
        };
        assert!(
            error.raw_os_error() == Some(ECANCELED)
                || EngineError::of(&error) == Some(EngineError::Ended),
            "{error}"
        );
    }
    // A second drain has no effect.
    fixture.driver.drain(None);
}

#[test]
fn a_handle_whose_driver_has_been_drained_serves_the_next_one() {
    let handle = Arc::new(DriverHandle::threadless());
    let (first, _) = driver_on(&handle);
    assert!(!handle.reopen(), "it has a driver");
    first.drain(None);
    assert!(handle.reopen());
    assert!(!handle.reopen(), "one at a time");
    let (second, _) = driver_on(&handle);
    assert!(!second.is_over() && !handle.stopping());
    first.drain(None);
    assert!(
        !handle.stopping(),
        "a driver that has ended stops no other driver of its handle"
    );
    second.drain(None);
    assert_eq!(handle.table.in_use(), 0);
}

/// Drains its ring when it is woken, as the end of an engine in a waker does.
struct Ends(Arc<ThreadlessDriver<Still>>);

impl WakeTask for Ends {
    fn wake(self: Arc<Self>) {
        self.0.drain(None);
    }
}

#[test]
fn a_waker_that_ends_the_driver_during_delivery_causes_no_deadlock() {
    let fixture = Fixture::new();
    let waker = Waker::from(Arc::new(Ends(Arc::clone(&fixture.driver))));
    let mut first = fixture.submit(&waker);
    fixture.kernel.complete_all();
    let mut second = fixture.submit(&waker);
    fixture.driver.poll();
    assert!(fixture.driver.is_over());
    assert!(poll(&mut first, Waker::noop()).is_ready());
    assert!(poll(&mut second, Waker::noop()).is_ready());
}
