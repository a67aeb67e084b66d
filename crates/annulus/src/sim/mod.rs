//! A kernel in memory, for tests: yours of your own code, and the library's of itself.
//!
//! A [`Sim`] has files, a disk that can lose power, a clock, and every misbehaviour that a real
//! kernel allows itself, each with its own chance and all of them following a seed. In
//! [`Sim::run`] your future, the tasks it [`spawn`]s and the driver share one thread and one
//! order of events: the same seed gives the same run, to the last byte. Time is the simulation's; a
//! timeout of half a minute takes none.
//!
//! ```
//! use annulus::sim::{Sim, SimConfig};
//! # fn main() -> std::io::Result<()> {
//! let sim = Sim::new(SimConfig::chaos(42));
//! sim.run(async |engine| {
//!     // Whatever goes wrong here goes wrong again with seed 42.
//!     let Ok(file) = engine.create("/log").await else { return };
//!     let _ = file.write_all_at("first record", 0).await;
//! });
//! assert_eq!(sim.open_descriptors(), 0);
//!
//! // What a crash leaves is what was synced, and some of the rest.
//! let sim = Sim::new(SimConfig::new(7));
//! let synced = sim.run(async |engine| {
//!     let file = engine.create("/log").await?;
//!     file.write_all_at("synced", 0).await?;
//!     file.sync_all().await?;
//!     let dir = engine.open("/").await?;
//!     dir.sync_all().await // The name is the directory's to keep.
//! });
//! synced?;
//! sim.crash();
//! assert_eq!(sim.contents("/log")?, b"synced");
//! # Ok(()) }
//! ```
//!
//! For code that needs its own executor there is [`Sim::engine`]: driver threads with simulated
//! kernels, on the machine's clock. The order of events is then the scheduler's as well.

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

/// A simulated machine: its files live as long as it does, over any number of runs and crashes.
pub struct Sim {
    world: Arc<World>,
    report: Mutex<Report>,
}

impl Sim {
    /// A machine with an empty disk.
    pub fn new(config: SimConfig) -> Sim {
        Sim {
            world: Arc::new(World::new(config)),
            report: Mutex::default(),
        }
    }

    /// Runs a future with an engine on this machine, on the calling thread and the machine's clock.
    ///
    /// The future, the tasks it [`spawn`]s and the driver take turns in an order that the seed
    /// decides. When the future has returned, tasks that are left are dropped, and what is in flight
    /// is drained, as at the end of any engine; see [`Sim::report`].
    ///
    /// # Panics
    ///
    /// If everything waits for something that can't happen any more, and within another `run` on the
    /// same thread. A panic of the future passes through, after the seed has been printed.
    pub fn run<T>(&self, body: impl AsyncFnOnce(Engine) -> T) -> T {
        self.run_with(&Engine::builder(), body)
    }

    /// The same with an engine of other limits; what concerns rings and threads has no effect.
    ///
    /// # Panics
    ///
    /// As [`run`](Sim::run).
    pub fn run_with<T>(&self, builder: &EngineBuilder, body: impl AsyncFnOnce(Engine) -> T) -> T {
        match run::run(self, builder, None, body) {
            Some(output) => output,
            None => unreachable!("only a crash ends a run without its output"),
        }
    }

    /// Runs a future until the kernel has completed that number of operations; then the power fails: what is
    /// in flight has no effect, [`Sim::crash`] happens, and the answer is `None`. `Some` if the future
    /// ended before; then there is no crash.
    ///
    /// # Panics
    ///
    /// As [`run`](Sim::run).
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

    /// An engine on this machine for any executor: driver threads, and the machine's own clock.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if a thread can't be started.
    pub fn engine(&self, builder: &EngineBuilder) -> Result<Engine, SetupError> {
        builder.build_sim(&self.world)
    }

    /// The power fails and comes back. Files keep what was synced; of everything else each sector
    /// survives or not, and of changed names the first few, as the seed decides. Descriptors are
    /// gone. Not to be called while an engine is at work on this machine.
    pub fn crash(&self) {
        let mut state = self.world.state();
        let state = &mut *state;
        let (lost, kept) = state.files.crash(&mut state.dice);
        state.counts.crash_lost += lost;
        state.counts.crash_kept += kept;
    }

    /// Makes a file with these contents, on the disk, and the directories above it.
    ///
    /// # Errors
    ///
    /// As a write of it: `ENOSPC`, `EISDIR`, `ENOTDIR`.
    pub fn put(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        let now_ns = self.world.clock.now_ns();
        let put = self.world.state().files.put(
            path.as_ref().as_os_str().as_bytes(),
            contents.as_ref(),
            now_ns,
        );
        put.map_err(io::Error::from_raw_os_error)
    }

    /// What programs would read from a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`, `EISDIR`.
    pub fn contents(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let contents = self
            .world
            .state()
            .files
            .contents(path.as_ref().as_os_str().as_bytes());
        contents.map_err(io::Error::from_raw_os_error)
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`.
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

    /// Descriptors that are open.
    pub fn open_descriptors(&self) -> usize {
        self.world.state().files.descriptors()
    }

    /// How often each fault was thrown in so far.
    pub fn counts(&self) -> FaultCounts {
        self.world.state().counts
    }

    /// The most that any one driver of this machine had in flight at a time.
    pub fn high_water(&self) -> HighWater {
        self.world.state().high_water
    }

    /// What the kernel was asked and answered, in order; of long simulations the first quarter of a
    /// million events.
    pub fn trace(&self) -> Vec<Event> {
        self.world.state().trace.events().to_vec()
    }

    /// A number that stands for everything that has happened: every event, its time, and every byte
    /// that was read or written. Equal numbers, equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.world.state().trace.hash()
    }

    /// Time since the machine was made, on its own clock.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.clock.now_ns() - crate::sys::sim::START_NS)
    }

    /// What the last run left behind.
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
