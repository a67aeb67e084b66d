//! A handle to a runtime's cores for any thread.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use super::executor::{self, Inbox, Message};
use super::task::{End, JoinHandle, Promise, ReportedTask};
use crate::buf::{Arena, BufferLayout};
use crate::driver::Submitter;
use crate::error::SetupError;
use crate::fd::{AddressShare, SharedAddresses};
use crate::metrics::{CoreMetrics, Metrics};

/// A handle to a runtime's cores, for any thread. It may outlive the runtime; its functions then report that the
/// runtime has ended.
///
/// A thread that is not a core hands work to one and waits for its result:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// let handle = runtime::handle();
/// let thread = std::thread::spawn(move || {
///     let task = handle.spawn_on(0, || async { 2 + 3 });
///     pollster::block_on(task) // never on a core: it would wait for itself
/// });
/// while !thread.is_finished() {
///     runtime::yield_now().await;
/// }
/// assert_eq!(thread.join().unwrap()?, 5);
/// # Ok(()) })? }
/// ```
#[derive(Clone)]
pub struct Handle {
    cores: Arc<Cores>,
}

struct Cores {
    inboxes: Vec<Arc<Inbox>>,
    /// The submitter of the cores' files. Set when all cores exist, before any handle is given out.
    files: OnceLock<Arc<Submitter>>,
    addresses: Arc<SharedAddresses>,
}

impl Handle {
    pub(super) fn new(inboxes: Vec<Arc<Inbox>>) -> Handle {
        Handle {
            cores: Arc::new(Cores {
                files: OnceLock::new(),
                addresses: SharedAddresses::new(inboxes.len()),
                inboxes,
            }),
        }
    }

    /// Returns whether this process is a forked child of the one in which the cores run.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.cores
            .inboxes
            .iter()
            .any(|inbox| inbox.notifier().is_elsewhere())
    }

    /// Returns whether the calling thread is one of its cores.
    pub(super) fn has_this_thread(&self) -> bool {
        let executor = executor::current();
        let handle = executor.as_ref().and_then(|executor| executor.handle());
        handle.is_some_and(|handle| Arc::ptr_eq(&handle.cores, &self.cores))
    }

    pub(super) fn inbox(&self, core: usize) -> Arc<Inbox> {
        Arc::clone(&self.cores.inboxes[core])
    }

    pub(super) fn address_share(&self, core: usize) -> AddressShare {
        AddressShare::new(Arc::clone(&self.cores.addresses), core)
    }

    pub(super) fn set_files(&self, files: &Arc<Submitter>) {
        let _ = self.cores.files.set(Arc::clone(files));
    }

    /// Closes the mailboxes of the cores.
    pub(super) fn close(&self) {
        self.cores.inboxes.iter().for_each(|inbox| inbox.close());
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores.inboxes.len()
    }

    /// Starts a task on core `core`. `start` runs there and makes the future, which stays there.
    ///
    /// If the core has ended, the returned handle reports that the task was aborted.
    ///
    /// Sockets and other values that are not `Send` are made by the closure, on the core where they stay:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UnixStream;
    /// use annulus::runtime;
    ///
    /// # let (one, other) = std::os::unix::net::UnixStream::pair()?;
    /// let handle = runtime::handle();
    /// let last = handle.cores() - 1;
    /// let sent = handle.spawn_on(last, move || async move {
    ///     let stream = UnixStream::from_std(one)?; // `one` is a stream of std, which is `Send`
    ///     stream.send_all("hello").await?;
    ///     std::io::Result::Ok(())
    /// });
    /// sent.await??;
    /// # assert_eq!(UnixStream::from_std(other)?.recv_exact(vec![0; 5]).await?, b"hello");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `core` is not below [`cores`](Handle::cores).
    pub fn spawn_on<S, F>(&self, core: usize, start: S) -> JoinHandle<F::Output>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let end = End::new();
        let handle = JoinHandle::new(Arc::clone(&end));
        // Dropping the message unread reports that the task was aborted.
        let promise = Promise(Some(end));
        self.cores.inboxes[core].send(Message::Start(Box::new(move || {
            if let (Some(executor), Some(end)) = (executor::current(), promise.keep()) {
                executor.start(ReportedTask::new(async move { start().await }, end));
            }
        })));
        handle
    }

    /// Shuts down the runtime. Each core's main future is dropped, [`stopping`](super::stopping) becomes ready, and
    /// other tasks have the [grace period](super::RuntimeBuilder::grace) to end.
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let runtime = Runtime::builder().start()?;
    /// let handle = runtime.handle().clone();
    /// handle.shutdown(); // from any thread; returns immediately
    /// runtime.shutdown()?; // waits for the end
    /// let late = handle.spawn_on(0, || async {});
    /// assert!(pollster::block_on(late).unwrap_err().is_aborted()); // the runtime has ended
    /// # Ok(()) }
    /// ```
    pub fn shutdown(&self) {
        (self.cores.inboxes.iter()).for_each(|inbox| inbox.send(Message::Stop));
    }

    /// Returns the counters of core `core`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::runtime;
    ///
    /// let handle = runtime::handle();
    /// for core in 0..handle.cores() {
    ///     println!("core {core}: {:?}", handle.metrics(core));
    /// }
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `core` is not below [`cores`](Handle::cores).
    pub fn metrics(&self, core: usize) -> CoreMetrics {
        self.cores.inboxes[core].metrics()
    }

    /// Returns the counters of file operations on all cores, and of blocking threads. `enters` and `waits` are
    /// counted per core; see [`metrics`](Handle::metrics).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::runtime;
    ///
    /// let before = runtime::handle().file_metrics();
    /// runtime::engine().nop().await?;
    /// let after = runtime::handle().file_metrics();
    /// assert_eq!(after.submitted - before.submitted, 1);
    /// # Ok(()) })? }
    /// ```
    pub fn file_metrics(&self) -> Metrics {
        let files = self.cores.files.get();
        files.map(|files| files.metrics()).unwrap_or_default()
    }

    /// Allocates buffers that every core registers with its ring, as
    /// [`Engine::register_buffers`](crate::Engine::register_buffers) does for an engine. The call does not wait: each
    /// core registers them when it next polls its ring.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// use annulus::{buf::BufferLayout, runtime};
    ///
    /// let arena = runtime::handle().register_buffers(BufferLayout::new(16, 4096))?;
    /// let file = runtime::engine().open(&path).await?; // a file of this runtime
    /// let page = file.read_exact_at(arena.take().await, 0).await?;
    /// assert_eq!(page[0], 7);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `Config` if the layout is invalid or the runtime has ended, and with `Os` if the memory can't be
    /// allocated.
    pub fn register_buffers(&self, layout: BufferLayout) -> Result<Arena, SetupError> {
        let files = self.cores.files.get();
        let Some(files) = files.filter(|files| !files.has_ended()) else {
            let text = "can't register buffers: the runtime has ended; register them while it runs";
            return Err(SetupError::Config(text.to_owned()));
        };
        files.register_buffers(layout)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("cores", &self.cores())
            .finish()
    }
}
