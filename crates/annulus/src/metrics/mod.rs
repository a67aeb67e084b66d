//! What every driver counts. Each counter is written by one thread where it can be, so that counting
//! costs a store; reading is anybody's, at any time.

mod histogram;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use histogram::Histogram;
pub use snapshot::{Counts, ErrorCounts, OperationCounts, Snapshot, Source, SourceKind};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds; for a counter that only the calling thread writes.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds; for a counter that several threads write.
    pub(crate) fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Replaces; for a number that is counted elsewhere.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of one lane. Those of a ring are written by its driver thread alone, but for
/// `wakeups`, which callers write; those of blocking threads under the lane's lock.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) submitted: Counter,
    pub(crate) fixed: Counter,
    pub(crate) completed: Counter,
    pub(crate) enters: Counter,
    pub(crate) waits: Counter,
    pub(crate) wakeups: Counter,
    pub(crate) sq_wakeups: Counter,
    pub(crate) poll_refused: Counter,
    pub(crate) cancels: Counter,
    pub(crate) resubmitted: Counter,
    pub(crate) timeouts: Counter,
    pub(crate) stale: Counter,
    pub(crate) leaked: Counter,
}

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
    /// Reads answered from the page cache on the caller's own thread; no driver was involved.
    pub inline: u64,
    /// Reads that asked the page cache on the caller's own thread, and went to a driver because not all
    /// of it was there; [`CachedReads`](crate::CachedReads) bounds them.
    pub inline_missed: u64,
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
    /// Adds up one lane's counters.
    pub(crate) fn add(&mut self, counters: &Counters) {
        // Every field by name, so that a new counter can't be forgotten here.
        let Counters {
            submitted,
            fixed,
            completed,
            enters,
            waits,
            wakeups,
            sq_wakeups,
            poll_refused,
            cancels,
            resubmitted,
            timeouts,
            stale,
            leaked,
        } = counters;
        for (total, counter) in [
            (&mut self.submitted, submitted),
            (&mut self.fixed, fixed),
            (&mut self.completed, completed),
            (&mut self.enters, enters),
            (&mut self.waits, waits),
            (&mut self.wakeups, wakeups),
            (&mut self.sq_wakeups, sq_wakeups),
            (&mut self.poll_refused, poll_refused),
            (&mut self.cancels, cancels),
            (&mut self.resubmitted, resubmitted),
            (&mut self.timeouts, timeouts),
            (&mut self.stale, stale),
            (&mut self.leaked, leaked),
        ] {
            *total += counter.get();
        }
    }
}

/// The counters of one core of a runtime, written by it alone, but for `wakeups`.
#[derive(Debug, Default)]
pub(crate) struct CoreCounters {
    pub(crate) turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) enters: Counter,
    pub(crate) waits: Counter,
    pub(crate) submitted: Counter,
    pub(crate) completed: Counter,
    pub(crate) wakeups: Counter,
}

/// What a core of a runtime has done since it was made; see
/// [`Handle::metrics`](crate::runtime::Handle::metrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreMetrics {
    /// Rounds of the core: what is ready is run, then the kernel is asked once.
    pub turns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Calls of `io_uring_enter`, or of `epoll_wait`.
    pub enters: u64,
    /// Those of them that might sleep: the core had nothing else to do.
    pub waits: u64,
    /// Entries of the submission queue, those of files and of cancels among them. Backends: uring.
    pub submitted: u64,
    /// Entries of the completion queue. A multishot operation has many. Backends: uring.
    pub completed: u64,
    /// Times another thread had to wake the core, which costs it a system call.
    pub wakeups: u64,
}

impl CoreCounters {
    pub(crate) fn read(&self) -> CoreMetrics {
        CoreMetrics {
            turns: self.turns.get(),
            polls: self.polls.get(),
            enters: self.enters.get(),
            waits: self.waits.get(),
            submitted: self.submitted.get(),
            completed: self.completed.get(),
            wakeups: self.wakeups.get(),
        }
    }
}
