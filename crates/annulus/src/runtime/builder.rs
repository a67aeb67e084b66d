//! What can be chosen of a runtime, and what a core says of itself.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::handle::Handle;
use super::{executor, start};
use crate::backend::Backend;
use crate::buf::{GroupLayout, ReceiveMode};
use crate::driver::Limits;
use crate::driver::core::{CoreConfig, GroupChoice};
use crate::driver::uring::Tuning;
use crate::error::SetupError;
use crate::sys::polling::RingPoll;
use crate::sys::probe;
use crate::sys::ring::{RingConfig, SetupMode};
use crate::sys::sq_poll::{self, SqPoll};

/// The backend that a core runs on, and the reason. `Display` writes it as a sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum CoreBackend {
    /// A ring.
    Uring {
        /// The set-up mode that the kernel accepted.
        setup_mode: SetupMode,
        /// Entries of the submission queue.
        sq_entries: u32,
        /// Receive buffers.
        buffers: u16,
        /// Bytes of one.
        buffer_bytes: u32,
        /// How they are filled.
        receive_mode: ReceiveMode,
        /// Why not as [`RuntimeBuilder::receive_mode`] asked for.
        mode_refused: Option<String>,
        /// The kernel thread that polls the submission queues: as it was asked for, or why there is none;
        /// `None` if it was not asked for.
        sqpoll: Option<Result<SqPoll, SetupError>>,
    },
    /// epoll, and blocking threads for files.
    Epoll {
        /// Why not io_uring; `None` if epoll was asked for.
        because: Option<SetupError>,
    },
}

impl CoreBackend {
    /// Why it is not what would be best, if it is not.
    pub(super) fn fallback(&self) -> Option<String> {
        match self {
            CoreBackend::Uring {
                mode_refused,
                sqpoll,
                ..
            } => match sqpoll {
                Some(Err(error)) => Some(error.to_string()),
                _ => mode_refused.clone(),
            },
            CoreBackend::Epoll { because } => because.as_ref().map(ToString::to_string),
        }
    }
}

impl fmt::Display for CoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CoreBackend::Uring {
                setup_mode,
                sq_entries,
                buffers,
                buffer_bytes,
                receive_mode,
                mode_refused,
                sqpoll,
            } => {
                write!(
                    f,
                    "io_uring ({}; {sq_entries} entries, {buffers} receive buffers of {buffer_bytes} bytes a core",
                    setup_mode.describe()
                )?;
                write_mode(f, *receive_mode, mode_refused.as_deref())?;
                match sqpoll {
                    None => Ok(()),
                    Some(Ok(poll)) => {
                        write!(f, "; {poll}")?;
                        let advice = sq_poll::advice(probe::processors().len());
                        advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))
                    }
                    Some(Err(error)) => write!(f, "; without sqpoll: {error}"),
                }
            }
            CoreBackend::Epoll { because: None } => f.write_str("epoll, as configured"),
            CoreBackend::Epoll {
                because: Some(because),
            } => write!(f, "epoll and blocking threads: {because}"),
        }
    }
}

/// How receive buffers are filled, and the end of the parenthesis.
fn write_mode(f: &mut fmt::Formatter<'_>, mode: ReceiveMode, refused: Option<&str>) -> fmt::Result {
    f.write_str(match mode {
        ReceiveMode::Whole => "",
        ReceiveMode::Incremental => ", filled incrementally",
    })?;
    match refused {
        Some(because) => write!(f, ", one for each receive: {because})"),
        None => f.write_str(")"),
    }
}

/// What a core knows of itself.
#[derive(Clone, Debug)]
pub struct CoreInfo {
    pub(super) index: usize,
    pub(super) cores: usize,
    pub(super) backend: Arc<CoreBackend>,
}

impl CoreInfo {
    /// Which of the runtime's cores, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many there are.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// What it runs on, and why.
    pub fn backend(&self) -> &CoreBackend {
        &self.backend
    }
}

/// Entries of a core's submission queue: few, for what is submitted together is answered together, and
/// should still be in the processor's cache then.
const SQ_ENTRIES: u32 = 128;
const CQ_ENTRIES: u32 = 1024;
/// Kernel workers per ring, bounded (files) and unbounded (the rest).
const RING_WORKERS: [u32; 2] = [8, 16];
/// A peer that has taken nothing for so long is not waited for when its stream was dropped. Other servers give it as
/// long (nginx: `send_timeout`).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Blocking threads of a runtime.
const BLOCKING_THREADS: usize = 64;

/// Threads that each run tasks and a ring of their own.
#[derive(Debug)]
pub struct Runtime;

impl Runtime {
    /// All that can be chosen, with its defaults.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }
}

/// How a runtime is to be built. Made by [`Runtime::builder`].
#[derive(Clone, Debug)]
pub struct RuntimeBuilder {
    pub(super) backend: Backend,
    pub(super) threads: usize,
    pub(super) pin: bool,
    pub(super) blocking_threads: usize,
    pub(super) grace: Duration,
    pub(super) sqpoll: Option<SqPoll>,
    pub(super) core: CoreConfig,
}

impl Default for RuntimeBuilder {
    fn default() -> RuntimeBuilder {
        RuntimeBuilder {
            backend: Backend::Auto,
            threads: thread::available_parallelism().map_or(1, Into::into),
            pin: false,
            blocking_threads: BLOCKING_THREADS,
            grace: Duration::ZERO,
            sqpoll: None,
            core: CoreConfig {
                ring: RingConfig {
                    sq_entries: SQ_ENTRIES,
                    cq_entries: CQ_ENTRIES,
                    setup_mode: SetupMode::Deferred,
                    workers: RING_WORKERS,
                    poll: RingPoll::Nothing,
                },
                group: GroupChoice::default(),
                limits: Limits {
                    in_flight: CQ_ENTRIES / 2,
                    in_flight_bytes: 256 << 20,
                },
                tuning: Tuning {
                    chunk: None,
                    alone: true,
                    busy_poll_ns: 0,
                    drain_timeout: Duration::from_secs(30),
                },
                close_timeout: CLOSE_TIMEOUT,
            },
        }
    }
}

impl RuntimeBuilder {
    /// Sets the backend; [`Backend::Auto`] by default. [`Backend::Fallback`] uses epoll for sockets, and blocking
    /// threads for files. A runtime refuses `Backend::Sim`, because the simulated kernel has no sockets.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Cores: threads with a ring each. By default, as many as the process may use processors.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Keeps each core's thread on one processor, the n-th of those that the process may use, for as long
    /// as the runtime runs; blocking threads go where they like. Off by default: on a machine that does
    /// other things as well, the scheduler knows better.
    pub fn pin(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// The most blocking threads there may be, for [`spawn_blocking`](super::spawn_blocking) and for what
    /// the kernel's ring can't do; 64 by default. They start when they are needed.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = threads;
        self
    }

    /// How long tasks, and sends that have begun, may go on when the core's future has ended or
    /// [`Handle::shutdown`] has been called; zero by default. After it, tasks are dropped, and a TCP connection on
    /// which something is still being sent is reset, so that its peer does not take a part of a message for all of
    /// it. A Unix stream can't be reset: its peer reads an end.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long the end waits, after the grace, for the kernel and the blocking threads to give back what is in flight;
    /// 30 s by default, for sockets, files and threads together. What they do not give back is leaked on purpose, and
    /// counted (`leaked`).
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.core.tuning.drain_timeout = timeout;
        self
    }

    /// How long a stream that was dropped goes on sending to a peer that takes nothing; 60 s by default, and
    /// [`Duration::MAX`] without a limit. Sends that were begun, and what a [`Writer`](crate::net::Writer) holds, are
    /// sent after the drop as long as the peer takes some of it, however slowly. A peer that has taken nothing for this
    /// long, and at most twice as long, is disconnected by a reset, and the descriptor is closed; `close_timeouts` in
    /// [`Counts`](crate::metrics::Counts) counts these.
    /// [`TcpStream::set_close_timeout`](crate::net::TcpStream::set_close_timeout) sets it for one stream.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.core.close_timeout = timeout;
        self
    }

    /// Receive buffers of a core: how many, a power of two up to 32,768, and how large, bytes. 128 of
    /// 4,096 by default; filled incrementally, 8 of 65,536. More than are in use together do harm: they
    /// are used by turns, and so each is out of the processor's cache by the time it is used again.
    pub fn receive_buffers(mut self, count: u16, bytes: u32) -> Self {
        self.core.group.size = Some((count, bytes));
        self
    }

    /// How the kernel fills receive buffers; [`ReceiveMode::Whole`] by default. What a core gets is in
    /// [`CoreInfo::backend`]: another mode is tried on a pair of sockets first, and not used, with the
    /// reason, where the kernel lacks it or gets it wrong. Backends: uring.
    pub fn receive_mode(mut self, mode: ReceiveMode) -> Self {
        self.core.group.mode = mode;
        self
    }

    /// Entries of each submission queue; 128 by default. Backends: uring.
    pub fn ring_entries(mut self, entries: u32) -> Self {
        self.core.ring.sq_entries = entries;
        self.core.ring.cq_entries = entries.saturating_mul(4).max(CQ_ENTRIES);
        self
    }

    /// Has a kernel thread take what the cores ask for from their submission queues, so that submitting is no
    /// system call while that thread is awake; all cores share it. It takes a processor's time, and each ring
    /// uses the mode `Plain`: with few processors [`CoreInfo::backend`] advises against it. Where it is refused,
    /// [`Backend::Auto`] goes on without and says why; with [`Backend::Uring`] it is an error. Backends: uring.
    pub fn sqpoll(mut self, poll: SqPoll) -> Self {
        self.core.ring.poll = poll.ring_poll();
        self.sqpoll = Some(poll);
        self
    }

    /// Whether an engine's simulated kernel was requested.
    fn is_simulated(&self) -> bool {
        match self.backend {
            Backend::Auto | Backend::Uring | Backend::Fallback => false,
            #[cfg(feature = "test-util")]
            Backend::Sim(_) => true,
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        let group = self.core.group;
        let GroupLayout { count, bytes, .. } = group.layout(group.mode);
        let wrong = if executor::current().is_some() {
            "this thread is a core of a runtime and can't be one of another; await the future there, or \
             start the other runtime on a thread of its own"
                .to_owned()
        } else if !executor::is_possible() {
            "this thread is ending: what a core keeps in thread-locals has been dropped; start the runtime \
             before the thread ends, or on another thread"
                .to_owned()
        } else if self.is_simulated() {
            "Backend::Sim has no sockets, so a runtime can't use it; build an Engine with it, or use \
             Backend::Fallback here"
                .to_owned()
        } else if self.threads == 0 {
            "threads is 0; it must be at least 1".to_owned()
        } else if self.blocking_threads == 0 {
            "blocking_threads is 0; it must be at least 1".to_owned()
        } else if self.core.ring.sq_entries == 0 {
            "ring_entries is 0; it must be at least 1".to_owned()
        } else if !count.is_power_of_two() || count > 1 << 15 {
            format!("receive_buffers are a power of two, up to 32768, not {count}")
        } else if !(64..=1 << 30).contains(&bytes) {
            format!("a receive buffer has 64 bytes to 1 GiB, not {bytes}")
        } else {
            return Ok(());
        };
        Err(SetupError::Config(wrong))
    }

    /// Runs `main` on each core and waits until it has ended on all of them. The calling thread is the
    /// first core, for so long.
    ///
    /// # Errors
    ///
    /// The first error that a core's `main` ended with, which ends the runtime; or [`SetupError`], which
    /// says what to change. In a child of a fork that comes back to its core: that the core is its parent's.
    /// Where there are several cores, such a child is aborted, because it has no threads to wait for.
    ///
    /// # Panics
    ///
    /// If `main` does, on any core; the runtime is ended first.
    pub fn run<M, F>(self, main: M) -> io::Result<()>
    where
        M: Fn(CoreInfo) -> F + Send + Sync,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.run_with(|_| {}, main)
    }

    /// As [`run`](RuntimeBuilder::run); `started` is told first, with the handle by which other threads
    /// reach the cores.
    ///
    /// # Errors
    ///
    /// As for [`run`](RuntimeBuilder::run).
    ///
    /// # Panics
    ///
    /// As for [`run`](RuntimeBuilder::run), and if `started` does.
    pub fn run_with<M, F>(self, on_start: impl FnOnce(Handle), main: M) -> io::Result<()>
    where
        M: Fn(CoreInfo) -> F + Send + Sync,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.check()?;
        start::run(&self, on_start, &main)
    }

    /// Runs one future on a core of the calling thread's, and gives its value.
    ///
    /// # Errors
    ///
    /// [`SetupError`], which says what to change; a thread that is a core already can't be another. In a
    /// child of a fork that comes back to the core: that it is its parent's.
    ///
    /// # Panics
    ///
    /// If the future does.
    pub fn block_on<F>(mut self, future: F) -> Result<F::Output, SetupError>
    where
        F: Future + 'static,
    {
        self.threads = 1;
        self.check()?;
        start::block_on(&self, future)
    }
}
