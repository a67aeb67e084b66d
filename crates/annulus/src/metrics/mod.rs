//! Metrics: counters and latency histograms of engines and runtimes.
//!
//! Counting is always on, and costs a load and a store per event. Latencies are recorded only while a [`Watch`] exists
//! or another process reads them.
//!
//! ```
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! use annulus::metrics;
//!
//! metrics::share()?;                        // lets `annulus top` read the metrics of this process
//! let engine = annulus::Engine::new()?;
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16384])?;
//! let file = engine.open(&path).await?;
//! let watch = metrics::watch();             // records latencies until it is dropped
//! let before = metrics::snapshot();
//! let (n, _page) = file.read_at(vec![0; 4096], 0).await?;
//! let between = metrics::snapshot().since(&before);
//! drop(watch);
//!
//! let total = between.total();
//! let reads = total.operation("read_at").expect("one read has completed");
//! # assert_eq!((n, reads.completed, reads.failed), (4096, 1, 0));
//! println!("{} reads, 99th percentile {:?} ns", reads.completed, reads.latency.quantile(0.99));
//! # assert!(reads.latency.quantile(0.99).is_some());
//! # Ok(()) }) }
//! ```
//!
//! A snapshot is read while the drivers continue to count, so the numbers of one source may differ by a few operations.
//! Other processes read the counters of a process that [shares](share) them with `annulus_observe::snapshot_of`. The
//! observed process spends no thread and no call on it. docs/reference/metrics.md describes all metrics.

#[cfg(feature = "net")]
mod core;
mod counters;
mod every;
mod histogram;
#[doc(hidden)]
pub mod layout;
mod record;
mod registry;
mod snapshot;
mod watch;

#[cfg(feature = "net")]
pub use core::CoreMetrics;
pub use every::{Every, every};
pub use histogram::{Bucket, Histogram};
pub use registry::{share, share_above};
pub use snapshot::{
    Counts, ErrorCounts, OperationCounts, PreloadCounts, ReasonCounts, Snapshot, Source, SourceKind,
};
pub use watch::{Watch, watch};

pub(crate) use crate::op::OperationNumber;
pub(crate) use counters::{Counter, Counters, Times};
pub(crate) use watch::sample;

use crate::sys::call::now_ns;

/// The counters of an engine since it was built; see [`Engine::metrics`](crate::Engine::metrics).
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
/// let file = engine.open(&path).await?;
/// let before = engine.metrics();
/// file.read_at(vec![0; 4096], 0).await?;
/// let after = engine.metrics();
/// // A read of cached data completes on the caller's thread; any other one goes to a driver.
/// let fast = after.fast_path - before.fast_path;
/// let by_driver = after.completed - before.completed;
/// assert_eq!(fast + by_driver, 1);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Operations submitted to the kernel or to a blocking thread. A resubmitted operation counts once.
    pub submitted: u64,
    /// Operations that used memory registered with their ring, such as an arena's. io_uring only.
    pub fixed: u64,
    /// Operations completed by the kernel or a blocking thread.
    pub completed: u64,
    /// Calls of `io_uring_enter`. io_uring only.
    pub enters: u64,
    /// Calls of `io_uring_enter` that slept. io_uring only.
    pub waits: u64,
    /// Times that a caller had to wake a sleeping driver.
    pub wakeups: u64,
    /// Times that a driver had to wake the kernel thread that polls its submission queue. Only with
    /// [`EngineBuilder::sqpoll`](crate::EngineBuilder::sqpoll).
    pub sq_wakeups: u64,
    /// The part of `completed` that used the ring that polls devices. Only with
    /// [`EngineBuilder::iopoll`](crate::EngineBuilder::iopoll).
    pub polled: u64,
    /// The part of `polled` for which the kernel refused to poll. These operations were executed by a system call.
    pub poll_refused: u64,
    /// The part of `completed` that ran on blocking threads: operations without an opcode, and durable writes of
    /// buffered files. Without a ring, all operations.
    pub blocking: u64,
    /// Operations completed on the caller's thread, without a driver: reads from the page cache, and opens, metadata
    /// queries and closes on local file systems.
    pub fast_path: u64,
    /// Operations that tried the fast path and went to a driver, because part of the data, or the path of an open, was
    /// not cached. [`CachedReads`](crate::fs::CachedReads) bounds the number of reads among them.
    pub fast_path_missed: u64,
    /// Cancels requested from the kernel.
    pub cancels: u64,
    /// Resubmissions of the remainder of a short transfer, or of an interrupted operation.
    pub resubmitted: u64,
    /// Operations that timed out.
    pub timeouts: u64,
    /// CQEs that named no operation in flight. Always 0 unless there is a bug.
    pub stale: u64,
    /// Operations abandoned when the drain timeout passed. Their memory is not freed while the kernel may access it: a
    /// ring leaks its memory permanently, a blocking thread until its system call returns.
    pub leaked: u64,
    /// Panics of wakers, buffers and other code of the program that the library caught, in the whole process. The panic
    /// hook reports each. The code that panicked did not do its work, for example wake a task.
    pub panics: u64,
}

impl Metrics {
    /// Adds the counters of one driver.
    pub(crate) fn add(&mut self, counters: &Counters) {
        // Names every field, so that the compiler reports a new counter that is missing here.
        let Metrics {
            submitted,
            fixed,
            completed,
            enters,
            waits,
            wakeups,
            sq_wakeups,
            polled: _,
            poll_refused,
            blocking: _,
            fast_path: _,
            fast_path_missed: _,
            cancels,
            resubmitted,
            timeouts,
            stale,
            leaked,
            panics: _,
        } = self;
        *completed += counters.completed();
        for (total, counter) in [
            (submitted, counters.submitted()),
            (fixed, counters.fixed()),
            (enters, counters.enters()),
            (waits, counters.waits()),
            (wakeups, counters.wakeups()),
            (sq_wakeups, counters.sq_wakeups()),
            (poll_refused, counters.poll_refused()),
            (cancels, counters.cancels()),
            (resubmitted, counters.resubmitted()),
            (timeouts, counters.timeouts()),
            (stale, counters.stale()),
            (leaked, counters.leaked()),
        ] {
            *total += counter.get();
        }
    }
}

/// Returns the current counters of this process: one source for each existing driver, ring, thread pool and core, and
/// one source for all that have ended. So counters never decrease.
///
/// A snapshot is of the whole process. A source disappears with its engine, but its counts stay:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::metrics;
///
/// let engine = annulus::Engine::new()?;
/// engine.nop().await?;
/// drop(engine);
/// assert_eq!(metrics::snapshot().total().operation("nop").map(|nop| nop.completed), Some(1));
/// # Ok(()) }) }
/// ```
pub fn snapshot() -> Snapshot {
    Snapshot {
        process: std::process::id(),
        at_ns: now_ns(),
        sources: registry::sources(),
        kernel_workers: layout::kernel_workers("/proc/self/task"),
    }
}
