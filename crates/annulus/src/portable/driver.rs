//! Operations, which run on blocking threads.

mod pool;

pub(crate) use pool::Submitter;

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::sys::engine_error::EngineError;
use pool::{Job, Timer};

/// Every operation waits for another thread, so no task is always ready.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) mod coop_budget {
    #[cfg(feature = "tokio")]
    pub(crate) use tokio::task::yield_now;

    #[derive(Default)]
    pub(crate) struct Yields(());

    impl Yields {
        #[allow(clippy::unused_self)]
        pub(crate) fn poll(&mut self, _: &std::task::Context<'_>) -> std::task::Poll<()> {
            std::task::Poll::Ready(())
        }
    }
}

/// The work of an operation. With an error it only reports that error: the operation was not carried out. Either way
/// its output returns the buffer.
pub(crate) type Work<A> = Box<dyn FnOnce(io::Result<()>) -> A + Send>;

/// An operation in progress; await it for the result.
///
/// Nothing is done before the first poll. Dropping the future at any point is sound: an operation that has not started
/// does not start any more; otherwise it completes unobserved.
#[must_use = "an operation does nothing until it is awaited"]
pub struct Operation<'a, T, A> {
    submitter: &'a Submitter,
    flight: Arc<Flight<A>>,
    is_submitted: bool,
    /// The operation only waits; no thread does its work.
    is_sleep: bool,
    timeout: Option<Duration>,
    timer: Option<Timer>,
    of: PhantomData<fn() -> T>,
}

/// The part of an operation that the future and the threads share.
struct Flight<A> {
    /// Taken by the thread that does it, or when the future is dropped.
    work: Mutex<Option<Work<A>>>,
    outcome: Mutex<Outcome<A>>,
    /// The work is done when the time is up. Other work is then not carried out any more.
    is_due_at_end: bool,
}

struct Outcome<A> {
    output: Option<A>,
    /// There has been an output.
    is_over: bool,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No foreign code runs under these locks, so no panic leaves them in a wrong state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs foreign code: buffers and wakers. Returns `None` if it panicked.
fn contain<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(foreign))
        .map_err(|panic| {
            // Dropping any other payload would run foreign code again.
            if !panic.is::<String>() && !panic.is::<&str>() {
                std::mem::forget(panic);
            }
        })
        .ok()
}

impl<A> Flight<A> {
    /// Stores the output, unless there has been one.
    fn complete(&self, output: A) {
        let mut outcome = lock(&self.outcome);
        if outcome.is_over {
            return drop(outcome);
        }
        (outcome.is_over, outcome.output) = (true, Some(output));
        let waker = outcome.waker.take();
        drop(outcome);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<A: Failure + Send> Job for Flight<A> {
    fn run(&self, start: io::Result<()>, done: &dyn Fn()) {
        let work = lock(&self.work).take();
        let output = work.map(|work| contain(|| work(start)));
        // First, because the waker may drop the engine, whose end waits for running jobs.
        done();
        if let Some(output) = output {
            self.complete(output.unwrap_or_else(|| A::failure(EngineError::Panicked.into())));
        }
    }

    fn expire(&self) {
        let late = || EngineError::TimedOut.into();
        self.run(
            if self.is_due_at_end {
                Ok(())
            } else {
                Err(late())
            },
            &|| (),
        );
        self.complete(A::failure(late()));
    }
}

impl<'a, T, A: Failure + Send + 'static> Operation<'a, T, A> {
    /// Creates an operation whose result may already be known.
    pub(crate) fn new(submitter: &'a Submitter, work: Result<Work<A>, A>) -> Operation<'a, T, A> {
        Operation::of(submitter, work, false)
    }

    /// Creates an operation that waits for `time`, and then does its work.
    pub(crate) fn after(
        submitter: &'a Submitter,
        time: Duration,
        work: Work<A>,
    ) -> Operation<'a, T, A> {
        let mut sleep = Operation::of(submitter, Ok(work), true);
        sleep.timeout = Some(time);
        sleep
    }

    fn of(
        submitter: &'a Submitter,
        work: Result<Work<A>, A>,
        is_sleep: bool,
    ) -> Operation<'a, T, A> {
        let (work, output) = match work {
            Ok(work) => (Some(work), None),
            Err(output) => (None, Some(output)),
        };
        Operation {
            submitter,
            is_submitted: output.is_some(),
            flight: Arc::new(Flight {
                work: Mutex::new(work),
                outcome: Mutex::new(Outcome {
                    is_over: output.is_some(),
                    output,
                    waker: None,
                }),
                is_due_at_end: is_sleep,
            }),
            is_sleep,
            timeout: None,
            timer: None,
            of: PhantomData,
        }
    }

    /// Limits the operation to `timeout` from its first poll on.
    ///
    /// When the time is up, the result is `TimedOut`: with the buffer if the operation has not started, otherwise
    /// without it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        let ends_first = |time| self.is_sleep && time <= timeout;
        if !self.timeout.is_some_and(ends_first) {
            self.timeout = Some(timeout);
            // Not shared before the first poll.
            if let Some(flight) = Arc::get_mut(&mut self.flight) {
                flight.is_due_at_end = false;
            }
        }
        self
    }
}

impl<T, A: Failure + Send + 'static> Future for Operation<'_, T, A> {
    type Output = A;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<A> {
        let waker = context.waker().clone();
        let mut outcome = lock(&self.flight.outcome);
        let output = outcome.output.take();
        let _old = outcome.waker.replace(waker);
        drop(outcome);
        if !std::mem::replace(&mut self.is_submitted, true) {
            let until = self
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout));
            let job = Arc::clone(&self.flight);
            self.timer = self.submitter.submit(job, self.is_sleep, until);
        }
        output.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T, A> Drop for Operation<'_, T, A> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.submitter.forget(timer);
        }
        let (work, waker) = (
            lock(&self.flight.work).take(),
            lock(&self.flight.outcome).waker.take(),
        );
        drop((work, waker));
    }
}

impl<T, A> fmt::Debug for Operation<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({})", std::any::type_name::<T>())
    }
}
