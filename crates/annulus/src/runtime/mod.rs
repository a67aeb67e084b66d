//! A thread per core: each has a ring, or epoll where there is none, and runs tasks that stay on it.
//!
//! ```no_run
//! use annulus::net::{TcpListener, TcpStream};
//! use annulus::runtime::{self, Runtime};
//!
//! fn main() -> std::io::Result<()> {
//!     Runtime::builder().threads(2).run(|_core| serve())
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
pub mod fs;
mod handle;
mod start;
mod task;

pub use blocking::{spawn_blocking, trim_heap};
pub use bound::CoreBound;
pub use builder::{CoreBackend, CoreInfo, Runtime, RuntimeBuilder};
pub use handle::Handle;
pub use task::{JoinError, JoinHandle};

pub use crate::buf::ReceiveMode;
pub use crate::metrics::CoreMetrics;

use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use executor::Executor;

/// Starts a task on the calling core. It runs whether or not the handle is awaited.
///
/// # Panics
///
/// Outside a runtime.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    executor::spawn(future)
}

/// The way to the cores of the calling thread's runtime, for other threads and for other cores.
///
/// # Panics
///
/// Outside a runtime.
pub fn handle() -> Handle {
    let executor = executor::current();
    let handle = executor.as_ref().and_then(|executor| executor.handle());
    let Some(handle) = handle else {
        panic!("handle was called outside a runtime; other threads are given one by run_with");
    };
    handle.clone()
}

/// Ready when the runtime has been told to end, or the main future of the calling core has ended: for tasks
/// that have something to finish first, for which they have the [grace](RuntimeBuilder::grace).
///
/// # Panics
///
/// Outside a runtime.
pub async fn stopping() {
    let Some(executor) = executor::current() else {
        panic!("stopping was awaited outside a runtime");
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

/// Whether [`stopping`] is ready, for tasks that it has woken. False outside a runtime.
#[inline]
pub fn is_stopping() -> bool {
    executor::is_stopping()
}

/// Leaves nothing behind when it is dropped: a server's every connection may wait for the end.
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
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
