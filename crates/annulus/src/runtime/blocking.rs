//! Blocking code on separate threads.

use std::panic::resume_unwind;
use std::sync::Arc;

use super::executor;
use super::task::{End, JoinHandle, NotRun, ReportedTask};
use crate::driver::Operation;
use crate::op::{RunBlocking, RunBlockingError};
use crate::sys::heap;

/// Runs `work` on one of the runtime's [blocking threads](super::RuntimeBuilder::blocking_threads), so that it does
/// not block the core. It waits while all of them are busy.
///
/// [`abort`](JoinHandle::abort) and the end of the runtime prevent work from starting. Work that has started runs to
/// its end, and the end of the runtime waits for it (see [`drain_timeout`](super::RuntimeBuilder::drain_timeout)).
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # std::panic::set_hook(Box::new(|_| ()));
/// use annulus::runtime;
///
/// let lines = runtime::spawn_blocking(|| std::fs::read_to_string("Cargo.toml").map(|text| text.lines().count()));
/// assert!(lines.await?? > 0); // the outer result is the task's, the inner one the closure's
///
/// let error = runtime::spawn_blocking(|| panic!("no luck")).await.unwrap_err();
/// assert!(error.into_panic().is_ok());
/// # Ok(()) })? }
/// ```
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core. A panic of `work` is returned as a
/// [`JoinError`](super::JoinError).
pub fn spawn_blocking<W, T>(work: W) -> JoinHandle<T>
where
    W: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let Some(executor) = executor::current() else {
        panic!(
            "runtime::spawn_blocking needs a runtime core, and this thread is not one; call it in a task of a runtime"
        );
    };
    let end = End::new();
    let handle = JoinHandle::new(Arc::clone(&end));
    let Some(files) = executor
        .engine()
        .map(|engine| Arc::clone(engine.submitter()))
    else {
        unreachable!("a core that runs tasks has a submitter")
    };
    let run = async move {
        match Operation::new(&files, RunBlocking::new(work)).await {
            Ok(value) => value,
            Err(RunBlockingError::Panicked(panic)) => resume_unwind(panic),
            // Not a panic: `JoinError::of` reports the error.
            Err(RunBlockingError::NotRun(error)) => resume_unwind(Box::new(NotRun(error))),
        }
    };
    executor.start(ReportedTask::new(run, end));
    handle
}

/// Returns freed memory to the system (`malloc_trim(3)`), for `annulus-http` only, which has no unsafe code. glibc's
/// allocator otherwise returns only the memory above the highest allocation. It may take some milliseconds.
pub fn trim_heap() {
    heap::trim();
}
