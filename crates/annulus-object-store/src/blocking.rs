//! System calls that io_uring has no opcode for, and sequences of calls that each would need a kernel worker.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::Failure;
use crate::file_systems::FileSystem;

/// The number of threads of a queue. More would wait for each other at the lock of a folder.
const QUEUE_THREADS: usize = 4;
/// The time without work after which such a thread ends.
const IDLE: Duration = Duration::from_secs(1);

/// Runs `work` on a thread of Tokio's blocking pool. Outside a Tokio runtime, the calling thread runs it, as
/// `LocalFileSystem` does.
///
/// Waits while calls on the file system use too many of them. Work that has started runs to its end, also if the future
/// is dropped.
pub(crate) async fn run<T: Send + 'static>(
    system: &'static FileSystem,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let Ok(runtime) = Handle::try_current() else {
        return work();
    };
    let thread = system.thread().await;
    let work = move || {
        let _thread = thread;
        work()
    };
    match runtime.spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        Err(error) => Err(ended(error)),
    }
}

/// Returns the error for work that was not started.
fn ended(error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::new(
        "use the object store while the Tokio runtime shuts down",
        io::Error::other(error),
    )
}

/// Work for a few threads, which do one piece after the other. While there is more, no thread sleeps and has to be
/// woken.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    /// Signals new work.
    added: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    /// The threads that wait for work.
    idle: usize,
}

impl Queue {
    /// Runs `work` on a thread, to its end also if the future is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (done, result) = oneshot::channel();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            // Fails if the future was dropped.
            let _ = done.send(result);
        };
        self.add(Box::new(work));
        match result.await {
            Ok(result) => result.unwrap_or_else(|panic| resume_unwind(panic)),
            Err(error) => Err(ended(error)),
        }
    }

    fn add(&'static self, work: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        state.waiting.push_back(work);
        if state.waiting.len() <= state.idle {
            return self.added.notify_one();
        }
        if state.threads == QUEUE_THREADS {
            return;
        }
        let thread = thread::Builder::new().name("annulus-changes".to_owned());
        if thread.spawn(|| self.serve()).is_ok() {
            state.threads += 1;
        } else if state.threads == 0 {
            // Without threads, the caller waits.
            let waiting = std::mem::take(&mut state.waiting);
            drop(state);
            waiting.into_iter().for_each(|work| work());
        }
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                work();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.added.wait_timeout(state, IDLE);
            let (guard, wait) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if wait.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

/// Work that its caller polls, so that it does not need the workers of the runtime, which other executors may block. If
/// it is dropped before its end, a task of the runtime continues it.
pub(crate) struct Detached<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    /// `None` once the work has ended or panicked.
    work: Option<Pin<Box<F>>>,
    runtime: Handle,
}

impl<F> Detached<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    pub(crate) fn new(work: F, runtime: Handle) -> Detached<F> {
        let work = Some(Box::pin(work));
        Detached { work, runtime }
    }
}

impl<F> Future for Detached<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut work) = self.work.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F> Drop for Detached<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            drop(self.runtime.spawn(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    #[test]
    fn a_few_threads_do_all_work_of_a_queue_also_if_its_future_is_dropped() {
        let queue: &'static Queue = Box::leak(Box::default());
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = |number: usize| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(100));
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(number)
            }
        };
        for _ in 0..3 {
            let all = join_all((0..100).map(|number| queue.run(work(number))));
            let done: Vec<_> = pollster::block_on(all).into_iter().flatten().collect();
            assert_eq!(done, (0..100).collect::<Vec<_>>());
        }
        assert!((1..=QUEUE_THREADS).contains(&most.load(Ordering::SeqCst)));

        let (sender, received) = mpsc::channel();
        let dropped = queue.run(move || {
            sender.send(()).unwrap();
            Ok(())
        });
        drop(dropped.now_or_never());
        received.recv().unwrap();
    }

    #[test]
    fn a_panic_of_queued_work_is_that_of_its_future_and_the_thread_goes_on() {
        let queue: &'static Queue = Box::leak(Box::default());
        let work = queue.run(|| -> Result<(), Failure> { panic!("in the work") });
        let panicked = catch_unwind(AssertUnwindSafe(|| pollster::block_on(work)));
        assert!(panicked.is_err());
        assert!(pollster::block_on(queue.run(|| Ok(()))).is_ok());
    }
}
