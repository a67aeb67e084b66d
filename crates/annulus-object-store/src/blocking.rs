//! System calls that io_uring has no opcode for, and sequences of calls that each would need a kernel worker.

use std::io;
use std::panic::resume_unwind;

use tokio::runtime::Handle;
use tokio::task::JoinError;

use crate::error::Failure;

/// Runs `work` on a thread of Tokio's blocking pool. Outside a Tokio runtime, the calling thread runs it, as
/// `LocalFileSystem` does.
///
/// Work that has started runs to its end, also if the future is dropped.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let Ok(runtime) = Handle::try_current() else {
        return work();
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
