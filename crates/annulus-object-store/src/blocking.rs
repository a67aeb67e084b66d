//! System calls that io_uring has no opcode for, and sequences of calls that each would need a kernel worker.

use std::io;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::error::Failure;
use crate::file_systems::FileSystem;

/// Runs `work` on a thread of Tokio's blocking pool. Outside a Tokio runtime, the calling thread runs it, as
/// `LocalFileSystem` does.
///
/// Waits while calls on the file system use too many of them. Work that has started runs to its end, also if the future is
/// dropped.
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
fn ended(error: JoinError) -> Failure {
    Failure::new(
        "use the object store while the Tokio runtime shuts down",
        io::Error::other(error),
    )
}

/// Work that its caller polls, so that it does not need the workers of the runtime, which other executors may block. If it
/// is dropped before its end, a task of the runtime continues it.
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
