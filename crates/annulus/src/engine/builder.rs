//! Construction of an engine. The backend is chosen here, once, and the reason is kept.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use super::Engine;
use super::polling::PollingInUse;
use crate::backend::Backend;
use crate::driver::lazy_driver::{LazyDriver, THREAD_NAME};
#[cfg(feature = "test-util")]
use crate::driver::simulated;
use crate::driver::uring::{Driver, Tuning, polled};
use crate::driver::{
    DriverHandle, DriverThread, Limits, Opcodes, Submitter, Thread, ThreadRingConfig, blocking,
};
use crate::error::SetupError;
use crate::narrow::to_ns;
use crate::sys::kernel::Kernel;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{Ring, RingConfig, SetupMode};
#[cfg(feature = "test-util")]
use crate::sys::sim::{SimClock, SimKernel, World};
use crate::sys::size_limit;
use crate::sys::sq_poll::SqPoll;

/// The backend of an engine, and the reason for it. `Display` writes it as a sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineBackend {
    /// io_uring.
    Uring {
        /// The set-up mode that the kernel accepted.
        setup_mode: SetupMode,
        /// The number of driver threads.
        threads: usize,
        /// The number of entries of each submission queue.
        sq_entries: u32,
        /// The state of the requested polling.
        polling: PollingInUse,
        /// The first reason why a thread of an executor has no ring.
        thread_ring_refusal: ThreadRingRefusal,
    },
    /// Blocking threads.
    Blocking {
        /// The maximum number of threads.
        threads: usize,
        /// The reason why io_uring is not used; `None` if blocking threads were requested.
        reason: Option<SetupError>,
    },
    /// A simulated kernel.
    #[cfg(feature = "test-util")]
    Sim {
        /// The seed of its random choices.
        seed: u64,
        /// The number of driver threads; 0 if the calling thread drives.
        threads: usize,
    },
}

impl EngineBackend {
    /// Returns the reason for running with less than was requested, if that is the case.
    fn fallback(&self) -> Option<String> {
        match self {
            EngineBackend::Uring { polling, .. } => polling.refusal().map(ToString::to_string),
            EngineBackend::Blocking { reason, .. } => reason.as_ref().map(ToString::to_string),
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { .. } => None,
        }
    }
}

impl fmt::Display for EngineBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineBackend::Uring {
                setup_mode,
                threads,
                sq_entries,
                polling,
                thread_ring_refusal,
            } => {
                let plural = if *threads == 1 { "thread" } else { "threads" };
                write!(
                    f,
                    "io_uring ({}; {threads} driver {plural}, {sq_entries} entries{polling}{thread_ring_refusal})",
                    setup_mode.describe()
                )
            }
            EngineBackend::Blocking {
                threads,
                reason: None,
            } => {
                write!(f, "up to {threads} blocking threads, as configured")
            }
            EngineBackend::Blocking {
                threads,
                reason: Some(reason),
            } => {
                write!(f, "up to {threads} blocking threads: {reason}")
            }
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { seed, threads: 0 } => {
                write!(f, "a simulated kernel (seed {seed})")
            }
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { seed, threads } => {
                let plural = if *threads == 1 { "thread" } else { "threads" };
                write!(
                    f,
                    "a simulated kernel (seed {seed}; {threads} driver {plural})"
                )
            }
        }
    }
}

/// The first reason why a thread of an executor has no ring; empty while there is none. Such a thread submits
/// to the engine's drivers.
#[derive(Debug)]
pub struct ThreadRingRefusal(Arc<OnceLock<SetupError>>);

impl ThreadRingRefusal {
    /// Returns the reason.
    pub fn get(&self) -> Option<&SetupError> {
        self.0.get()
    }
}

impl fmt::Display for ThreadRingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            None => Ok(()),
            Some(reason) => write!(f, "; threads without their own rings: {reason}"),
        }
    }
}

/// Settings for a new [`Engine`], returned by [`Engine::builder`].
///
/// "io_uring only" marks settings that the fallback ignores.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::time::Duration;
/// use annulus::{Backend, Engine};
///
/// let engine = Engine::builder()
///     .backend(Backend::Auto)                        // the default: io_uring, or the fallback
///     .max_in_flight(4096)                           // operations in the kernel, per driver
///     .drain_timeout(Duration::from_secs(5))         // how long the last drop may wait
///     .build()?;
/// println!("{}", engine.backend());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    backend: Backend,
    threads: usize,
    blocking_threads: usize,
    limits: Limits,
    ring: RingConfig,
    tuning: Tuning,
    busy_poll_ns: u64,
    thread_rings: bool,
    pub(super) sqpoll: Option<SqPoll>,
    pub(super) iopoll: bool,
}

/// Default number of operations in flight per driver: twice the useful depth of the deepest device queue that we
/// measured.
const IN_FLIGHT: u32 = 1024;
/// Default number of bytes in flight per driver.
const IN_FLIGHT_BYTES: u64 = 256 << 20;
/// The time that a driver's submission waits for tasks that were just woken: less than the cost of an enter call.
const BATCH_DELAY_NS: u64 = 2_000;
/// Default number of blocking threads: about the number that keeps a disk busy.
const BLOCKING_THREADS: usize = 64;
/// Kernel workers per ring: bounded (files), and unbounded (everything else).
const RING_WORKERS: [u32; 2] = [8, 16];

impl Default for EngineBuilder {
    fn default() -> EngineBuilder {
        EngineBuilder {
            backend: Backend::Auto,
            threads: 1,
            blocking_threads: BLOCKING_THREADS,
            limits: Limits {
                in_flight: IN_FLIGHT,
                in_flight_bytes: IN_FLIGHT_BYTES,
            },
            ring: RingConfig {
                sq_entries: 256,
                cq_entries: 4 * IN_FLIGHT,
                setup_mode: SetupMode::Cooperative,
                workers: RING_WORKERS,
                poll: RingPoll::Nothing,
            },
            busy_poll_ns: 0,
            thread_rings: true,
            tuning: Tuning {
                chunk: None,
                alone: false,
                batch_delay_ns: BATCH_DELAY_NS,
                busy_poll_ns: 0,
                drain_timeout: Duration::from_secs(30),
            },
            sqpoll: None,
            iopoll: false,
        }
    }
}

impl EngineBuilder {
    /// Sets the backend; [`Backend::Auto`] by default.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the number of driver threads, each with its own ring; 1 by default, which drives a disk to its limit. More
    /// threads help when a fast device fills the page cache. io_uring only.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the maximum number of blocking threads; 64 by default. With io_uring, these threads run operations
    /// without an opcode, and durable writes of buffered files.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.blocking_threads = threads;
        self
    }

    /// Sets how many operations each driver keeps in the kernel at a time; 1,024 by default. Further operations wait in
    /// order of arrival, and batches alternate with single operations.
    pub fn max_in_flight(mut self, operations: u32) -> Self {
        self.limits.in_flight = operations;
        self
    }

    /// Sets how many bytes of buffers each driver keeps in the kernel at a time; 256 MiB by default. A single larger
    /// operation still runs, alone.
    pub fn max_in_flight_bytes(mut self, bytes: u64) -> Self {
        self.limits.in_flight_bytes = bytes;
        self
    }

    /// Sets the number of entries of each submission queue; 256 by default. io_uring only.
    pub fn ring_entries(mut self, entries: u32) -> Self {
        self.ring.sq_entries = entries;
        self
    }

    /// Returns the requested number of submission queue entries. [`EngineBackend::Uring`] has the number for which the
    /// kernel had memory.
    pub fn ring_entries_requested(&self) -> u32 {
        self.ring.sq_entries
    }

    /// Sets the newest set-up mode to try; [`SetupMode::Cooperative`] by default. io_uring only.
    ///
    /// [`SetupMode::Deferred`] rarely helps a driver that receives its work from other threads. It needs a call into
    /// the kernel to see each completion, which costs more than the interrupts it saves (docs/internals/design.md).
    pub fn setup_mode(mut self, setup_mode: SetupMode) -> Self {
        self.ring.setup_mode = setup_mode;
        self
    }

    /// Sets how many operations are queued before a submission while more are waiting. The default is 2, or 8 if 64 or
    /// more operations are in flight. io_uring only.
    pub fn submit_chunk(mut self, operations: u32) -> Self {
        self.tuning.chunk = Some(operations.max(1));
        self
    }

    /// Sets how long a driver thread with operations in flight busy-polls before it sleeps. [`Duration::ZERO`], the
    /// default, turns it off. A driver busy-polls only while that has paid off recently. io_uring only.
    ///
    /// It saves the cost of waking the thread, if a processor is free. Otherwise it takes time from the tasks that wait
    /// for the results.
    pub fn driver_busy_poll(mut self, time: Duration) -> Self {
        self.tuning.busy_poll_ns = to_ns(time);
        self
    }

    /// Sets how long a thread with its own ring (see [`CurrentThreadDriver`]) busy-polls for a completion before it
    /// sleeps. [`Duration::ZERO`], the default, turns it off. The thread busy-polls only with operations in flight, and
    /// only while that has paid off recently. io_uring only.
    ///
    /// Busy-polling saves the cost of putting a processor to sleep and waking it, but occupies the processor. At depth
    /// 1 it takes up to this time per operation, during which the thread's executor runs nothing else. The cost is in
    /// docs/reference/benchmarking.md.
    ///
    /// [`CurrentThreadDriver`]: crate::engine::CurrentThreadDriver
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll_ns = to_ns(time);
        self
    }

    /// Sets whether threads of an executor that can drive rings get their own rings; true by default. Such threads are
    /// those of a Tokio runtime, with the feature `tokio`. Otherwise they submit to the drivers. io_uring only.
    pub fn thread_rings(mut self, own: bool) -> Self {
        self.thread_rings = own;
        self
    }

    /// Sets how long the end of an engine waits for operations in flight; 30 s by default. After that, memory that the
    /// kernel may still access is leaked on purpose and counted in
    /// [`Metrics::leaked`](crate::metrics::Metrics::leaked). A ring leaks its memory permanently, a blocking thread
    /// until its system call returns.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.tuning.drain_timeout = timeout;
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    ///
    /// Fails with a [`SetupError`], whose message names the remedy: [`SetupError::Config`] if a number is 0. With
    /// [`Backend::Auto`], a missing or refused io_uring is not an error; [`Engine::backend`] returns the reason.
    pub fn build(self) -> Result<Engine, SetupError> {
        for (what, value) in [
            ("threads", self.threads),
            ("blocking_threads", self.blocking_threads),
            ("max_in_flight", self.limits.in_flight as usize),
            ("ring_entries", self.ring.sq_entries as usize),
        ] {
            if value == 0 {
                return Err(SetupError::Config(format!(
                    "{what} is 0; it must be at least 1"
                )));
            }
        }
        match self.backend {
            Backend::Uring => self.build_uring(),
            Backend::Fallback => Ok(self.build_blocking(None)),
            #[cfg(feature = "test-util")]
            Backend::Sim(config) => self.build_sim(&Arc::new(World::new(config))),
            Backend::Auto => match self.build_uring() {
                Err(error) if error.allows_fallback() => Ok(self.build_blocking(Some(error))),
                other => other,
            },
        }
    }

    fn blocking_config(&self) -> blocking::Config {
        blocking::Config {
            threads: self.blocking_threads,
            limits: self.limits,
            drain_timeout: self.tuning.drain_timeout,
            affinity: None,
        }
    }

    fn build_blocking(&self, reason: Option<SetupError>) -> Engine {
        let config = self.blocking_config();
        let backend = EngineBackend::Blocking {
            threads: config.threads,
            reason,
        };
        Engine::of(Submitter::new(Vec::new(), Opcodes::NONE, config), backend)
    }

    /// Returns the configuration of the rings that threads keep for themselves.
    fn thread_ring_config(&self, ring: RingConfig) -> ThreadRingConfig {
        ThreadRingConfig {
            // Any thread may poll these rings (traps 11 and 13).
            ring: RingConfig {
                setup_mode: ring.setup_mode.min(SetupMode::Cooperative),
                ..ring
            },
            limits: self.limits,
            // The thread has other work and busy-polls only if the user asks for it.
            tuning: Tuning {
                busy_poll_ns: self.busy_poll_ns,
                batch_delay_ns: 0,
                alone: true,
                ..self.tuning
            },
        }
    }

    fn build_uring(&self) -> Result<Engine, SetupError> {
        let mut polling = PollingInUse::requested(self);
        let refused = match self.build_rings(polling.poll(self)) {
            Err(error @ SetupError::Polling { .. }) if self.backend == Backend::Auto => error,
            other => return self.finish_uring(other?, polling),
        };
        polling.sqpoll = Some(Err(refused));
        self.finish_uring(self.build_rings(RingPoll::Nothing)?, polling)
    }

    /// Adds the ring that polls devices, if requested.
    fn finish_uring(&self, rings: Rings, mut polling: PollingInUse) -> Result<Engine, SetupError> {
        let (mut submitter, facts) = rings;
        if self.iopoll {
            match polled::start(self.ring_config(), self.limits, self.tuning) {
                Ok(handle) => submitter = submitter.with_polled(handle),
                Err(error) if self.backend == Backend::Auto && error.allows_fallback() => {
                    polling.iopoll = Some(Err(error));
                }
                Err(error) => return Err(error),
            }
        }
        let backend = EngineBackend::Uring {
            setup_mode: facts.setup_mode,
            threads: self.threads,
            sq_entries: facts.sq_entries,
            polling,
            thread_ring_refusal: ThreadRingRefusal(Arc::clone(submitter.refusal_cell())),
        };
        Ok(Engine::of(submitter, backend))
    }

    fn ring_config(&self) -> RingConfig {
        let mut ring = self.ring.clone();
        ring.cq_entries = ring.cq_entries.max(self.limits.in_flight.saturating_mul(2));
        ring
    }

    fn build_rings(&self, poll: RingPoll) -> Result<Rings, SetupError> {
        let ring = RingConfig {
            poll,
            ..self.ring_config()
        };
        let mut handles = Vec::new();
        let mut made = None;
        for _ in 0..self.threads {
            match make_driver(ring.clone(), self.limits, self.tuning) {
                Ok((handle, facts)) => {
                    made = Some(facts);
                    handles.push(handle);
                }
                Err(error) => {
                    // Ends the drivers that have started.
                    drop(Submitter::new(
                        handles,
                        Opcodes::NONE,
                        self.blocking_config(),
                    ));
                    return Err(error);
                }
            }
        }
        let Some(facts) = made else {
            return Err(SetupError::Config("threads is 0".to_owned()));
        };
        let mut submitter = Submitter::new(handles, facts.opcodes, self.blocking_config());
        submitter.thread_ring_config = Some(self.thread_ring_config(ring));
        submitter.executors_make_rings = self.thread_rings;
        #[cfg(feature = "tokio")]
        if self.thread_rings {
            crate::tokio::make_default();
        }
        Ok((submitter, facts))
    }
}

#[cfg(feature = "test-util")]
impl EngineBuilder {
    /// Builds the engine on driver threads with simulated kernels on `world`.
    pub(crate) fn build_sim(&self, world: &Arc<World>) -> Result<Engine, SetupError> {
        let clock = Arc::new(SimClock::Real);
        let mut handles = Vec::new();
        let mut failed = None;
        for _ in 0..self.threads {
            match simulated::start(world, &clock, self.limits, self.tuning) {
                Ok(handle) => handles.push(handle),
                Err(error) => failed = Some(error),
            }
        }
        // On failure, dropping this ends the drivers that have started.
        let submitter = simulated::submitter(handles, world, &clock, self.blocking_config());
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Engine::simulated(submitter, world, self.threads))
    }

    /// Builds the engine with a driver that the calling thread has to poll.
    pub(crate) fn build_sim_on_this_thread(
        &self,
        world: &Arc<World>,
        finish: fn(),
    ) -> (Engine, Arc<DriverHandle>, Driver<SimKernel>) {
        let (handle, driver) = simulated::driver(world, &world.clock, self.limits, self.tuning);
        let handles = vec![DriverThread {
            handle: Arc::clone(&handle),
            thread: Thread::None,
        }];
        let mut submitter =
            simulated::submitter(handles, world, &world.clock, self.blocking_config());
        submitter.finish_on_this_thread = Some(finish);
        (Engine::simulated(submitter, world, 0), handle, driver)
    }
}

#[cfg(feature = "test-util")]
impl Engine {
    fn simulated(submitter: Submitter, world: &World, threads: usize) -> Engine {
        let backend = EngineBackend::Sim {
            seed: world.config().seed,
            threads,
        };
        Engine::of(submitter, backend)
    }
}

impl Engine {
    fn of(submitter: Submitter, backend: EngineBackend) -> Engine {
        submitter.describe(backend.to_string(), backend.fallback());
        Engine {
            submitter: Arc::new(submitter),
            backend: Arc::new(backend),
        }
    }
}

/// The drivers of an engine, and the properties of the last driver's ring.
type Rings = (Submitter, RingFacts);

/// The properties of a driver's ring.
struct RingFacts {
    setup_mode: SetupMode,
    sq_entries: u32,
    opcodes: Opcodes,
}

impl RingFacts {
    fn of(ring: &Ring) -> RingFacts {
        RingFacts {
            setup_mode: ring.setup_mode(),
            sq_entries: ring.sq_entries(),
            opcodes: Opcodes::of(|opcode| ring.supports(opcode)),
        }
    }
}

/// Creates a driver's ring. Its thread starts with the first operation, except in the mode `Deferred`, where a ring
/// belongs to the thread that created it.
fn make_driver(
    config: RingConfig,
    limits: Limits,
    tuning: Tuning,
) -> Result<(DriverThread, RingFacts), SetupError> {
    if config.setup_mode == SetupMode::Deferred {
        return start_driver(config, limits, tuning);
    }
    let ring = Ring::new(config)?;
    let facts = RingFacts::of(&ring);
    let limits = limits.within(&ring);
    let (handle, lazy) = LazyDriver::new(ring, limits, tuning);
    let thread = Thread::Later(lazy);
    Ok((DriverThread { handle, thread }, facts))
}

/// Starts a driver thread, which creates its own ring.
fn start_driver(
    config: RingConfig,
    limits: Limits,
    tuning: Tuning,
) -> Result<(DriverThread, RingFacts), SetupError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || {
        size_limit::block_signal();
        let mut ring = match Ring::new(config) {
            Ok(ring) => ring,
            Err(error) => return drop(sender.send(Err(error))),
        };
        ring.bind_to_thread();
        let handle = Arc::new(DriverHandle::new(Box::new(ring.waker())));
        let facts = RingFacts::of(&ring);
        if sender.send(Ok((Arc::clone(&handle), facts))).is_err() {
            return;
        }
        let limits = limits.within(&ring);
        Driver::new(handle, ring, limits, tuning).drive();
    };
    let thread = thread::Builder::new()
        .name(THREAD_NAME.to_owned())
        .spawn(run)
        .map_err(|error| SetupError::Os {
            what: "starting a driver thread",
            error,
        })?;
    match receiver.recv() {
        Ok(Ok((handle, facts))) => {
            let thread = Thread::Running(thread);
            Ok((DriverThread { handle, thread }, facts))
        }
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(SetupError::Os {
            what: "starting a driver thread",
            error: io::Error::other("the thread ended before its ring was ready"),
        }),
    }
}
