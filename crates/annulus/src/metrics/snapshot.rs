//! What a process has done through Annulus, as plain numbers that can be kept, compared and sent.

use super::Histogram;

/// The state of every driver, engine and runtime of a process at one moment; see [`snapshot`](super::snapshot).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The process.
    pub process: u32,
    /// When it was taken: ns of the monotonic clock.
    pub at_ns: u64,
    /// Who counted: those that run, and one for all that have ended.
    pub sources: Vec<Source>,
    /// Threads that the kernel has made for this process's rings (`iou-wrk-…`): what can't be done without
    /// blocking is done there.
    pub kernel_workers: u64,
}

/// What kind of thing counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// All that have ended.
    #[default]
    Ended,
    /// A ring and the thread that drives it, of an engine.
    Driver,
    /// A ring that the thread which asks drives itself.
    OwnRing,
    /// Blocking threads.
    Threads,
    /// Reads that an engine completed from the page cache on the caller's thread (the non-blocking fast path).
    FastPath,
    /// A core of a runtime: its ring, and its operations on sockets.
    Core,
    /// The files of such a core: their operations, on the ring that the core counts.
    CoreFiles,
    /// A ring that the preload library put under an epoll set of an unmodified program. Its operations are that
    /// program's calls.
    Preload,
    /// What the preload library left to the kernel, all of the process.
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

/// One thing that counts.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Source {
    /// What it is.
    pub kind: SourceKind,
    /// Which engine or runtime it belongs to; they are numbered in the order in which they were made, from 1.
    pub owner: u64,
    /// Which of its owner's, from 0.
    pub index: u32,
    /// What does the work, as [`Engine::backend`](crate::Engine::backend) says it.
    pub backend: String,
    /// Why it is not what would be best, if it is not.
    pub fallback: Option<String>,
    /// What it counted.
    pub counters: Counts,
    /// The same by operation; those that were never asked for are left out.
    pub operations: Vec<OperationCounts>,
    /// Operations that failed, by errno, most frequent first. A cancel that was asked for is none of them.
    pub errors: Vec<ErrorCounts>,
    /// What only the preload library counts.
    pub preload: PreloadCounts,
}

/// One list of the numbers, so that none can be forgotten where all are needed.
macro_rules! counts {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// Numbers that only grow, but for the gauge `in_flight`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $($(#[$about])* pub $name: u64,)*
        }

        impl Counts {
            /// All of them, by name.
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
    /// Operations given to the kernel or to a blocking thread. One that goes on until it is cancelled (a
    /// multishot receive or accept) counts once.
    submitted,
    /// Operations answered. Of one that goes on, each thing that arrives counts.
    completed,
    /// Of these, with an error; neither cancelled nor out of time.
    failed,
    /// Operations with the kernel or a blocking thread right now.
    in_flight,
    /// `io_uring_enter` calls (on the epoll backend: `epoll_wait`).
    enters,
    /// Those of them that might sleep.
    waits,
    /// Entries taken by the kernel in them; by `enters` it is the entries per enter.
    entries,
    /// Times another thread had to wake the driver, by a system call.
    wakeups,
    /// Times the kernel's polling thread (SQPOLL) had to be woken.
    sq_wakeups,
    /// Cancels asked of the kernel.
    cancels,
    /// Operations that ended as cancelled.
    cancelled,
    /// Operations whose timeout passed.
    timeouts,
    /// Transfers that came back shorter than asked and whose rest was asked for.
    short,
    /// Times the rest of a short transfer, or an interrupted operation, was submitted again.
    resubmitted,
    /// Receives that found no buffer free (ENOBUFS).
    no_buffers,
    /// Times completions did not fit into the completion queue and waited in the kernel.
    cq_overflows,
    /// Operations that used registered memory.
    fixed,
    /// Operations given up at the end of a drain, their memory leaked on purpose.
    leaked,
    /// Connections of streams that were dropped, reset because their peer took nothing of what was still to be sent for
    /// the close timeout (`RuntimeBuilder::close_timeout`).
    close_timeouts,
}

impl Counts {
    /// Both together.
    pub fn plus(&self, other: &Counts) -> Counts {
        self.with(other, u64::wrapping_add)
    }

    /// What has been counted since `earlier`; `in_flight` stays what it is now.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            in_flight: self.in_flight,
            ..self.with(earlier, u64::saturating_sub)
        }
    }
}

/// What one operation came to.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OperationCounts {
    /// As docs/reference/kernels.md lists it: `read_at`, `fsync`, `send`.
    pub name: &'static str,
    /// Answers.
    pub completed: u64,
    /// Of these, errors.
    pub failed: u64,
    /// From submission to answer, of a sample of the operations; recorded while somebody [watches](super::watch).
    pub latency: Histogram,
    /// The first part of it: from submission until the kernel, or a blocking thread, had it.
    pub queue: Histogram,
    /// The second part: in the kernel and the device, or in the blocking call.
    pub device: Histogram,
}

/// How often an error was the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorCounts {
    /// The error's number: 5 is EIO.
    pub errno: i32,
    /// How often.
    pub count: u64,
}

/// What the preload library did besides answering calls; of others, nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PreloadCounts {
    /// Calls that were left to the kernel.
    pub passed: Vec<ReasonCounts>,
    /// Descriptors that were served, and then given back to the kernel.
    pub handed_back: Vec<ReasonCounts>,
    /// Rings that serve right now.
    pub rings: u64,
    /// Connections that are served right now.
    pub connections: u64,
    /// Buffers for what is received, right now.
    pub buffers: u64,
    /// Those of them that hold nothing.
    pub buffers_free: u64,
}

/// How often something had that reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReasonCounts {
    /// As [`Why`](super::layout::preload::Why) names it: `not_a_stream`, `duplicated`.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
}

impl PreloadCounts {
    fn add(&mut self, other: &PreloadCounts) {
        add_reasons(&mut self.passed, &other.passed);
        add_reasons(&mut self.handed_back, &other.handed_back);
        self.rings = self.rings.wrapping_add(other.rings);
        self.connections = self.connections.wrapping_add(other.connections);
        self.buffers = self.buffers.wrapping_add(other.buffers);
        self.buffers_free = self.buffers_free.wrapping_add(other.buffers_free);
    }

    fn since(&self, earlier: &PreloadCounts) -> PreloadCounts {
        PreloadCounts {
            passed: reasons_since(&self.passed, &earlier.passed),
            handed_back: reasons_since(&self.handed_back, &earlier.handed_back),
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
        self.completed += other.completed;
        self.failed += other.failed;
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
    /// The operation of that name, if it was ever asked for.
    pub fn operation(&self, name: &str) -> Option<&OperationCounts> {
        self.operations
            .iter()
            .find(|operation| operation.name == name)
    }

    /// Adds what another has counted; its name is not kept.
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
                Some(own) => own.count += error.count,
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
    /// All sources as one.
    pub fn total(&self) -> Source {
        let mut total = Source::default();
        for source in &self.sources {
            total.add(source);
        }
        total
    }

    /// What has happened since `earlier`, a snapshot of the same process.
    ///
    /// What a source did between the two and then ended with is counted as that of the ended ones.
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

/// What `earlier` had counted of all that had ended by the time of `now`.
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
    fn what_a_source_did_before_it_ended_is_neither_lost_nor_counted_twice() {
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
