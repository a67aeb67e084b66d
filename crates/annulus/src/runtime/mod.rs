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
//!     // Once per core: the kernel spreads connections over the listeners (SO_REUSEPORT).
//!     let mut incoming = TcpListener::bind("127.0.0.1:7000")?.accept_multishot();
//!     while let Some(stream) = incoming.next().await {
//!         let _ = runtime::spawn(echo(stream?));
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

mod builder;
mod executor;
mod task;

pub use builder::{Backend, BackendInUse, CoreInfo, Handle, Runtime, RuntimeBuilder};
pub use task::{JoinError, JoinHandle};

use std::future::Future;

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

/// Ready when the runtime has been told to end: for tasks that have something to finish first.
///
/// # Panics
///
/// Outside a runtime.
pub async fn stopping() {
    let executor = executor::current().expect("stopping was awaited outside a runtime");
    std::future::poll_fn(|context| executor.poll_stopping(context)).await;
}

/// Lets other tasks of the core run, and its ring turn, before the calling one goes on.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
