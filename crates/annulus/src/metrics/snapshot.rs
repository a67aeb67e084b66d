//! The counters of a process as plain numbers, which can be stored, compared and sent.

mod sums;

use super::Histogram;

/// The counters of every driver, engine and runtime of a process at one moment; see [`snapshot`](super::snapshot).
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::metrics;
///
/// let engine = annulus::Engine::new()?;
/// engine.nop().await?;
/// for source in metrics::snapshot().sources {
///     let why = source.fallback.as_deref().unwrap_or("no fallback");
///     println!("{} {}: {} ({why})", source.kind.name(), source.index, source.backend);
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process ID.
    pub process: u32,
    /// The time of the snapshot, in ns of the monotonic clock.
    pub at_ns: u64,
    /// The running sources, and one source for all that have ended.
    pub sources: Vec<Source>,
    /// The number of threads that the kernel has created for this process's rings (`iou-wrk-…`). They execute
    /// operations that cannot run without blocking.
    pub kernel_workers: u64,
}

/// A kind of source.
///
/// Which part of the reads needed no driver:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
/// use annulus::metrics::{self, SourceKind};
///
/// engine.open(&path).await?.read_at(vec![0; 4096], 0).await?;
/// let (mut fast, mut all) = (0, 0);
/// for source in metrics::snapshot().sources {
///     let reads = source.operation("read_at").map_or(0, |read| read.completed);
///     all += reads;
///     fast += if source.kind == SourceKind::FastPath { reads } else { 0 };
/// }
/// assert!(fast <= all && all == 1);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// All sources that have ended.
    #[default]
    Ended,
    /// A ring of an engine and the thread that drives it.
    Driver,
    /// A ring that the submitting thread drives itself.
    OwnRing,
    /// Blocking threads.
    Threads,
    /// The operations that an engine completed on the caller's thread (the non-blocking fast path): cached reads, and
    /// brief calls on local files.
    FastPath,
    /// A core of a runtime: its ring and its socket operations.
    Core,
    /// The file operations of a core. They use the ring that the core counts.
    CoreFiles,
    /// A ring that the preload library added to an epoll set of an unmodified program. Its operations are the program's
    /// calls.
    Preload,
    /// The calls of a process that the preload library passed to the kernel.
    Passed,
    /// A page pool (`annulus-pool`).
    Pool,
}

impl SourceKind {
    /// Returns the name used in labels: `driver`, `own_ring`, `threads`, `fast_path`, `core`, `core_files`, `preload`,
    /// `passed`, `pool`, `ended`.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Ended => "ended",
            SourceKind::Driver => "driver",
            SourceKind::OwnRing => "own_ring",
            SourceKind::Threads => "threads",
            SourceKind::FastPath => "fast_path",
            SourceKind::Core => "core",
            SourceKind::CoreFiles => "core_files",
            SourceKind::Preload => "preload",
            SourceKind::Passed => "passed",
            SourceKind::Pool => "pool",
        }
    }
}

/// A source of counters.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::metrics;
///
/// let engine = annulus::Engine::builder().backend(annulus::Backend::Fallback).build()?;
/// engine.nop().await?;
/// let snapshot = metrics::snapshot();
/// let threads = snapshot.sources.iter().find(|source| source.kind.name() == "threads");
/// let threads = threads.expect("this engine has blocking threads");
/// assert_eq!(threads.fallback, None); // the threads were requested
/// assert_eq!(threads.operation("nop").unwrap().completed, 1);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Source {
    /// The kind of source.
    pub kind: SourceKind,
    /// The number of the engine or runtime that the source belongs to. They are numbered from 1 in order of creation.
    pub owner: u64,
    /// The index among the owner's sources, starting at 0.
    pub index: u32,
    /// The backend, as [`Engine::backend`](crate::Engine::backend) describes it.
    pub backend: String,
    /// The reason for a fallback, if the backend is one.
    pub fallback: Option<String>,
    /// The counters.
    pub counters: Counts,
    /// The counters by operation. Operations that never ran are omitted.
    pub operations: Vec<OperationCounts>,
    /// Failed operations by errno, most frequent first. Requested cancels are not included.
    pub errors: Vec<ErrorCounts>,
    /// Counters of the preload library.
    pub preload: PreloadCounts,
}

/// Defines all counters in one list, so that none can be forgotten.
macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Counters, which only grow, and the gauges `in_flight` and `pool_held`.
        ///
        /// How well submissions are batched: entries of the submission queue per system call.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
        /// let engine = annulus::Engine::new()?;
        /// let before = annulus::metrics::snapshot();
        /// for _ in 0..10 {
        ///     engine.nop().await?; // one after another, so there is nothing to batch
        /// }
        /// let counters = annulus::metrics::snapshot().since(&before).total().counters;
        /// assert_eq!((counters.completed, counters.failed), (10, 0));
        /// println!("{} entries in {} calls", counters.entries, counters.enters); // 0 without io_uring
        /// # Ok(()) }) }
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counts {
            /// Returns the name and the value of each counter.
            ///
            /// For an exporter. New counters appear by themselves.
            ///
            /// ```
            /// let total = annulus::metrics::snapshot().total();
            /// for (name, value) in total.counters.fields() {
            ///     println!("annulus_{name} {value}");
            /// }
            /// ```
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            fn with(&self, other: &Counts, both: fn(u64, u64) -> u64) -> Counts {
                Counts { $($name: both(self.$name, other.$name),)* }
            }
        }
    };
}

counts! {
    /// Operations submitted to the kernel or to a blocking thread. An operation that runs until it is cancelled (a
    /// multishot receive or accept) counts once.
    submitted,
    /// Completed operations. Each result of a multishot operation counts.
    completed,
    /// The part of `completed` that failed, except cancelled operations and timeouts.
    failed,
    /// Operations in the kernel or on a blocking thread now.
    in_flight,
    /// Calls of `io_uring_enter`, or of `epoll_wait` on the epoll backend.
    enters,
    /// The part of `enters` that might sleep.
    waits,
    /// Submission queue entries that the kernel took. Divide by `enters` for the entries per call.
    entries,
    /// Times that another thread had to wake the driver with a system call.
    wakeups,
    /// Times that the kernel's polling thread (SQPOLL) had to be woken.
    sq_wakeups,
    /// Cancels requested from the kernel.
    cancels,
    /// Operations that completed as cancelled.
    cancelled,
    /// Operations that timed out.
    timeouts,
    /// Short transfers whose remainder was requested.
    short,
    /// Resubmissions of the remainder of a short transfer, or of an interrupted operation.
    resubmitted,
    /// Receives that found no free buffer (`ENOBUFS`).
    no_buffers,
    /// Times that completions did not fit into the completion queue and waited in the kernel.
    cq_overflows,
    /// Operations that used registered memory.
    fixed,
    /// Operations abandoned when the drain timeout passed, with their memory leaked on purpose.
    leaked,
    /// Connections of dropped streams that were reset, because the peer accepted none of the remaining output for the
    /// close timeout (`RuntimeBuilder::close_timeout`).
    close_timeouts,
    /// Panics of wakers, buffers and other code of the program that the library caught. Counted in the source of the
    /// ended ones.
    panics,
    /// Pages of a page pool that were in memory when they were asked for. Each thread counts in steps of 1,024.
    pool_hits,
    /// Pages of a page pool that were not in memory.
    pool_misses,
    /// Pages that a page pool removed to make space.
    pool_evictions,
    /// Loads of a page pool that waited for a frame.
    pool_waits,
    /// Frames of a page pool that guards hold now though their pages are gone.
    pool_held,
}

/// The counters and latencies of one operation.
///
/// Where the time of the reads goes: a long queue needs more depth or fewer requests, a slow device another device.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
/// use annulus::metrics;
///
/// let _watch = metrics::watch();
/// engine.open(&path).await?.read_at(vec![0; 4096], 0).await?;
/// let total = metrics::snapshot().total();
/// let reads = total.operation("read_at").expect("one has completed");
/// println!("queue {:?} ns, device {:?} ns", reads.queue.quantile(0.5), reads.device.quantile(0.5));
/// # assert_eq!((reads.completed, reads.failed), (1, 0));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OperationCounts {
    /// The name, as in docs/reference/kernels.md: `read_at`, `fsync`, `send`.
    pub name: &'static str,
    /// The number of completions.
    pub completed: u64,
    /// The part of `completed` that failed.
    pub failed: u64,
    /// The time from submission to completion, of a sample of the operations. Recorded while a [`Watch`](super::Watch)
    /// exists.
    pub latency: Histogram,
    /// The first part of the latency: from submission until the kernel or a blocking thread took the operation.
    pub queue: Histogram,
    /// The second part of the latency: in the kernel and the device, or in the blocking call.
    pub device: Histogram,
}

/// The number of failures with one errno.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "")?;
/// let file = engine.open(&path).await?; // for reading only
/// assert!(file.write_at("x", 0).await.is_err());
/// let total = annulus::metrics::snapshot().total();
/// let failed: Vec<_> = total.errors.iter().map(|error| (error.errno, error.count)).collect();
/// assert_eq!(failed, [(9, 1)]); // `EBADF`
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorCounts {
    /// The errno: 5 is `EIO`.
    pub errno: i32,
    /// The number of failures.
    pub count: u64,
}

/// Counters of the preload library, besides those of served calls. Empty for other sources.
///
/// Empty in a process without the preload library:
///
/// ```
/// let total = annulus::metrics::snapshot().total();
/// assert_eq!((total.preload.connections, total.preload.passed.len()), (0, 0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreloadCounts {
    /// Calls passed to the kernel.
    pub passed: Vec<ReasonCounts>,
    /// Descriptors that were served and then handed back to the kernel.
    pub handed_back: Vec<ReasonCounts>,
    /// Listeners whose connections are left to the kernel.
    pub listeners_left: Vec<ReasonCounts>,
    /// The number of rings in service now.
    pub rings: u64,
    /// The number of connections in service now.
    pub connections: u64,
    /// The number of receive buffers now.
    pub buffers: u64,
    /// The number of receive buffers that are empty now.
    pub buffers_free: u64,
}

/// The number of events with one reason.
///
/// The most frequent reason why calls are not served:
///
/// ```
/// let preload = annulus::metrics::snapshot().total().preload;
/// if let Some(most) = preload.passed.iter().max_by_key(|reason| reason.count) {
///     println!("{} calls were passed to the kernel: {}", most.count, most.reason);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReasonCounts {
    /// The reason, as [`Why`](super::layout::preload::Why) names it: `not_a_stream`, `duplicated`.
    pub reason: &'static str,
    /// The number of events.
    pub count: u64,
}

impl Source {
    /// Returns the counters of the operation `name`, if it ever ran.
    ///
    /// ```
    /// let total = annulus::metrics::snapshot().total();
    /// // `None` if it never ran, and for a name that does not exist.
    /// let syncs = total.operation("fsync").map_or(0, |fsync| fsync.completed);
    /// assert_eq!(syncs, 0);
    /// ```
    pub fn operation(&self, name: &str) -> Option<&OperationCounts> {
        self.operations
            .iter()
            .find(|operation| operation.name == name)
    }
}
