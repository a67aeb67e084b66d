//! How a runtime comes into being, and how it ends: a thread per core, each with a ring of its own.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use super::executor::{self, Executor, Inbox, Message};
use super::task::{End, JoinHandle, Promise, Told};
use crate::buf::GroupLayout;
use crate::driver::core::{Core, CoreConfig};
use crate::driver::here::Driving;
use crate::driver::uring::Tuning;
use crate::driver::{Lane, LaneThread, Limits, Opcodes, Submitter, Thread, blocking};
use crate::error::SetupError;
use crate::sys::affinity;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{RingConfig, Rung};

/// How the cores learn what their sockets can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// io_uring where it is there, allowed and affordable; else epoll, and blocking threads for files.
    #[default]
    Auto,
    /// io_uring, or an error that says what to change.
    Uring,
    /// epoll, and blocking threads for files.
    Epoll,
}

/// Which backend a core runs on, and why. `Display` is a sentence for people.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackendInUse {
    /// A ring.
    Uring {
        /// How far up the ladder of set-up flags.
        rung: Rung,
        /// Entries of the submission queue.
        sq_entries: u32,
        /// Receive buffers.
        buffers: u16,
        /// Bytes of one.
        buffer_bytes: u32,
    },
    /// epoll, and blocking threads for files.
    Epoll {
        /// Why not io_uring; `None` if epoll was asked for.
        because: Option<SetupError>,
    },
}

impl fmt::Display for BackendInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendInUse::Uring {
                rung,
                sq_entries,
                buffers,
                buffer_bytes,
            } => write!(
                f,
                "io_uring ({}; {sq_entries} entries, {buffers} receive buffers of {buffer_bytes} bytes a core)",
                rung.describe()
            ),
            BackendInUse::Epoll { because: None } => f.write_str("epoll, as asked for"),
            BackendInUse::Epoll {
                because: Some(because),
            } => write!(f, "epoll and blocking threads: {because}"),
        }
    }
}

/// What a core knows of itself.
#[derive(Clone, Debug)]
pub struct CoreInfo {
    index: usize,
    cores: usize,
    backend: Arc<BackendInUse>,
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
    pub fn backend(&self) -> &BackendInUse {
        &self.backend
    }
}

/// Entries of a core's submission queue: few, for what is submitted together is answered together, and
/// should still be in the processor's cache then.
const SQ_ENTRIES: u32 = 128;
const CQ_ENTRIES: u32 = 1024;
/// Receive buffers of a core.
const GROUP: GroupLayout = GroupLayout {
    count: 128,
    bytes: 4096,
};
/// Kernel workers per ring, bounded (files) and unbounded (the rest).
const RING_WORKERS: [u32; 2] = [8, 16];
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
    backend: Backend,
    threads: usize,
    pin: bool,
    blocking_threads: usize,
    grace: Duration,
    core: CoreConfig,
}

impl Default for RuntimeBuilder {
    fn default() -> RuntimeBuilder {
        RuntimeBuilder {
            backend: Backend::Auto,
            threads: thread::available_parallelism().map_or(1, Into::into),
            pin: false,
            blocking_threads: BLOCKING_THREADS,
            grace: Duration::ZERO,
            core: CoreConfig {
                ring: RingConfig {
                    sq_entries: SQ_ENTRIES,
                    cq_entries: CQ_ENTRIES,
                    rung: Rung::Deferred,
                    workers: RING_WORKERS,
                    poll: RingPoll::Nothing,
                },
                group: GROUP,
                limits: Limits {
                    in_flight: CQ_ENTRIES / 2,
                    in_flight_bytes: 256 << 20,
                },
                tuning: Tuning {
                    chunk: None,
                    alone: true,
                    look_out_ns: 0,
                    drain_timeout: Duration::from_secs(30),
                },
            },
        }
    }
}

impl RuntimeBuilder {
    /// Which backend; [`Backend::Auto`] by default.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Cores: threads with a ring each. By default, as many as the process may use processors.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Keeps each core's thread on one processor, the n-th of those that the process may use. Off by
    /// default: on a machine that does other things as well, the scheduler knows better.
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

    /// How long tasks may go on when the core's future has ended, or
    /// [`Handle::shutdown`] has been called; none by default. Then they are dropped.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long the end waits for the kernel to give back what is in flight; 30 s by default. What it
    /// does not give back is leaked on purpose.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.core.tuning.drain_timeout = timeout;
        self
    }

    /// Receive buffers of a core: how many, a power of two up to 32,768, and how large, bytes. 128 of
    /// 4,096 by default. More than are in use together do harm: they are used by turns, and so each is
    /// out of the processor's cache by the time it is used again.
    pub fn receive_buffers(mut self, count: u16, bytes: u32) -> Self {
        self.core.group = GroupLayout { count, bytes };
        self
    }

    /// Entries of each submission queue; 128 by default. Backends: uring.
    pub fn ring_entries(mut self, entries: u32) -> Self {
        self.core.ring.sq_entries = entries;
        self.core.ring.cq_entries = entries.saturating_mul(4).max(CQ_ENTRIES);
        self
    }

    fn check(&self) -> Result<(), SetupError> {
        let GroupLayout { count, bytes } = self.core.group;
        let wrong = if self.threads == 0 {
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

    /// Runs `main` on each core and waits until it has ended on all of them.
    ///
    /// # Errors
    ///
    /// The first error that a core's `main` ended with; or [`SetupError`], which says what to change.
    ///
    /// # Panics
    ///
    /// If `main` does.
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
    /// As for [`run`](RuntimeBuilder::run).
    pub fn run_with<M, F>(self, started: impl FnOnce(Handle), main: M) -> io::Result<()>
    where
        M: Fn(CoreInfo) -> F + Send + Sync,
        F: Future<Output = io::Result<()>> + 'static,
    {
        self.check()?;
        let threads = self.threads;
        let inboxes = (0..threads)
            .map(|_| Inbox::new())
            .collect::<io::Result<Vec<_>>>()?;
        let handle = Handle {
            inboxes: inboxes.clone().into(),
        };
        let builder = &self;
        let (main, handle) = (&main, &handle);
        thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let mut others = Vec::new();
            let mut wait = Vec::new();
            for (index, inbox) in inboxes.iter().enumerate().skip(1) {
                let (go, gone) = mpsc::channel::<Option<Arc<Submitter>>>();
                wait.push(go);
                let (tell, inbox) = (tell.clone(), Arc::clone(inbox));
                let body = move || {
                    let made = Made::new(builder, index, inbox);
                    let seat = made.map(|made| {
                        let _ = tell.send(Ok(made.seat()));
                        made
                    });
                    let made = match seat {
                        Ok(made) => made,
                        Err(error) => return tell.send(Err(error)).map_err(|_| ended()),
                    };
                    match gone.recv() {
                        Ok(Some(files)) => made.serve(builder, files, handle, main),
                        _ => made.give_up(),
                    }
                };
                let name = format!("annulus-{index}");
                others.push(
                    thread::Builder::new()
                        .name(name)
                        .spawn_scoped(scope, body)?,
                );
            }
            let made = Made::new(builder, 0, Arc::clone(&inboxes[0]));
            let mut seats = vec![made.as_ref().map(Made::seat).ok()];
            let mut failed = made.as_ref().is_err();
            let mut refused = None;
            for _ in 1..threads {
                match told.recv() {
                    Ok(Ok(seat)) => seats.push(Some(seat)),
                    Ok(Err(error)) => refused = Some(error),
                    Err(_) => failed = true,
                }
            }
            failed |= refused.is_some();
            let files = (!failed).then(|| builder.files(seats.into_iter().flatten()));
            for go in wait {
                let _ = go.send(files.clone());
            }
            let mut outcome = match (made, files) {
                (Ok(made), Some(files)) => {
                    started(handle.clone());
                    made.serve(builder, files, handle, main)
                }
                (Ok(made), None) => {
                    made.give_up()?;
                    Err(refused.map_or_else(ended, io::Error::from))
                }
                (Err(error), _) => Err(error.into()),
            };
            for other in others {
                match other.join() {
                    Ok(other) => outcome = outcome.and(other),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            outcome
        })
    }

    /// Runs one future on a core of the calling thread's, and gives its value.
    ///
    /// # Errors
    ///
    /// [`SetupError`], which says what to change.
    ///
    /// # Panics
    ///
    /// If the future does, or if the thread is in a runtime already.
    pub fn block_on<F>(mut self, future: F) -> Result<F::Output, SetupError>
    where
        F: Future + 'static,
    {
        self.threads = 1;
        self.check()?;
        let os = |error| SetupError::Os {
            what: "an eventfd",
            error,
        };
        let inbox = Inbox::new().map_err(os)?;
        let made = Made::new(&self, 0, inbox)?;
        let files = self.files([made.seat()].into_iter());
        match made.drive(&self, files, false, || future) {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("nobody stops the main future of block_on"),
        }
    }

    /// Where the files of all cores are handed over.
    fn files(&self, seats: impl Iterator<Item = Seat>) -> Arc<Submitter> {
        let mut opcodes = Opcodes::NONE;
        let lanes = seats.flatten().map(|(lane, takes)| {
            opcodes = takes;
            LaneThread {
                lane,
                thread: Thread::None,
            }
        });
        let lanes = lanes.collect();
        let config = blocking::Config {
            threads: self.blocking_threads,
            limits: self.core.limits,
            drain_timeout: self.core.tuning.drain_timeout,
        };
        Arc::new(Submitter::new(lanes, opcodes, config))
    }
}

fn ended() -> io::Error {
    io::Error::other("a core of the runtime could not be started")
}

/// A core's part in the submitter: its lane, and what its ring takes. `None` without a ring.
type Seat = Option<(Arc<Lane>, Opcodes)>;

/// A core, before it runs.
struct Made {
    index: usize,
    executor: Rc<Executor>,
    seat: Seat,
    backend: Arc<BackendInUse>,
}

impl Made {
    fn new(builder: &RuntimeBuilder, index: usize, inbox: Arc<Inbox>) -> Result<Made, SetupError> {
        assert!(
            executor::current().is_none(),
            "a runtime was started on a thread that is in one"
        );
        if builder.pin {
            affinity::pin_to_nth(index);
        }
        let alarm = inbox.alarm();
        let ringed = match builder.backend {
            Backend::Epoll => Err(None),
            _ => match Made::with_ring(builder, &inbox) {
                Err(error) if builder.backend == Backend::Auto && error.allows_fallback() => {
                    Err(Some(error))
                }
                other => Ok(other?),
            },
        };
        let (core, seat, backend) = match ringed {
            Ok(made) => made,
            Err(because) => {
                let core = Core::with_readiness(&builder.core, alarm)?;
                (core, None, BackendInUse::Epoll { because })
            }
        };
        Ok(Made {
            index,
            executor: Executor::new(core, inbox),
            seat,
            backend: Arc::new(backend),
        })
    }

    fn with_ring(
        builder: &RuntimeBuilder,
        inbox: &Inbox,
    ) -> Result<(Rc<Core>, Seat, BackendInUse), SetupError> {
        let lane = Arc::new(Lane::new(Box::new(inbox.alarm())));
        let core = Core::with_ring(builder.core.clone(), inbox.alarm(), Arc::clone(&lane))?;
        let (rung, sq_entries, opcodes) = core.ring_facts();
        let backend = BackendInUse::Uring {
            rung,
            sq_entries,
            buffers: builder.core.group.count,
            buffer_bytes: builder.core.group.bytes,
        };
        Ok((core, Some((lane, opcodes)), backend))
    }

    fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// Another core could not be made.
    fn give_up(self) -> io::Result<()> {
        self.executor.leave();
        Ok(())
    }

    fn serve<M, F>(
        self,
        builder: &RuntimeBuilder,
        files: Arc<Submitter>,
        handle: &Handle,
        main: &M,
    ) -> io::Result<()>
    where
        M: Fn(CoreInfo) -> F,
        F: Future<Output = io::Result<()>> + 'static,
    {
        let info = CoreInfo {
            index: self.index,
            cores: handle.inboxes.len(),
            backend: Arc::clone(&self.backend),
        };
        match self.drive(builder, files, true, || main(info)) {
            Some(Ok(outcome)) => outcome,
            // Shut down.
            None => Ok(()),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs `main` to its end, then what it has left, as long as the grace allows. `None`: it was ended
    /// from outside, where `may_be_stopped` allows that.
    fn drive<F>(
        self,
        builder: &RuntimeBuilder,
        files: Arc<Submitter>,
        may_be_stopped: bool,
        main: impl FnOnce() -> F,
    ) -> Option<thread::Result<F::Output>>
    where
        F: Future + 'static,
    {
        let executor = self.executor;
        executor.enter(&files);
        let lane = self.seat.and_then(|(lane, _)| files.core_lane(&lane));
        let driving = lane.map(|lane| Driving::new(files.number(), lane));
        let end = End::new();
        let mut handle = JoinHandle::new(Arc::clone(&end));
        // From here on `main` may use the core: what it does before its first await runs now.
        match catch_unwind(AssertUnwindSafe(main)) {
            Ok(future) => executor.start(Told::new(future, end)),
            Err(panic) => {
                executor.leave();
                return Some(Err(panic));
            }
        }
        let stopped = || may_be_stopped && executor.is_stopping();
        executor.run(|| handle.is_finished() || stopped());
        handle.abort();
        let core = Rc::clone(executor.core());
        let grace_ns = u64::try_from(builder.grace.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = core.now_ns().saturating_add(grace_ns);
        let timer = core.set_timer(None, until_ns, Waker::noop());
        executor.run(|| executor.tasks() == 0 || core.now_ns() >= until_ns);
        core.clear_timer(timer);
        drop(core);
        executor.leave();
        drop(driving);
        match handle.take() {
            Ok(value) => Some(Ok(value)),
            Err(error) => error.into_panic().ok().map(Err),
        }
    }
}

/// Reaches a runtime's cores from any thread.
#[derive(Clone)]
pub struct Handle {
    inboxes: Arc<[Arc<Inbox>]>,
}

impl Handle {
    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.inboxes.len()
    }

    /// Starts a task on core `core`: `start` runs there, and makes the future, which stays there.
    ///
    /// If that core has ended, the handle says that the task was aborted.
    ///
    /// # Panics
    ///
    /// If there is no such core.
    pub fn spawn_on<S, F>(&self, core: usize, start: S) -> JoinHandle<F::Output>
    where
        S: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let end = End::new();
        let handle = JoinHandle::new(Arc::clone(&end));
        // Dropped unread, it tells that nothing came of it.
        let promise = Promise(Some(end));
        self.inboxes[core].send(Message::Start(Box::new(move || {
            if let (Some(executor), Some(end)) = (executor::current(), promise.keep()) {
                executor.start(Told::new(async move { start().await }, end));
            }
        })));
        handle
    }

    /// Ends the runtime: each core's main future is dropped, [`stopping`](super::stopping) is ready, and
    /// other tasks have the [grace](RuntimeBuilder::grace) to come to an end.
    pub fn shutdown(&self) {
        (self.inboxes.iter()).for_each(|inbox| inbox.send(Message::Stop));
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("cores", &self.cores())
            .finish()
    }
}
