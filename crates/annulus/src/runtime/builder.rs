//! The options of a runtime.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[cfg(feature = "tokio")]
use super::tokio_context::TokioChoice;
use super::{executor, start};
use crate::backend::{Backend, BackendInUse};
use crate::buf::{GroupLayout, ReceiveMode};
use crate::driver::core::{CoreConfig, GroupChoice};
use crate::driver::uring::Tuning;
use crate::error::SetupError;
use crate::ring_options::{RingOptions, ring_option_methods};
use crate::sys::ring::SetupMode;
use crate::sys::sq_poll::SqPoll;

/// The position of a core in its runtime, and its backend.
///
/// Work that one core does for all:
///
/// ```
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().run(|core| async move {
///     if core.index() == 0 {
///         println!("{} cores on {}", core.cores(), core.backend());
///     }
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CoreInfo {
    pub(super) index: usize,
    pub(super) cores: usize,
    pub(super) backend: Arc<BackendInUse>,
}

impl CoreInfo {
    /// Returns the index of this core, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Returns the core's backend and the reason for it.
    pub fn backend(&self) -> &BackendInUse {
        &self.backend
    }
}

/// Entries of a core's submission queue. It is small because operations that are submitted together complete
/// together, and should still be in the CPU cache then.
const SQ_ENTRIES: u32 = 128;
/// Smallest number of entries of a core's completion queue, and how many there are for each entry of the submission
/// queue.
const CQ_ENTRIES: u32 = 1024;
const CQ_PER_SQ: u32 = 4;
/// Default of `close_timeout`, as in other servers (nginx: `send_timeout`).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Configures and starts a runtime. Made by [`Runtime::builder`](super::Runtime::builder).
///
/// ```
/// use std::time::Duration;
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder()
///     .cores(2) // default: one per processor
///     .grace(Duration::from_secs(10)) // for requests that have begun, at the end
///     .run(|core| async move {
///         println!("{}", core.backend());
///         Ok(()) // the end of `main` on each core ends the runtime
///     })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    pub(super) options: RingOptions,
    pub(super) pin: bool,
    pub(super) grace: Duration,
    close_timeout: Duration,
    group: GroupChoice,
    #[cfg(feature = "signal")]
    pub(super) shutdown_on_signals: bool,
    #[cfg(feature = "tokio")]
    pub(super) tokio: TokioChoice,
}

impl Default for RuntimeBuilder {
    fn default() -> RuntimeBuilder {
        let threads = thread::available_parallelism().map_or(1, Into::into);
        RuntimeBuilder {
            options: RingOptions::new(threads, SQ_ENTRIES, CQ_ENTRIES / 2, SetupMode::Deferred),
            pin: false,
            grace: Duration::ZERO,
            close_timeout: CLOSE_TIMEOUT,
            group: GroupChoice::default(),
            #[cfg(feature = "signal")]
            shutdown_on_signals: false,
            #[cfg(feature = "tokio")]
            tokio: TokioChoice::None,
        }
    }
}

ring_option_methods!(RuntimeBuilder, 128);

impl RuntimeBuilder {
    /// Sets the number of cores, each a thread with a ring. By default, one per processor that the process may use.
    pub fn cores(mut self, cores: usize) -> Self {
        self.options.threads = cores;
        self
    }

    /// Sets whether each core's thread is pinned to a processor while the runtime runs: core n to the n-th processor
    /// that the process may use. Blocking threads are not pinned. Off by default, because the scheduler does better
    /// on a machine that also does other work.
    ///
    /// For a machine that does nothing else. With less than one processor per core, pinning slows the program down:
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::builder().pin(true).run(|_core| async { Ok(()) })
    /// # }
    /// ```
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Sets the grace period: how long tasks and sends may continue after the core's main future has ended, or after
    /// [`Handle::shutdown`](super::Handle::shutdown). Zero by default.
    ///
    /// After it, tasks are dropped, and a TCP connection that is still sending is reset, so that its peer does not
    /// take a part of a message for the whole. A Unix stream can't be reset: its peer reads the end of the stream.
    ///
    /// Without it, tasks that are in the middle of something are dropped at the end:
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::runtime::{self, Runtime};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// Runtime::builder().grace(Duration::from_secs(5)).block_on(async {
    ///     let stream = annulus::net::UnixStream::from_std(near)?;
    ///     runtime::spawn(async move {
    ///         runtime::yield_now().await;
    ///         stream.send_all("the last words").await
    ///     });
    ///     std::io::Result::Ok(()) // the task goes on for up to 5 s
    /// })??;
    /// # let mut text = String::new(); std::io::Read::read_to_string(&mut far, &mut text)?;
    /// # assert_eq!(text, "the last words"); Ok(()) }
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets how long a dropped stream goes on sending to a peer that accepts nothing; 60 s by default.
    /// [`Duration::MAX`] is no limit.
    ///
    /// Sends that have begun, and the data of a [`Writer`](crate::net::Writer), are sent after the drop while the
    /// peer accepts some data, however slowly. If a peer accepts nothing for this time, the connection is reset and
    /// the descriptor is closed, after at most twice the time. `close_timeouts` in [`Counts`](crate::metrics::Counts)
    /// counts these connections. [`TcpStream::set_close_timeout`](crate::net::TcpStream::set_close_timeout) sets the
    /// time for one stream.
    ///
    /// A server of slow clients that should not keep dead connections for a minute:
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::runtime::Runtime;
    ///
    /// let builder = Runtime::builder().close_timeout(Duration::from_secs(10));
    /// # builder.block_on(async {})?;
    /// # Ok::<(), annulus::SetupError>(())
    /// ```
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Sets the number of receive buffers of a core, a power of two up to 32,768, and their size, from 64 bytes to 1
    /// GiB. The default is 128 of 4,096 bytes; with incremental filling, 8 of 65,536.
    ///
    /// Unneeded buffers cost speed: they are used in rotation, so each one has left the CPU cache when it is used
    /// again.
    ///
    /// For large messages. A number that is not a power of two is refused at the start:
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// let wrong = Runtime::builder().receive_buffers(100, 65_536).block_on(async {});
    /// assert!(wrong.is_err());
    /// Runtime::builder().receive_buffers(64, 65_536).block_on(async {})?; // 4 MiB per core
    /// # Ok::<(), annulus::SetupError>(())
    /// ```
    pub fn receive_buffers(mut self, count: u16, bytes: u32) -> Self {
        self.group.size = Some((count, bytes));
        self
    }

    /// Sets how the kernel fills receive buffers; [`ReceiveMode::Whole`] by default. Backends: uring.
    ///
    /// Another mode is first tested on a pair of sockets. It is not used if the kernel lacks it or gets it wrong;
    /// [`CoreInfo::backend`] then reports the reason.
    pub fn receive_mode(mut self, mode: ReceiveMode) -> Self {
        self.group.mode = mode;
        self
    }

    /// Shuts the runtime down at SIGINT and SIGTERM, as [`Handle::shutdown`](super::Handle::shutdown) does. The
    /// [`grace`](RuntimeBuilder::grace) period is then the time that requests in progress have. No effect on
    /// [`block_on`](RuntimeBuilder::block_on).
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let builder = Runtime::builder().shutdown_on_signals().grace(Duration::from_secs(10));
    /// builder.run(|core| async move {
    ///     # if core.index() == 0 { signal_hook::low_level::raise(annulus::signal::SIGTERM)?; }
    ///     std::future::pending().await // a server; dropped at SIGTERM, and `run` returns
    /// })
    /// # }
    /// ```
    ///
    /// Needs the feature `signal`.
    #[cfg(feature = "signal")]
    pub fn shutdown_on_signals(mut self) -> Self {
        self.shutdown_on_signals = true;
        self
    }

    /// Gives each core a current-thread Tokio runtime on the core's thread. Code on a core can then use
    /// `tokio::{time, net, fs, process, signal}`, `tokio::spawn` and `spawn_blocking`, and libraries that need them.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::builder().cores(1).with_tokio().run(|_core| async {
    ///     tokio::time::sleep(Duration::from_millis(1)).await;
    ///     let sum = tokio::spawn(async { 2 + 3 }).await?;
    ///     assert_eq!(sum, 5);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// Tasks of `tokio::spawn` run on the core that spawned them, and may use its sockets. One that blocks its thread
    /// blocks the core, so use `spawn_blocking`. `block_in_place` works in tasks of the core; in tasks of
    /// `tokio::spawn` it panics, as in every current-thread runtime. Use
    /// [`with_tokio_handle`](RuntimeBuilder::with_tokio_handle) for tasks that need other threads.
    ///
    /// Tokio's tasks are dropped after those of the core. The core then waits for blocking work for at most the
    /// [`drain_timeout`](RuntimeBuilder::drain_timeout); with a [grace period](RuntimeBuilder::grace), only until its
    /// end. Code that does not use Tokio costs no more than without it.
    ///
    /// A thread inside a Tokio runtime can't run another one. If the calling thread is, a multi-thread runtime with a
    /// worker per core runs beside the cores instead.
    ///
    /// Needs the feature `tokio`.
    #[cfg(feature = "tokio")]
    pub fn with_tokio(mut self) -> Self {
        self.tokio = TokioChoice::Own;
        self
    }

    /// Sets the newest set-up mode of the cores' rings to try; [`SetupMode::Deferred`] by default. io_uring only.
    ///
    /// Cores with [their own Tokio runtime](RuntimeBuilder::with_tokio) use [`SetupMode::Cooperative`] if the kernel
    /// announces deferred work late (docs/reference/kernels.md).
    pub fn setup_mode(mut self, setup_mode: SetupMode) -> Self {
        self.options.setup_mode = setup_mode;
        self
    }

    /// Gives each core the context of an existing Tokio runtime instead of [its own](RuntimeBuilder::with_tokio). Tasks
    /// of `tokio::spawn` then run on the threads of that runtime, and each wake-up between them and a core costs a
    /// system call if the woken thread sleeps.
    ///
    /// If that runtime ends before the cores, its timers and sockets fail or panic in the tasks that use them. A
    /// current-thread runtime makes progress only while some thread is in its `block_on`.
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokio = tokio::runtime::Runtime::new()?;
    /// let builder = Runtime::builder().with_tokio_handle(tokio.handle().clone());
    /// let name = builder.block_on(async {
    ///     // On a thread of Tokio, so the future must be `Send`, and sockets of the core can't be used.
    ///     tokio::spawn(async { std::thread::current().name().map(str::to_owned) }).await
    /// })??;
    /// assert_ne!(name, std::thread::current().name().map(str::to_owned));
    /// # Ok(()) }
    /// ```
    ///
    /// Needs the feature `tokio`.
    #[cfg(feature = "tokio")]
    pub fn with_tokio_handle(mut self, handle: tokio::runtime::Handle) -> Self {
        self.tokio = TokioChoice::Of(handle);
        self
    }

    /// Returns the configuration of a core. All cores are made from one returned value.
    pub(super) fn core(&self) -> CoreConfig {
        let cq_entries = self.options.sq_entries.saturating_mul(CQ_PER_SQ);
        CoreConfig {
            ring: self.options.ring(cq_entries.max(CQ_ENTRIES)),
            #[cfg(feature = "tokio")]
            may_sleep_outside: matches!(self.tokio, TokioChoice::Own),
            group: self.group,
            limits: self.options.limits,
            tuning: Tuning {
                chunk: None,
                alone: true,
                batch_delay_ns: 0,
                busy_poll_ns: 0,
                drain_timeout: self.options.drain_timeout,
            },
            close_timeout: self.close_timeout,
        }
    }

    /// Returns whether the simulated kernel was requested.
    fn is_simulated(&self) -> bool {
        match self.options.backend {
            Backend::Auto | Backend::Uring | Backend::Fallback => false,
            #[cfg(feature = "test-util")]
            Backend::Sim(_) => true,
        }
    }

    pub(super) fn check(&self) -> Result<(), SetupError> {
        let group = self.group;
        let GroupLayout { count, bytes, .. } = group.layout(group.mode);
        let wrong = if executor::current().is_some() {
            "this thread is already a core of a runtime; await the future there, or start the other runtime on \
             another thread"
                .to_owned()
        } else if !executor::is_possible() {
            "this thread is ending, and its thread-locals have been dropped; start the runtime before the thread \
             ends, or on another thread"
                .to_owned()
        } else if self.is_simulated() {
            "Backend::Sim has no sockets, so a runtime can't use it; build an Engine with it, or use \
             Backend::Fallback here"
                .to_owned()
        } else if !count.is_power_of_two() || count > 1 << 15 {
            format!("the number of receive_buffers must be a power of two up to 32768, not {count}")
        } else if !(64..=1 << 30).contains(&bytes) {
            format!("the size of receive_buffers must be 64 bytes to 1 GiB, not {bytes} bytes")
        } else {
            return self.options.check("cores");
        };
        Err(SetupError::Config(wrong))
    }

    /// Runs `main` on each core, and waits until it has ended on all of them. The calling thread is the first core
    /// meanwhile.
    ///
    /// The first error ends all cores, and is returned:
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// let ended = Runtime::builder().run(|core| async move {
    ///     match core.index() {
    ///         0 => Err(std::io::Error::other("no configuration")),
    ///         _ => std::future::pending().await, // dropped
    ///     }
    /// });
    /// assert_eq!(ended.unwrap_err().to_string(), "no configuration");
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the first error of a core's `main`, which ends the runtime. Fails with [`SetupError`] if the
    /// runtime can't start; the error names the setting to change.
    ///
    /// A forked child that returns to its core gets an error, because the core belongs to its parent. If there are
    /// several cores, such a child is aborted, because it does not have the threads of the other cores.
    ///
    /// # Panics
    ///
    /// Panics if `main` panics on any core. The runtime is ended first.
    pub fn run<M, F>(self, main: M) -> io::Result<()>
    where
        M: Fn(CoreInfo) -> F + Send + Sync,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.check()?;
        start::run(&self, drop, &main)
    }

    /// Runs one future on a single core, which uses the calling thread. Returns the future's output.
    ///
    /// A runtime within a core of another one is refused. Await the future instead, or use a blocking thread:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::runtime::{Runtime, spawn_blocking};
    ///
    /// assert!(Runtime::builder().block_on(async {}).is_err());
    /// let sum = spawn_blocking(|| Runtime::builder().block_on(async { 2 + 3 })).await?;
    /// assert_eq!(sum?, 5);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`SetupError`] if the core can't be made, or the calling thread is a core already; the error says
    /// what to change. A forked child that returns to the core gets an error, because the core belongs to its parent.
    ///
    /// # Panics
    ///
    /// Panics if the future panics.
    pub fn block_on<F>(mut self, future: F) -> Result<F::Output, SetupError>
    where
        F: Future + 'static,
    {
        self.options.threads = 1;
        self.check()?;
        start::block_on(&self, future)
    }
}
