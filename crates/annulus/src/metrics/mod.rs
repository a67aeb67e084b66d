//! What every driver counts: free when nobody looks, and cheap when somebody does.
//!
//! ```standalone_crate
//! # // Other documentation's tests, in the same process, would read as well.
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! use annulus::metrics;
//!
//! metrics::share()?;                        // at the start: `annulus top` can look from now on
//! let engine = annulus::Engine::new()?;
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16384])?;
//! let file = engine.open(&path).await?;
//! let watch = metrics::watch();             // while it lives, latencies are recorded, too
//! let before = metrics::snapshot();
//! let (n, _page) = file.read_at(vec![0; 4096], 0).await?;
//! let between = metrics::snapshot().since(&before);
//! drop(watch);
//!
//! let total = between.total();
//! let reads = total.operation("read_at").expect("one has been read");
//! # assert_eq!((n, reads.completed, reads.failed), (4096, 1, 0));
//! println!("{} reads, 99 of 100 within {:?} ns", reads.completed, reads.latency.quantile(0.99));
//! # assert!(reads.latency.quantile(0.99).is_some());
//! # Ok(()) }) }
//! ```
//!
//! Counters are words of memory that their driver alone writes; a snapshot reads them while it goes on, so
//! numbers of one source may be some operations apart. Other processes read the counters of a process that shares them
//! by `annulus_observe::snapshot_of`: no thread and no call of that process takes part.

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

/// What an engine has done since it was built; see [`Engine::metrics`](crate::Engine::metrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Operations given to the kernel or to a blocking thread; one that was resubmitted counts once.
    pub submitted: u64,
    /// Operations that used memory registered with their ring: an arena's. Backends: uring.
    pub fixed: u64,
    /// Operations answered by the kernel or a blocking thread.
    pub completed: u64,
    /// `io_uring_enter` calls. Backends: uring.
    pub enters: u64,
    /// Those of them that slept. Backends: uring.
    pub waits: u64,
    /// Times a caller had to wake a sleeping driver.
    pub wakeups: u64,
    /// Times a driver had to wake the kernel's thread that polls its submission queue. Backends: uring
    /// with [`EngineBuilder::sqpoll`](crate::EngineBuilder::sqpoll).
    pub sq_wakeups: u64,
    /// Operations, of `completed`, that went through the ring that polls devices. Backends: uring with
    /// [`EngineBuilder::iopoll`](crate::EngineBuilder::iopoll).
    pub polled: u64,
    /// Operations, of `polled`, that the kernel would not poll for: they were done by a system call.
    pub poll_refused: u64,
    /// Operations, of `completed`, that blocking threads did: those a ring has no opcode for, and durable
    /// writes of buffered files; where there is no ring, all.
    pub blocking: u64,
    /// Reads completed from the page cache on the caller's thread, without a driver: the non-blocking fast path.
    pub fast_path: u64,
    /// Reads that tried the fast path and went to a driver because part of the data was not in the page cache;
    /// [`CachedReads`](crate::fs::CachedReads) bounds them.
    pub fast_path_missed: u64,
    /// Cancels asked of the kernel.
    pub cancels: u64,
    /// Times the rest of a short transfer, or an interrupted operation, was submitted again.
    pub resubmitted: u64,
    /// Operations whose timeout passed.
    pub timeouts: u64,
    /// CQEs that named no operation in flight. Always 0 unless there is a bug.
    pub stale: u64,
    /// Operations given up at the end of a drain. Their memory is not freed while the kernel may touch
    /// it: that of a ring is leaked for good, that of a blocking thread lives until its call returns.
    pub leaked: u64,
}

impl Metrics {
    /// Adds up one driver's counters.
    pub(crate) fn add(&mut self, counters: &Counters) {
        // Every field by name, so that a new counter can't be forgotten here.
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

/// What this process has counted up to now: each driver, ring, pool of threads and core that lives, and one
/// source for all that have ended, so that no number ever goes back.
pub fn snapshot() -> Snapshot {
    Snapshot {
        process: std::process::id(),
        at_ns: now_ns(),
        sources: registry::sources(),
        kernel_workers: layout::kernel_workers("/proc/self/task"),
    }
}
