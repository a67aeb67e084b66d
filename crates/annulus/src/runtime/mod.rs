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
/// A task needs no `Send`, because it stays on its core:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::{cell::Cell, rc::Rc};
/// use annulus::runtime;
///
/// let counter = Rc::new(Cell::new(0));
/// let shared = Rc::clone(&counter);
/// let task = runtime::spawn(async move { shared.set(shared.get() + 1) });
/// assert_eq!(counter.get(), 0); // it runs when this task waits
/// task.await?;
/// assert_eq!(counter.get(), 1);
/// # Ok(()) })? }
/// ```
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
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// let handle = runtime::handle(); // `Send`; take it along to another thread
/// let sum = std::thread::spawn(move || handle.spawn_on(0, || async { 2 + 3 }));
/// let task = runtime::spawn_blocking(|| sum.join().unwrap()).await?; // joining blocks
/// assert_eq!(task.await?, 5);
/// # Ok(()) })? }
/// ```
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
/// A task that sends back the bytes that have arrived before the shutdown, and then ends:
///
/// ```
/// use std::time::Duration;
///
/// use annulus::net::{TcpListener, TcpStream};
/// use annulus::runtime::{self, Runtime};
/// use futures_lite::future::or;
///
/// async fn echo(stream: TcpStream) -> std::io::Result<()> {
///     let stopped = async || {
///         runtime::stopping().await;
///         None
///     };
///     let mut chunks = stream.recv_multishot();
///     while let Some(chunk) = or(chunks.next(), stopped()).await { // the first that is ready
///         stream.send_all(chunk?).await?;
///     }
///     Ok(())
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)); let end = ended.clone();
/// Runtime::builder().grace(Duration::from_secs(60)).block_on(async move {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let client = TcpStream::connect(listener.local_addr()?).await?;
///     # let echo = move |stream| { let end = end.clone(); async move {
///     #     echo(stream).await.unwrap(); end.store(true, std::sync::atomic::Ordering::Relaxed) } };
///     runtime::spawn(echo(listener.accept().await?));
///     client.send_all("hello").await?;
///     assert_eq!(client.recv_exact(vec![0; 5]).await?, b"hello");
///     Ok::<_, std::io::Error>(()) // the main future ends: the grace period begins
/// })??;
/// # assert!(ended.load(std::sync::atomic::Ordering::Relaxed));
/// # Ok(()) }
/// ```
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
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// assert!(!runtime::is_stopping());
/// runtime::handle().shutdown();
/// while !runtime::is_stopping() {
///     runtime::yield_now().await; // a loop that looks after each step whether to go on
/// }
/// # Ok(()) })? }
/// ```
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

/// Lets the other tasks of the core that are ready run before the calling task continues. The core polls its ring after
/// at most 256 polls of tasks, so a task that yields in a loop delays completions by that many turns.
///
/// A long computation that lets connections make progress:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// let other = runtime::spawn(async { 7 });
/// let mut sum = 0_u64;
/// for part in 0..100 {
///     sum += (part * 1000..(part + 1) * 1000).sum::<u64>();
///     runtime::yield_now().await;
/// }
/// assert!(other.is_finished());
/// assert_eq!(sum, 4_999_950_000);
/// # Ok(()) })? }
/// ```
pub async fn yield_now() {
    coop_budget::yield_now().await;
}
