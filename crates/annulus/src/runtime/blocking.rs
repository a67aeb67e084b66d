//! Code that blocks, on threads that may.

use std::panic::resume_unwind;
use std::sync::Arc;

use super::executor;
use super::task::{End, JoinHandle, NotRun, ReportedTask};
use crate::driver::Operation;
use crate::op::{RunBlocking, RunBlockingError};
use crate::sys::heap;

/// Runs `work` on one of the runtime's [blocking threads](super::RuntimeBuilder::blocking_threads), for what
/// would keep a core from its other tasks. Where all of them are busy it waits for its turn.
///
/// [`abort`](JoinHandle::abort), or the end of the runtime, keeps work from starting; what has started runs
/// to its end, for which the end of the runtime waits (see
/// [`drain_timeout`](super::RuntimeBuilder::drain_timeout)).
///
/// # Panics
///
/// Outside a runtime. A panic of `work` is the [`JoinError`](super::JoinError)'s.
pub fn spawn_blocking<W, T>(work: W) -> JoinHandle<T>
where
    W: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let Some(executor) = executor::current() else {
        panic!("spawn_blocking was called outside a runtime");
    };
    let end = End::new();
    let handle = JoinHandle::new(Arc::clone(&end));
    let Some(files) = executor.files().map(Arc::clone) else {
        unreachable!("a core that runs tasks has been entered")
    };
    let run = async move {
        match Operation::new(&files, RunBlocking::new(work)).await {
            Ok(value) => value,
            Err(RunBlockingError::Panicked(panic)) => resume_unwind(panic),
            // No panic, and told as what it is: see `JoinError::of`.
            Err(RunBlockingError::NotRun(error)) => resume_unwind(Box::new(NotRun(error))),
        }
    };
    executor.start(ReportedTask::new(run, end));
    handle
}

/// Returns freed memory to the system (`malloc_trim(3)`), for a server that has lost a crowd of clients: by itself,
/// glibc's allocator returns only what lies above everything that is in use. It may take some milliseconds, so call it
/// on a [blocking thread](spawn_blocking). With another C library it does nothing. Another global allocator is not
/// affected.
pub fn trim_heap() {
    heap::trim();
}
