//! A simulated kernel in memory, for tests of your own code. The library tests itself with it.
//!
//! A [`Sim`] has files, a disk that can lose power, a clock, and every fault that a real kernel may produce. Each fault
//! has its own probability, and all of them follow a seed. In [`Sim::run`], your future, the tasks that it [`spawn`]s
//! and the driver share one thread and one order of events, so the same seed gives the same run, to the last byte. Time
//! is simulated: a timeout of half a minute takes no time.
//!
//! ```
//! use annulus::sim::{Sim, SimConfig};
//! # fn main() -> std::io::Result<()> {
//! let sim = Sim::new(SimConfig::chaos(42));
//! sim.run(async |engine| {
//!     // A failure here is repeated with seed 42.
//!     let Ok(file) = engine.create("/log").await else { return };
//!     let _ = file.write_all_at("first record", 0).await;
//! });
//! assert_eq!(sim.open_descriptors(), 0);
//!
//! // After a crash, the synced data and a part of the rest remain.
//! let sim = Sim::new(SimConfig::new(7));
//! let synced = sim.run(async |engine| {
//!     let file = engine.create("/log").await?;
//!     file.write_all_at("synced", 0).await?;
//!     file.sync_all().await?;
//!     let dir = engine.open("/").await?;
//!     dir.sync_all().await // makes the file's name durable
//! });
//! synced?;
//! sim.crash();
//! assert_eq!(sim.contents("/log")?, b"synced");
//! # Ok(()) }
//! ```
//!
//! [`Sim::engine`] is for code that needs its own executor. It has driver threads with simulated kernels, on the
//! machine's clock. The order of events then also depends on the scheduler.

mod executor;
mod run;

pub use crate::sys::sim::{Errno, Event, EventKind, FaultCounts, HighWater, OpKind, SimConfig};
pub use executor::{JoinHandle, spawn};
pub use run::Report;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::engine::{Engine, EngineBuilder};
use crate::error::SetupError;
use crate::sys::sim::World;

/// A simulated machine. Its files live as long as it does, over any number of runs and crashes.
///
/// The same seed repeats a run, with its faults and its order of events:
///
/// ```
/// use annulus::sim::{Sim, SimConfig};
///
/// let run = |seed| {
///     let sim = Sim::new(SimConfig::chaos(seed));
///     sim.run(async |engine| {
///         let _ = engine.write("/file", "contents").await; // may fail, as on a real disk
///     });
///     sim.trace_hash()
/// };
/// assert_eq!(run(1), run(1));
/// assert_ne!(run(1), run(2));
/// ```
pub struct Sim {
    world: Arc<World>,
    report: Mutex<Report>,
}

impl Sim {
    /// Creates a machine with an empty disk.
    pub fn new(config: SimConfig) -> Sim {
        Sim {
            world: Arc::new(World::new(config)),
            report: Mutex::default(),
        }
    }

    /// Runs a future with an engine on this machine, on the calling thread and the simulated clock.
    ///
    /// The seed decides the order in which the future, the tasks it [`spawn`]s and the driver run. When the future has
    /// returned, the remaining tasks are dropped, and operations in flight are drained, as at the end of any engine;
    /// see [`Sim::report`].
    ///
    /// A timeout of an hour takes no time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1));
    /// let slept = sim.run(async |engine| engine.sleep(Duration::from_secs(3600)).await);
    /// slept?;
    /// assert!(sim.elapsed() >= Duration::from_secs(3600));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if every task waits for something that cannot happen any more, and within another `run` on the same
    /// thread. A panic of the future passes through, after the seed has been printed.
    pub fn run<T>(&self, body: impl AsyncFnOnce(Engine) -> T) -> T {
        self.run_with(&Engine::builder(), body)
    }

    /// Runs a future with the limits of `builder`. Settings of rings and threads have no effect.
    ///
    /// With two operations in flight at a time, an order that rarely occurs is common:
    ///
    /// ```
    /// use annulus::{Engine, sim::{Sim, SimConfig}};
    ///
    /// let sim = Sim::new(SimConfig::chaos(3));
    /// sim.run_with(&Engine::builder().max_in_flight(2), async |engine| {
    ///     let _ = engine.write("/file", vec![7; 100_000]).await;
    /// });
    /// assert!(sim.high_water().operations <= 2);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics like [`run`](Sim::run).
    pub fn run_with<T>(&self, builder: &EngineBuilder, body: impl AsyncFnOnce(Engine) -> T) -> T {
        match run::run(self, builder, None, body) {
            Some(output) => output,
            None => unreachable!("only a crash ends a run without its output"),
        }
    }

    /// Runs a future until the kernel has completed `completions` operations. Then the power fails: operations in
    /// flight have no effect, [`Sim::crash`] happens, and the result is `None`. If the future returns earlier, the
    /// result is `Some`, and there is no crash.
    ///
    /// A loop over all moments of a crash tests that a log is never half written:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// for completions in 0.. {
    ///     let sim = Sim::new(SimConfig::new(completions).write_back(500));
    ///     sim.put("/log", "old")?;
    ///     let finished = sim.run_until_crash(completions, async |engine| {
    ///         engine.write("/new", "new").await?;
    ///         engine.open("/new").await?.sync_all().await?; // without it, this test fails
    ///         engine.rename("/new", "/log").await
    ///     });
    ///     assert!(["old", "new"].map(str::as_bytes).contains(&&sim.contents("/log")?[..]));
    ///     let Some(result) = finished else { continue };
    ///     result?;
    ///     break;
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics like [`run`](Sim::run).
    pub fn run_until_crash<T>(
        &self,
        completions: u64,
        body: impl AsyncFnOnce(Engine) -> T,
    ) -> Option<T> {
        let output = run::run(self, &Engine::builder(), Some(completions), body);
        if output.is_none() {
            self.crash();
        }
        output
    }

    /// Creates an engine on this machine for any executor, with driver threads and the machine's real clock.
    ///
    /// For code that spawns on Tokio or another executor. The faults follow the seed, the order of events does not:
    ///
    /// ```
    /// use annulus::{Engine, sim::{Sim, SimConfig}};
    ///
    /// let sim = Sim::new(SimConfig::new(1));
    /// let engine = sim.engine(&Engine::builder())?;
    /// pollster::block_on(engine.write("/file", "contents"))?;
    /// assert_eq!(sim.contents("/file")?, b"contents");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`SetupError`] if a thread cannot be started.
    pub fn engine(&self, builder: &EngineBuilder) -> Result<Engine, SetupError> {
        builder.build_sim(&self.world)
    }

    /// Simulates a power failure. Files keep their synced data. Each other sector survives or not, and the first few of
    /// the changed names survive, as the seed decides. All descriptors are closed. Do not call this while an engine
    /// runs on this machine.
    ///
    /// A file that was not synced may be lost, with its name:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1));
    /// sim.run(async |engine| engine.write("/new", "contents").await)?;
    /// assert_eq!(sim.contents("/new")?, b"contents"); // what programs read
    /// sim.crash();
    /// match sim.contents("/new") {
    ///     Ok(contents) => assert!(contents.is_empty() || contents.len() == 8),
    ///     Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn crash(&self) {
        let mut state = self.world.state();
        let state = &mut *state;
        let (lost, kept) = state.files.crash(&mut state.dice);
        state.counts.crash_lost += lost;
        state.counts.crash_kept += kept;
    }

    /// Creates a file with these contents on the disk, and its parent directories.
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1));
    /// sim.put("/etc/app/config", "port = 80")?; // with the directories; part of the disk, as after a sync
    /// let config = sim.run(async |engine| engine.read_to_string("/etc/app/config").await)?;
    /// assert_eq!(config, "port = 80");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like a write of the file: `ENOSPC`, `EISDIR`, `ENOTDIR`.
    pub fn put(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        let now_ns = self.world.clock.now_ns();
        let put = self.world.state().files.put(
            path.as_ref().as_os_str().as_bytes(),
            contents.as_ref(),
            now_ns,
        );
        put.map_err(io::Error::from_raw_os_error)
    }

    /// Returns the contents that programs would read from a file.
    ///
    /// # Errors
    ///
    /// Fails with `ENOENT`, `ENOTDIR` or `EISDIR`.
    pub fn contents(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let contents = self
            .world
            .state()
            .files
            .contents(path.as_ref().as_os_str().as_bytes());
        contents.map_err(io::Error::from_raw_os_error)
    }

    /// Returns the names in a directory, sorted.
    ///
    /// # Errors
    ///
    /// Fails with `ENOENT` or `ENOTDIR`.
    pub fn names(&self, path: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let names = self
            .world
            .state()
            .files
            .names(path.as_ref().as_os_str().as_bytes());
        names
            .map(|names| names.into_iter().map(OsString::from_vec).collect())
            .map_err(io::Error::from_raw_os_error)
    }

    /// Returns the number of open descriptors.
    ///
    /// A test for leaks, also of dropped futures:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).delays(std::time::Duration::from_millis(5)));
    /// sim.put("/file", "contents")?;
    /// sim.run(async |engine| {
    ///     let open = engine.open("/file");
    ///     drop(futures_lite::future::poll_once(open).await); // dropped while the kernel has it
    /// });
    /// assert_eq!(sim.open_descriptors(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open_descriptors(&self) -> usize {
        self.world.state().files.descriptors()
    }

    /// Returns how often each fault has been injected.
    ///
    /// A test that shows that its faults have occurred at all:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).short_transfers(1000));
    /// sim.put("/file", [7; 4096])?;
    /// let page = sim.run(async |engine| {
    ///     engine.open("/file").await?.read_exact_at(vec![0; 4096], 0).await.map_err(std::io::Error::from)
    /// })?;
    /// assert_eq!(page, [7; 4096]); // the library has continued after the short reads
    /// assert!(sim.counts().shortened > 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn counts(&self) -> FaultCounts {
        self.world.state().counts
    }

    /// Returns the maximum number of operations that a single driver of this machine had in flight.
    pub fn high_water(&self) -> HighWater {
        self.world.state().high_water
    }

    /// Returns the requests and completions of the kernel, in order. Long simulations keep the first quarter of a
    /// million events.
    pub fn trace(&self) -> Vec<Event> {
        self.world.state().trace.events().to_vec()
    }

    /// Returns a hash of everything that has happened: every event with its time, and every byte that was read or
    /// written. Equal hashes mean equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.world.state().trace.hash()
    }

    /// Returns the simulated time since the machine was created.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.clock.now_ns() - crate::sys::sim::START_NS)
    }

    /// Returns the report of the last run.
    pub fn report(&self) -> Report {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("seed", &self.world.config().seed)
            .finish_non_exhaustive()
    }
}
