//! The counters of a process as plain numbers, which can be stored, compared and sent.

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
}

impl SourceKind {
    /// Returns the name used in labels: `driver`, `own_ring`, `threads`, `fast_path`, `core`, `core_files`, `preload`,
    /// `passed`, `ended`.
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
        /// Counters, which only grow, and the gauge `in_flight`.
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
}

impl Counts {
    /// Returns the sum of both.
    pub fn plus(&self, other: &Counts) -> Counts {
        self.with(other, u64::wrapping_add)
    }

    /// Returns the difference to `earlier`, with the current value of `in_flight`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            in_flight: self.in_flight,
            ..self.with(earlier, u64::saturating_sub)
        }
    }
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

impl PreloadCounts {
    fn add(&mut self, other: &PreloadCounts) {
        add_reasons(&mut self.passed, &other.passed);
        add_reasons(&mut self.handed_back, &other.handed_back);
        add_reasons(&mut self.listeners_left, &other.listeners_left);
        self.rings = self.rings.wrapping_add(other.rings);
        self.connections = self.connections.wrapping_add(other.connections);
        self.buffers = self.buffers.wrapping_add(other.buffers);
        self.buffers_free = self.buffers_free.wrapping_add(other.buffers_free);
    }

    fn since(&self, earlier: &PreloadCounts) -> PreloadCounts {
        PreloadCounts {
            passed: reasons_since(&self.passed, &earlier.passed),
            handed_back: reasons_since(&self.handed_back, &earlier.handed_back),
            listeners_left: reasons_since(&self.listeners_left, &earlier.listeners_left),
            rings: self.rings,
            connections: self.connections,
            buffers: self.buffers,
            buffers_free: self.buffers_free,
        }
    }
}

fn add_reasons(own: &mut Vec<ReasonCounts>, others: &[ReasonCounts]) {
    for other in others {
        match own.iter_mut().find(|own| own.reason == other.reason) {
            Some(own) => own.count = own.count.saturating_add(other.count),
            None => own.push(*other),
        }
    }
}

fn reasons_since(now: &[ReasonCounts], earlier: &[ReasonCounts]) -> Vec<ReasonCounts> {
    let grown = now.iter().map(|now| {
        let then = earlier.iter().find(|then| then.reason == now.reason);
        ReasonCounts {
            reason: now.reason,
            count: now.count.saturating_sub(then.map_or(0, |then| then.count)),
        }
    });
    grown.filter(|grown| grown.count > 0).collect()
}

impl OperationCounts {
    fn add(&mut self, other: &OperationCounts) {
        self.completed = self.completed.saturating_add(other.completed);
        self.failed = self.failed.saturating_add(other.failed);
        self.latency.add(&other.latency);
        self.queue.add(&other.queue);
        self.device.add(&other.device);
    }

    fn since(&self, earlier: &OperationCounts) -> OperationCounts {
        OperationCounts {
            name: self.name,
            completed: self.completed.saturating_sub(earlier.completed),
            failed: self.failed.saturating_sub(earlier.failed),
            latency: self.latency.since(&earlier.latency),
            queue: self.queue.since(&earlier.queue),
            device: self.device.since(&earlier.device),
        }
    }
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

    /// Adds the counters of `other`. Its kind, owner and index are not kept.
    pub fn add(&mut self, other: &Source) {
        self.counters = self.counters.plus(&other.counters);
        for operation in &other.operations {
            let own = self
                .operations
                .iter_mut()
                .find(|own| own.name == operation.name);
            match own {
                Some(own) => own.add(operation),
                None => self.operations.push(operation.clone()),
            }
        }
        for error in &other.errors {
            match self.errors.iter_mut().find(|own| own.errno == error.errno) {
                Some(own) => own.count = own.count.saturating_add(error.count),
                None => self.errors.push(*error),
            }
        }
        self.errors
            .sort_by_key(|error| std::cmp::Reverse(error.count));
        self.preload.add(&other.preload);
    }

    fn is(&self, other: &Source) -> bool {
        (self.kind, self.owner, self.index) == (other.kind, other.owner, other.index)
    }

    fn since(&self, earlier: &Source) -> Source {
        let operation = |now: &OperationCounts| match earlier.operation(now.name) {
            Some(then) => now.since(then),
            None => now.clone(),
        };
        let error = |now: &ErrorCounts| {
            let then = earlier.errors.iter().find(|then| then.errno == now.errno);
            ErrorCounts {
                errno: now.errno,
                count: now.count.saturating_sub(then.map_or(0, |then| then.count)),
            }
        };
        let errors = self.errors.iter().map(error);
        Source {
            counters: self.counters.since(&earlier.counters),
            operations: self.operations.iter().map(operation).collect(),
            errors: errors.filter(|error| error.count > 0).collect(),
            preload: self.preload.since(&earlier.preload),
            ..self.clone()
        }
    }
}

impl Snapshot {
    /// Returns the sum of all sources.
    ///
    /// The sum over all engines and runtimes of the process. `in_flight` is a gauge, and 0 when nothing runs:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::{Engine, metrics};
    ///
    /// let (one, other) = (Engine::new()?, Engine::new()?);
    /// one.nop().await?;
    /// other.nop().await?;
    /// let counters = metrics::snapshot().total().counters;
    /// assert_eq!((counters.completed, counters.in_flight), (2, 0));
    /// # Ok(()) }) }
    /// ```
    pub fn total(&self) -> Source {
        let mut total = Source::default();
        for source in &self.sources {
            total.add(source);
        }
        total
    }

    /// Returns the difference to `earlier`, a snapshot of the same process.
    ///
    /// If a source ended between the two, its last counts are part of the ended source.
    ///
    /// The time between the two gives a rate:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// use annulus::metrics;
    ///
    /// let engine = annulus::Engine::new()?;
    /// let before = metrics::snapshot();
    /// engine.nop().await?;
    /// let now = metrics::snapshot();
    /// let seconds = (now.at_ns - before.at_ns) as f64 / 1e9;
    /// let completed = now.since(&before).total().counters.completed;
    /// println!("{} operations/s", completed as f64 / seconds);
    /// assert_eq!(completed, 1);
    /// # Ok(()) }) }
    /// ```
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let source = |now: &Source| match earlier.sources.iter().find(|then| then.is(now)) {
            Some(then) if now.kind == SourceKind::Ended => now.since(&gone(then, self, earlier)),
            Some(then) => now.since(then),
            None if now.kind == SourceKind::Ended => {
                now.since(&gone(&Source::default(), self, earlier))
            }
            None => now.clone(),
        };
        Snapshot {
            sources: self.sources.iter().map(source).collect(),
            ..self.clone()
        }
    }
}

/// Returns the counts in `earlier` of all sources that had ended by the time of `now`.
fn gone(ended: &Source, now: &Snapshot, earlier: &Snapshot) -> Source {
    let mut gone = ended.clone();
    for source in &earlier.sources {
        let ended_since = !now.sources.iter().any(|still| still.is(source));
        if source.kind != SourceKind::Ended && ended_since {
            gone.add(source);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kind: SourceKind, index: u32, submitted: u64, errors: &[(i32, u64)]) -> Source {
        let errors = errors.iter();
        Source {
            kind,
            owner: u64::from(kind != SourceKind::Ended),
            index,
            counters: Counts {
                submitted,
                in_flight: 3,
                ..Counts::default()
            },
            errors: errors
                .map(|&(errno, count)| ErrorCounts { errno, count })
                .collect(),
            ..Source::default()
        }
    }

    fn snapshot(sources: &[Source]) -> Snapshot {
        Snapshot {
            sources: sources.to_vec(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn counts_of_an_ended_source_are_neither_lost_nor_counted_twice() {
        let earlier = snapshot(&[
            source(SourceKind::Driver, 0, 100, &[(5, 2)]),
            source(SourceKind::Driver, 1, 50, &[]),
        ]);
        let now = snapshot(&[
            source(SourceKind::Driver, 1, 60, &[(28, 1)]),
            source(SourceKind::Ended, 0, 130, &[(5, 3)]),
        ]);
        let between = now.since(&earlier);
        let done: Vec<u64> = (between.sources.iter())
            .map(|source| source.counters.submitted)
            .collect();
        assert_eq!(done, [10, 30]);
        assert_eq!(
            between.sources[1].errors,
            [ErrorCounts { errno: 5, count: 1 }]
        );
        let total = between.total();
        assert_eq!(
            (total.counters.submitted, total.counters.in_flight),
            (40, 6)
        );
        assert_eq!(total.errors.len(), 2);
    }
}
