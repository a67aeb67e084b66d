//! A runtime that its owner keeps.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use super::builder::RuntimeBuilder;
use super::handle::Handle;
use super::{executor, start};

/// A thread-per-core runtime: threads that each run tasks and a ring.
///
/// ```
/// use annulus::runtime::{self, Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// // One core on the calling thread, for one future:
/// let sum = Runtime::builder().block_on(async {
///     let task = runtime::spawn(async { 2 + 3 });
///     task.await
/// })??;
/// assert_eq!(sum, 5);
///
/// // The same future on each of two cores:
/// Runtime::builder().cores(2).run(|core| async move {
///     println!("core {} of {} runs on {}", core.index(), core.cores(), core.backend());
///     Ok(())
/// })
/// # }
/// ```
///
/// A value of this type is a runtime whose cores run on their own threads. Dropping it shuts the runtime down, and
/// waits for its end. On one of its cores, a drop does not wait.
///
/// ```
/// use annulus::net::{TcpListener, TcpStream};
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// let runtime = Runtime::builder().cores(1).start()?;
/// // Sockets stay on their core between the calls, in tasks.
/// let address = runtime.block_on(|| async {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     annulus::runtime::spawn(async move {
///         let stream = listener.accept().await?;
///         stream.send_all("hello").await.map_err(std::io::Error::from)
///     });
///     std::io::Result::Ok(address)
/// })??;
/// let received = runtime.block_on(move || async move {
///     TcpStream::connect(address).await?.recv_exact(vec![0; 5]).await.map_err(std::io::Error::from)
/// })?;
/// assert_eq!(received?, b"hello");
/// runtime.shutdown()
/// # }
/// ```
pub struct Runtime {
    handle: Handle,
    /// The thread of core 0, which ends after the other cores.
    thread: Option<thread::JoinHandle<io::Result<()>>>,
}

impl Runtime {
    /// Returns a builder with the default settings.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Returns the handle by which any thread reaches the cores.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future on core 0, and waits for its output. `start` runs on the core and makes the future.
    ///
    /// A synchronous function of a program that keeps the runtime:
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let runtime = Runtime::builder().start()?;
    /// let sum = runtime.block_on(|| async { 2 + 3 })?;
    /// assert_eq!(sum, 5);
    /// // Two levels of results if the future has its own:
    /// let text = runtime.block_on(|| async { annulus::runtime::engine().read_to_string("Cargo.toml").await })??;
    /// # assert!(text.contains("annulus")); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the runtime has ended, or if the calling thread is a core, which must not wait for another one; await
    /// [`Handle::spawn_on`] there.
    ///
    /// # Panics
    ///
    /// Panics if the future panics.
    pub fn block_on<S, F>(&self, start: S) -> io::Result<F::Output>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        if executor::current().is_some() {
            return Err(io::Error::other(
                "Runtime::block_on would block a core of a runtime; await Handle::spawn_on there",
            ));
        }
        match wait(self.handle.spawn_on(0, start)) {
            Ok(value) => Ok(value),
            Err(error) => match error.into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Shuts the runtime down as [`Handle::shutdown`] does, and waits for its end. On one of its cores, it does not
    /// wait.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// let runtime = annulus::runtime::Runtime::builder().start()?;
    /// let handle = runtime.handle().clone();
    /// runtime.shutdown()?; // all cores have ended; a drop would hide an error
    /// let late = pollster::block_on(handle.spawn_on(0, || async {}));
    /// assert!(late.unwrap_err().is_aborted());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the ring of a core has failed.
    ///
    /// # Panics
    ///
    /// Panics if a core has panicked.
    pub fn shutdown(mut self) -> io::Result<()> {
        self.end()
            .unwrap_or(Ok(Ok(())))
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn end(&mut self) -> Option<thread::Result<io::Result<()>>> {
        let thread = self.thread.take()?;
        self.handle.shutdown();
        // A forked child does not have the thread, and a core would wait for its own end.
        let waits = !self.handle.is_elsewhere() && !self.handle.has_this_thread();
        waits.then(|| thread.join())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("handle", &self.handle)
            .finish()
    }
}

impl RuntimeBuilder {
    /// Starts the cores on their own threads, for a program that keeps the runtime. A core runs the tasks that
    /// [`Runtime::block_on`] and [`Handle::spawn_on`] start.
    ///
    /// # Errors
    ///
    /// Fails as [`run`](RuntimeBuilder::run) does.
    pub fn start(self) -> io::Result<Runtime> {
        self.check()?;
        let (sender, handle) = mpsc::channel();
        let run = move || {
            let started = |handle| drop(sender.send(handle));
            let main = |_| async {
                super::stopping().await;
                Ok(())
            };
            start::run(&self, started, &main)
        };
        let thread = thread::Builder::new()
            .name("annulus-0".to_owned())
            .spawn(run)?;
        match handle.recv() {
            Ok(handle) => Ok(Runtime {
                handle,
                thread: Some(thread),
            }),
            // It ended before it had started.
            Err(_) => {
                let ended = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                Err(ended
                    .err()
                    .unwrap_or_else(|| io::ErrorKind::Interrupted.into()))
            }
        }
    }
}

/// Blocks the calling thread until `future` is ready.
fn wait<F: Future>(future: F) -> F::Output {
    struct Unparks(Thread);

    impl Wake for Unparks {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
