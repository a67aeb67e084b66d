//! Construction of an engine. The backend is chosen here, once, and the reason is kept.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::Engine;
use crate::backend::{Backend, BackendInUse, PollingInUse, UringInUse};
use crate::driver::lazy_driver::{LazyDriver, THREAD_NAME};
#[cfg(feature = "test-util")]
use crate::driver::simulated;
use crate::driver::uring::{Driver, Tuning, polled};
use crate::driver::{
    DriverHandle, DriverThread, Limits, Opcodes, Submitter, Thread, ThreadRingConfig,
};
use crate::error::SetupError;
use crate::narrow::to_ns;
use crate::ring_options::{RingOptions, ring_option_methods};
use crate::sys::kernel::Kernel;
use crate::sys::mount;
use crate::sys::polling::RingPoll;
use crate::sys::ring::{Ring, RingConfig, SetupMode};
#[cfg(feature = "test-util")]
use crate::sys::sim::{SimClock, SimKernel, World};
use crate::sys::size_limit;
use crate::sys::sq_poll::SqPoll;

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
    options: RingOptions,
    chunk: Option<u32>,
    busy_poll_ns: u64,
    thread_rings: bool,
    pub(super) iopoll: bool,
}

/// Default number of entries of each submission queue.
const SQ_ENTRIES: u32 = 256;
/// Default number of operations in flight per driver: twice the useful depth of the deepest device queue that we
/// measured.
const IN_FLIGHT: u32 = 1024;
/// The time that a driver's submission waits for tasks that were just woken: less than the cost of an enter call.
const BATCH_DELAY_NS: u64 = 2_000;

impl Default for EngineBuilder {
    fn default() -> EngineBuilder {
        EngineBuilder {
            options: RingOptions::new(1, SQ_ENTRIES, IN_FLIGHT, SetupMode::Cooperative),
            chunk: None,
            busy_poll_ns: 0,
            thread_rings: true,
            iopoll: false,
        }
    }
}

ring_option_methods!(EngineBuilder, 256);

impl EngineBuilder {
    /// Sets the number of driver threads, each with its own ring; 1 by default, which drives a disk to its limit. More
    /// threads help when a fast device fills the page cache. io_uring only. Linux only.
    ///
    /// ```
    /// use annulus::{BackendInUse, Engine, SetupError};
    ///
    /// assert!(matches!(Engine::builder().drivers(0).build(), Err(SetupError::Config(_))));
    /// let engine = Engine::builder().drivers(2).build()?; // the threads start with the first operations
    /// if let BackendInUse::Uring(rings) = engine.backend() {
    ///     assert_eq!(rings.threads, 2);
    /// }
    /// # Ok::<(), SetupError>(())
    /// ```
    pub fn drivers(mut self, threads: usize) -> Self {
        self.options.threads = threads;
        self
    }

    /// Sets how many operations each driver keeps in the kernel at a time; 1,024 by default. Further operations wait in
    /// order of arrival, and batches alternate with single operations. Linux only.
    ///
    /// Operations beyond the limit wait; they do not fail:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// let engine = annulus::Engine::builder().max_in_flight(2).build()?;
    /// let nops: Vec<_> = (0..100).map(|_| engine.nop()).collect();
    /// for nop in nops {
    ///     nop.await?;
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn max_in_flight(mut self, operations: u32) -> Self {
        self.options.limits.in_flight = operations;
        self
    }

    /// Sets how many bytes of buffers each driver keeps in the kernel at a time; 256 MiB by default. A single larger
    /// operation still runs, alone. Linux only.
    ///
    /// The memory that reads in flight may pin at a time:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// let engine = annulus::Engine::builder().max_in_flight_bytes(1 << 20).build()?;
    /// let file = engine.open(&path).await?;
    /// let (bytes, _) = file.read_at(vec![0; 8 << 20], 0).await?; // larger than the limit: runs alone
    /// assert_eq!(bytes, 4096);
    /// # Ok(()) }) }
    /// ```
    pub fn max_in_flight_bytes(mut self, bytes: u64) -> Self {
        self.options.limits.in_flight_bytes = bytes;
        self
    }

    /// Returns the requested number of submission queue entries. [`UringInUse`] has the number for which the
    /// kernel had memory. Linux only.
    pub fn ring_entries_requested(&self) -> u32 {
        self.options.sq_entries
    }

    /// Sets the newest set-up mode to try; [`SetupMode::Cooperative`] by default. io_uring only. Linux only.
    ///
    /// [`SetupMode::Deferred`] rarely helps a driver that receives its work from other threads. It needs a call into
    /// the kernel to see each completion, which costs more than the interrupts it saves (docs/internals/design.md).
    pub fn setup_mode(mut self, setup_mode: SetupMode) -> Self {
        self.options.setup_mode = setup_mode;
        self
    }

    /// Sets how many operations are queued before a submission while more are waiting. The default is 2, or 8 if 64 or
    /// more operations are in flight. io_uring only. Linux only.
    pub fn submit_chunk(mut self, operations: u32) -> Self {
        self.chunk = Some(operations.max(1));
        self
    }

    /// Sets how long a driver, which is a thread of the engine or that of a [`CurrentThreadDriver`], busy-polls for a
    /// completion before it sleeps. [`Duration::ZERO`], the default, turns it off. A driver busy-polls only with
    /// operations in flight, and only while that has paid off recently. io_uring only. Linux only.
    ///
    /// Busy-polling saves the cost of putting a processor to sleep and waking it, but occupies the processor. At depth
    /// 1 it takes up to this time per operation, during which a current-thread driver runs nothing else. The cost is in
    /// docs/reference/benchmarking.md.
    ///
    /// [`CurrentThreadDriver`]: crate::engine::CurrentThreadDriver
    ///
    /// For one read at a time on an idle machine, where waking a thread is a large part of the latency:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use std::time::Duration;
    ///
    /// let engine = annulus::Engine::builder().busy_poll(Duration::from_micros(50)).build()?;
    /// engine.nop().await?; // uses a processor for up to 50 µs instead of sleeping
    /// # Ok(()) }) }
    /// ```
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll_ns = to_ns(time);
        self
    }

    /// Sets whether the threads of Tokio runtimes get their own rings, with the feature `tokio`; true by default.
    /// Otherwise they submit to the drivers. io_uring only. Linux only.
    pub fn thread_rings(mut self, enabled: bool) -> Self {
        self.thread_rings = enabled;
        self
    }

    /// Builds the engine.
    ///
    /// ```
    /// use annulus::{Engine, SetupError};
    ///
    /// let error = Engine::builder().max_in_flight(0).build().unwrap_err();
    /// assert!(matches!(error, SetupError::Config(_)));
    /// println!("{error}"); // names the setting
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with a [`SetupError`], whose message names the remedy: [`SetupError::Config`] if a number is 0. With
    /// [`Backend::Auto`], a missing or refused io_uring is not an error; [`Engine::backend`] returns the reason.
    pub fn build(self) -> Result<Engine, SetupError> {
        self.options.check("drivers")?;
        match self.options.backend {
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

    /// Builds an engine with the default settings in any case: on blocking threads if io_uring cannot be set up.
    #[cfg(feature = "tokio")]
    pub(crate) fn build_anyway() -> Engine {
        let default = EngineBuilder::default();
        let built = default.build_uring();
        built.unwrap_or_else(|error| default.build_blocking(Some(error)))
    }

    fn tuning(&self) -> Tuning {
        Tuning {
            chunk: self.chunk,
            alone: false,
            batch_delay_ns: BATCH_DELAY_NS,
            busy_poll_ns: self.busy_poll_ns,
            drain_timeout: self.options.drain_timeout,
        }
    }

    fn build_blocking(&self, reason: Option<SetupError>) -> Engine {
        mount::learn_root();
        let config = self.options.blocking(None);
        let backend = BackendInUse::Fallback {
            blocking_threads: config.threads,
            epoll: false,
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
            limits: self.options.limits,
            tuning: Tuning {
                batch_delay_ns: 0,
                alone: true,
                ..self.tuning()
            },
        }
    }

    fn build_uring(&self) -> Result<Engine, SetupError> {
        mount::learn_root();
        let mut polling = PollingInUse::requested(self.options.sqpoll, self.iopoll);
        let refused = match self.build_rings(self.ring_config()) {
            Err(error @ SetupError::Polling { .. }) if self.options.backend == Backend::Auto => {
                error
            }
            other => return self.finish_uring(other?, polling),
        };
        polling.sqpoll = Some(Err(refused));
        self.finish_uring(self.build_rings(self.unpolled())?, polling)
    }

    /// Adds the ring that polls devices, if requested.
    fn finish_uring(&self, rings: Rings, mut polling: PollingInUse) -> Result<Engine, SetupError> {
        let (mut submitter, facts) = rings;
        if self.iopoll {
            match polled::start(self.unpolled(), self.options.limits, self.tuning()) {
                Ok(handle) => submitter = submitter.with_polled(handle),
                Err(error) if self.options.backend == Backend::Auto && error.allows_fallback() => {
                    polling.iopoll = Some(Err(error));
                }
                Err(error) => return Err(error),
            }
        }
        let rings = UringInUse {
            setup_mode: facts.setup_mode,
            threads: self.options.threads,
            sq_entries: facts.sq_entries,
            polling,
            #[cfg(feature = "net")]
            receive: None,
            thread_ring_refusal: Arc::clone(submitter.refusal_cell()),
        };
        Ok(Engine::of(submitter, BackendInUse::Uring(rings)))
    }

    fn ring_config(&self) -> RingConfig {
        let in_flight = self.options.limits.in_flight.saturating_mul(2);
        self.options.ring(in_flight.max(4 * IN_FLIGHT))
    }

    /// Returns the configuration of a ring whose submission queue is not polled.
    fn unpolled(&self) -> RingConfig {
        RingConfig {
            poll: RingPoll::Nothing,
            ..self.ring_config()
        }
    }

    fn build_rings(&self, ring: RingConfig) -> Result<Rings, SetupError> {
        let make = || make_driver(ring.clone(), self.options.limits, self.tuning());
        // `build` has checked that there is at least one.
        let (first, mut facts) = make()?;
        let mut handles = vec![first];
        let others = (1..self.options.threads).try_for_each(|_| {
            let (handle, latest) = make()?;
            facts = latest;
            handles.push(handle);
            Ok(())
        });
        // On failure, dropping this ends the drivers that have started.
        let mut submitter = Submitter::new(handles, facts.opcodes, self.options.blocking(None));
        others?;
        submitter.thread_ring_config = Some(self.thread_ring_config(ring));
        submitter.executors_make_rings = self.thread_rings;
        #[cfg(feature = "tokio")]
        if self.thread_rings {
            crate::tokio::register();
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
        for _ in 0..self.options.threads {
            match simulated::start(world, &clock, self.options.limits, self.tuning()) {
                Ok(handle) => handles.push(handle),
                Err(error) => failed = Some(error),
            }
        }
        // On failure, dropping this ends the drivers that have started.
        let submitter = simulated::submitter(handles, world, &clock, self.options.blocking(None));
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Engine::simulated(submitter, world, self.options.threads))
    }

    /// Builds the engine with a driver that the calling thread has to poll.
    pub(crate) fn build_sim_on_this_thread(
        &self,
        world: &Arc<World>,
        finish: fn(),
    ) -> (Engine, Arc<DriverHandle>, Driver<SimKernel>) {
        let (handle, driver) =
            simulated::driver(world, &world.clock, self.options.limits, self.tuning());
        let handles = vec![DriverThread {
            handle: Arc::clone(&handle),
            thread: Thread::None,
        }];
        let mut submitter =
            simulated::submitter(handles, world, &world.clock, self.options.blocking(None));
        submitter.finish_on_this_thread = Some(finish);
        (Engine::simulated(submitter, world, 0), handle, driver)
    }
}

#[cfg(feature = "test-util")]
impl Engine {
    fn simulated(submitter: Submitter, world: &World, threads: usize) -> Engine {
        let backend = BackendInUse::Sim {
            seed: world.config().seed,
            drivers: threads,
        };
        Engine::of(submitter, backend)
    }
}

impl Engine {
    fn of(submitter: Submitter, backend: BackendInUse) -> Engine {
        submitter.set_backend(backend.to_string(), backend.fallback());
        Engine {
            submitter: Arc::new(submitter),
            backend: Arc::new(backend),
            is_of_runtime: false,
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
    let limits = limits.within(ring.cq_entries());
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
        let limits = limits.within(ring.cq_entries());
        Driver::new(handle, ring, limits, tuning).run();
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
