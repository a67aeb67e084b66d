//! A thread-per-core runtime. Each core is a thread with a ring, or with epoll where io_uring is missing, and runs
//! tasks that stay on it.
//!
//! ```no_run
//! use annulus::net::{TcpListener, TcpStream};
//! use annulus::runtime::{self, Runtime};
//!
//! fn main() -> std::io::Result<()> {
//!     Runtime::builder().cores(2).run(|_core| serve())
//! }
//!
//! async fn serve() -> std::io::Result<()> {
//!     // Once per core: the kernel spreads connections over the listeners of this runtime.
//!     let mut incoming = TcpListener::bind("127.0.0.1:7000")?.accept_multishot();
//!     while let Some(stream) = incoming.next().await {
//!         runtime::spawn(echo(stream?));
//!     }
//!     Ok(())
//! }
//!
//! async fn echo(stream: TcpStream) -> std::io::Result<()> {
//!     let mut chunks = stream.recv_multishot();
//!     while let Some(chunk) = chunks.next().await {
//!         stream.send_all(chunk?).await?;
//!     }
//!     Ok(())
//! }
//! ```

mod blocking;
mod bound;
mod builder;
mod executor;
mod handle;
#[cfg(feature = "tokio")]
mod local_tokio;
mod start;
mod started;
mod surroundings;
mod task;
#[cfg(feature = "tokio")]
mod tokio_context;

pub use blocking::spawn_blocking;
#[doc(hidden)]
pub use blocking::trim_heap;
pub use bound::CoreBound;
pub use builder::{CoreInfo, RuntimeBuilder};
pub use handle::Handle;
pub use started::Runtime;
pub use task::{JoinError, JoinHandle};

pub use crate::backend::ReceiveInUse;
pub use crate::buf::ReceiveMode;
#[doc(hidden)]
pub use crate::driver::coop_budget::PollBudget;
pub use crate::metrics::CoreMetrics;

use std::future::Future;
use std::rc::Rc;

use executor::Executor;

use crate::driver::coop_budget;
use crate::engine::Engine;

/// Starts a task on the calling core. Dropping the handle does not end the task.
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    executor::spawn(future)
}

/// Returns a handle to the calling thread's runtime, for other threads and other cores.
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn handle() -> Handle {
    let executor = executor::current();
    let handle = executor.as_ref().and_then(|executor| executor.handle());
    let Some(handle) = handle else {
        panic!(
            "runtime::handle needs a runtime core, and this thread is not one; other threads get a handle from \
             a core, or from Runtime::handle"
        );
    };
    handle.clone()
}

/// Returns the engine of the calling core, for its files. Their operations use the core's ring.
///
/// Other threads may use it and its files, too, through the cores. If a core ends, another core runs the operations
/// that were queued and not started. After the runtime has ended, operations fail with
/// [`EngineError::Ended`](crate::EngineError::Ended).
///
/// ```
/// use annulus::runtime::{self, Runtime};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = Runtime::builder().cores(1).block_on(async {
///     let engine = runtime::engine();
///     engine.read_to_string("Cargo.toml").await
/// })??;
/// # assert!(text.contains("annulus"));
/// # Ok(()) }
/// ```
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn engine() -> Engine {
    let executor = executor::current();
    let engine = executor.as_ref().and_then(|executor| executor.engine());
    let Some(engine) = engine else {
        panic!(
            "runtime::engine needs a runtime core, and this thread is not one; use Engine::new on other threads"
        );
    };
    engine.clone()
}

/// Waits until the runtime shuts down, or the calling core's main future has ended. Tasks that have to finish work
/// first await it; they have the [grace period](RuntimeBuilder::grace) for that.
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub async fn stopping() {
    let Some(executor) = executor::current() else {
        panic!(
            "runtime::stopping needs a runtime core, and this thread is not one; await it in a task of a runtime"
        );
    };
    let mut waiting = WaitingForStop {
        executor,
        position: None,
    };
    std::future::poll_fn(|context| {
        let WaitingForStop { executor, position } = &mut waiting;
        executor.poll_stopping(position, context)
    })
    .await;
}

/// Returns whether [`stopping`] is ready. `false` on a thread that is not a runtime core.
#[inline]
pub fn is_stopping() -> bool {
    executor::is_stopping()
}

/// Removes its waker when it is dropped: every connection of a server may wait for the shutdown.
struct WaitingForStop {
    executor: Rc<Executor>,
    position: Option<usize>,
}

impl Drop for WaitingForStop {
    fn drop(&mut self) {
        let position = self.position.take();
        position
            .into_iter()
            .for_each(|position| self.executor.forget_stopping(position));
    }
}

/// Lets other tasks of the core run, and polls its ring, before the calling task continues.
pub async fn yield_now() {
    coop_budget::yield_now().await;
}
