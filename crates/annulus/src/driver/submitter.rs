//! The submitter: all drivers of one engine. When its last user drops it, the drivers are stopped and drained.

mod own_rings;

pub(crate) use own_rings::ThreadRingConfig;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::handle::DriverHandle;
use super::lazy_driver::LazyDriver;
use super::{Operation, blocking, contain, coop_budget, thread_rings};
use crate::buf::{Arena, Arenas, BouncePool, BufferLayout, RegisteredRegion};
use crate::error::SetupError;
use crate::fd::{CloseFd, MountHints};
use crate::metrics::{self, Counters, Metrics, OperationNumber, SourceKind, Times};
use crate::narrow::to_ns;
use crate::op::{FileOp, Nop, Resume, Sleep, SyncAttempt};
use crate::sys::call;
use crate::sys::forked;
use crate::sys::sqe::opcode;

/// The time that the creator of an arena waits for the drivers to register it. Tens of GiB are zeroed and pinned within
/// it. The limit matters for a driver that a foreign waker keeps busy.
const REGISTERED_WITHIN: Duration = Duration::from_secs(60);

/// A clock that deadlines are measured by.
pub(crate) trait Clock: Send + Sync {
    /// Returns ns since a fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

/// A driver handle, and the thread that runs the driver.
pub(crate) struct DriverThread {
    pub(crate) handle: Arc<DriverHandle>,
    pub(crate) thread: Thread,
}

/// The thread that runs a driver.
pub(crate) enum Thread {
    /// The thread that owns the driver, without a handle to join.
    #[cfg(any(test, feature = "net", feature = "test-util"))]
    None,
    Running(JoinHandle<()>),
    /// A thread that starts when something is submitted.
    Later(Arc<LazyDriver>),
}

impl Thread {
    fn running(self) -> Option<JoinHandle<()>> {
        match self {
            #[cfg(any(test, feature = "net", feature = "test-util"))]
            Thread::None => None,
            Thread::Running(thread) => Some(thread),
            Thread::Later(lazy) => lazy.take_thread(),
        }
    }
}

/// The drivers of one engine.
pub(crate) struct Submitter {
    pub(super) handles: Vec<Arc<DriverHandle>>,
    /// The driver whose ring polls devices, if there is one.
    pub(super) polled: Option<Arc<DriverHandle>>,
    threads: Mutex<Vec<Thread>>,
    pub(super) opcodes: Opcodes,
    /// The number of the engine in the cells of threads.
    number: u64,
    /// The process that created it.
    process: u64,
    /// The driver handles of threads with their own rings; created on first use, and reused.
    own: OnceLock<Box<[OnceLock<Arc<DriverHandle>>]>>,
    /// The configuration of threads' rings; `None` if threads have none.
    pub(crate) thread_ring_config: Option<ThreadRingConfig>,
    /// True if threads of executors get rings without a `CurrentThreadDriver`.
    pub(crate) executors_make_rings: bool,
    /// The first reason why a thread has no ring although its executor would drive it.
    refusal: Arc<OnceLock<SetupError>>,
    /// True if the engine is being drained.
    ended: AtomicBool,
    /// The deadline of the drain, ns; 0 before it starts.
    drain_until_ns: AtomicU64,
    /// The driver for operations that the kernel has no opcode for; created on first use.
    helpers: OnceLock<blocking::Pool>,
    blocking: blocking::Config,
    pub(crate) bounces: Arc<BouncePool>,
    /// The results of the files' first attempts to read from the page cache.
    pub(crate) mount_hints: Arc<MountHints>,
    /// The number of tasks that read whole files whose paths are not cached.
    pub(crate) cold_reads: AtomicUsize,
    /// The arenas that every driver registers.
    arenas: Arc<Arenas>,
    /// Closes descriptors, if they are not the process's own.
    pub(crate) closer: Option<Arc<dyn CloseFd>>,
    /// The clock of deadlines, if it is not the machine's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// Runs the drivers to their end on the calling thread, if there are no driver threads.
    pub(crate) finish_on_this_thread: Option<fn()>,
    /// The next starting position: each thread starts at a different driver.
    pub(super) threads_bound: AtomicUsize,
    /// Counts of operations completed without a driver, and of failed attempts.
    sync: Counters,
    /// The description of the backend, and the reason if it is a fallback; for metrics sources that are added later.
    about: OnceLock<(String, Option<String>)>,
}

/// The set of opcodes that a kernel supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opcodes([u64; 4]);

impl Opcodes {
    /// No opcode: everything runs on blocking threads.
    pub(crate) const NONE: Opcodes = Opcodes([0; 4]);

    pub(crate) fn of(takes: impl Fn(u8) -> bool) -> Opcodes {
        let mut bits = [0; 4];
        for opcode in (0..=u8::MAX).filter(|&opcode| takes(opcode)) {
            bits[usize::from(opcode / 64)] |= 1 << (opcode % 64);
        }
        // The driver's clock completes it.
        bits[usize::from(opcode::SLEEP / 64)] |= 1 << (opcode::SLEEP % 64);
        Opcodes(bits)
    }

    #[inline]
    pub(super) fn has(&self, opcode: u8) -> bool {
        self.0[usize::from(opcode / 64)] & 1 << (opcode % 64) != 0
    }
}

impl Submitter {
    pub(crate) fn new(
        handles: Vec<DriverThread>,
        opcodes: Opcodes,
        blocking: blocking::Config,
    ) -> Submitter {
        let number = thread_rings::new_engine();
        let sync = Counters::new(SourceKind::FastPath);
        sync.set_owner(number, 0);
        let mut threads = Vec::new();
        let arenas = Arc::<Arenas>::default();
        let handles = handles
            .into_iter()
            .enumerate()
            .map(|(index, DriverThread { handle, thread })| {
                handle.counters.set_owner(number, index);
                threads.push(thread);
                handle.follow(&arenas);
                handle
            })
            .collect();
        Submitter {
            handles,
            polled: None,
            threads: Mutex::new(threads),
            opcodes,
            number,
            process: forked::process(),
            own: OnceLock::new(),
            thread_ring_config: None,
            executors_make_rings: false,
            refusal: Arc::default(),
            ended: AtomicBool::new(false),
            drain_until_ns: AtomicU64::new(0),
            helpers: OnceLock::new(),
            blocking,
            bounces: Arc::default(),
            mount_hints: Arc::default(),
            cold_reads: AtomicUsize::new(0),
            arenas,
            closer: None,
            clock: None,
            finish_on_this_thread: None,
            threads_bound: AtomicUsize::new(0),
            sync,
            about: OnceLock::new(),
        }
    }

    /// Adds the driver whose ring polls devices.
    pub(crate) fn with_polled(mut self, polled: DriverThread) -> Submitter {
        polled
            .handle
            .counters
            .set_owner(self.number, self.handles.len());
        self.polled = Some(polled.handle);
        let threads = self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        threads.push(polled.thread);
        self
    }

    /// Returns whether there is a ring that polls devices.
    pub(crate) fn has_polled(&self) -> bool {
        self.polled.is_some()
    }

    fn all_handles(&self) -> impl Iterator<Item = &Arc<DriverHandle>> {
        self.handles
            .iter()
            .chain(&self.polled)
            .chain(self.own_handles())
    }

    /// Returns the driver of the blocking threads.
    pub(super) fn helpers(&self) -> &DriverHandle {
        let pool = self.helpers.get_or_init(|| {
            let pool = blocking::Pool::new(self.blocking);
            self.label(pool.handle(), 0);
            if self.ended.load(Ordering::SeqCst) {
                // Too late for work: all submissions are refused.
                pool.drain(Some(self.drain_until_ns()));
            }
            pool
        });
        pool.handle()
    }

    /// Returns the number of the engine in the cells of threads.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn nop(&self) -> Operation<'_, Nop> {
        Operation::new(self, Nop)
    }

    /// Returns an operation that waits for `time`.
    pub(crate) fn sleep(&self, time: Duration) -> Operation<'_, Sleep> {
        Operation::new(self, Sleep::new(time)).timeout(time)
    }

    /// Returns whether the engine takes operations: it has not ended, and this is not a child of a fork.
    pub(crate) fn serves(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && self.process == forked::process()
    }

    /// Returns the current time on the clock of this engine's deadlines, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        self.clock
            .as_ref()
            .map_or_else(call::now_ns, |clock| clock.now_ns())
    }

    /// Returns whether this engine has rings.
    pub(crate) fn has_rings(&self) -> bool {
        !self.handles.is_empty()
    }

    /// Creates an arena, and makes the drivers register it, without waiting.
    pub(crate) fn register_buffers(&self, layout: BufferLayout) -> Result<Arena, SetupError> {
        let arena = Arena::new(layout, &self.arenas)?;
        (self.handles.iter()).for_each(|handle| handle.wake_for_registration());
        Ok(arena)
    }

    /// Waits until the drivers have registered an arena, or have failed to.
    pub(crate) fn wait_for_registration(&self, region: &RegisteredRegion) {
        if self.finish_on_this_thread.is_none() {
            let alive = || !self.handles.iter().any(|handle| handle.stopping());
            region.wait(self.handles.len(), alive, REGISTERED_WITHIN);
        }
    }

    /// Completes the operation without a driver if that is possible. `submitted_ns` is from `sample`.
    #[inline]
    pub(crate) fn try_sync<T: FileOp>(&self, op: &mut T, submitted_ns: u64) -> Option<i32> {
        match op.try_sync() {
            SyncAttempt::NotTried => {}
            SyncAttempt::Missed => self.count_sync_missed(1),
            SyncAttempt::Done(res) => {
                if let Resume::Done(total) = op.resume(res) {
                    coop_budget::count(1, op.bytes());
                    self.count_sync(const { T::INFO.number() }, 1, submitted_ns);
                    if total < 0 {
                        self.sync.fail(const { T::INFO.number() }, -total);
                    }
                    return Some(total);
                }
            }
        }
        None
    }

    /// Returns the time of submission for an operation that is about to be submitted; 0 if it is not timed.
    #[inline]
    pub(crate) fn sample(&self) -> u64 {
        match metrics::sample() {
            0 => 0,
            now => (self.clock.as_ref()).map_or(now, |clock| clock.now_ns().max(1)),
        }
    }

    /// Counts operations of one call that completed without a driver. `submitted_ns` is the time of the call, if it is
    /// timed.
    #[inline]
    pub(crate) fn count_sync(
        &self,
        operation: OperationNumber,
        operations: u64,
        submitted_ns: u64,
    ) {
        self.sync.complete_shared(operation, operations);
        if submitted_ns > 0 {
            let times = Times {
                submitted: submitted_ns,
                begun: submitted_ns,
                completed: self.now_ns(),
            };
            self.sync.time_shared(operation, times);
        }
    }

    /// Stores the description of the backend, and the reason if it is a fallback.
    pub(crate) fn set_backend(&self, backend: String, fallback: Option<String>) {
        let (backend, fallback) = self.about.get_or_init(|| (backend, fallback));
        let handles = self.all_handles().map(|handle| &handle.counters);
        for counters in handles.chain([&self.sync]) {
            counters.set_backend(backend, fallback.as_deref());
        }
    }

    /// Labels the counters of a new driver.
    fn label(&self, handle: &DriverHandle, index: usize) {
        handle.counters.set_owner(self.number, index);
        if let Some((backend, fallback)) = self.about.get() {
            handle.counters.set_backend(backend, fallback.as_deref());
        }
    }

    /// Counts reads that were not in the page cache and go to a driver.
    #[cold]
    pub(crate) fn count_sync_missed(&self, reads: u64) {
        self.sync.missed().add_shared(reads);
    }

    /// Returns the sum of all drivers' counters.
    pub(crate) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics {
            fast_path: self.sync.completed(),
            fast_path_missed: self.sync.missed().get(),
            panics: contain::panics(),
            ..Metrics::default()
        };
        for handle in self.all_handles() {
            metrics.add(&handle.counters);
        }
        if let Some(polled) = &self.polled {
            metrics.polled = polled.counters.completed();
        }
        if let Some(helpers) = self.helpers.get() {
            metrics.add(&helpers.handle().counters);
            metrics.blocking = helpers.handle().counters.completed();
        }
        metrics
    }

    /// Starts the end of a core: it and all drivers that are still to end have the drain timeout from now on. Returns
    /// the deadline, ns.
    pub(crate) fn begin_end(&self) -> u64 {
        let timeout = self.blocking.drain_timeout;
        let timeout_ns = to_ns(timeout);
        let until_ns = call::now_ns().saturating_add(timeout_ns);
        self.drain_until_ns.fetch_max(until_ns, Ordering::SeqCst);
        until_ns
    }

    /// Returns the deadline of the drain, ns, and starts the drain timeout unless it has already started.
    fn drain_until_ns(&self) -> u64 {
        match self.drain_until_ns.load(Ordering::SeqCst) {
            0 => self.begin_end(),
            until_ns => until_ns,
        }
    }

    /// Stops every driver and waits until nothing is in flight, or until the drain timeout has passed. There is one
    /// timeout for all drivers and calls.
    pub(crate) fn drain(&self) {
        self.ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.process != forked::process() {
            // A child of a fork has neither the drivers' threads nor the rings.
            return;
        }
        let until_ns = self.drain_until_ns();
        for handle in self.handles.iter().chain(&self.polled) {
            handle.request_stop();
        }
        for handle in self.own_handles() {
            handle.drain_own(until_ns);
        }
        if let Some(finish) = self.finish_on_this_thread {
            finish();
        }
        let threads: Vec<_> = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).collect()
        };
        for thread in threads.into_iter().filter_map(Thread::running) {
            // A waker or a buffer's drop may run on a driver thread and hold the last handle. A thread cannot wait for
            // itself; it will see the stop flag when it returns to its loop.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
        if let Some(helpers) = self.helpers.get() {
            helpers.drain(Some(until_ns));
        }
    }
}

/// Methods for the cores of a runtime.
#[cfg(feature = "net")]
impl Submitter {
    /// Returns whether the engine refuses new operations.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.drain();
    }
}

impl fmt::Debug for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submitter")
            .field("handles", &self.handles.len())
            .finish_non_exhaustive()
    }
}
