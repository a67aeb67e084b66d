//! The counters of a source: its record, and operations on it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release, fence};

use super::histogram::bucket;
use super::record::{self, Number, TimePart};
use super::registry;
use super::snapshot::SourceKind;
use crate::op::OperationNumber;
use crate::sys::counter_storage::CounterStorage;
use crate::sys::forked;

pub(super) type Record = CounterStorage<{ record::WORDS }>;

/// The counters of one source. On drop, its counts move to the source of the ended ones.
///
/// Where possible, a single thread writes each number, so counting costs a load and a store. Any thread may read at any
/// time. The driver of a ring writes the ring's numbers, except for `wakeups`, which callers write. The numbers of
/// blocking threads are written under the driver's lock, those of a core by its thread.
pub(crate) struct Counters {
    record: Arc<Record>,
    /// The process that created it. A forked child has no source of its parent.
    process: u64,
}

/// A single number.
#[derive(Clone, Copy)]
pub(crate) struct Counter<'a>(&'a AtomicU64);

impl Counter<'_> {
    /// Adds to a counter that only the calling thread writes.
    #[inline]
    pub(crate) fn add(self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds to a counter that several threads write.
    #[inline]
    pub(crate) fn add_shared(self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Replaces a number that is counted elsewhere.
    #[inline]
    pub(crate) fn set(self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn get(self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The times of an operation, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// The time of the submission.
    pub(crate) submitted: u64,
    /// The time when the kernel or a blocking thread took it.
    pub(crate) begun: u64,
    /// The time of the completion.
    pub(crate) completed: u64,
}

impl Counters {
    pub(crate) fn new(kind: SourceKind) -> Counters {
        Counters {
            record: registry::add(kind),
            process: forked::process(),
        }
    }

    #[inline]
    pub(super) fn counter(&self, number: Number) -> Counter<'_> {
        Counter(&self.record[record::COUNTERS + number as usize])
    }

    #[inline]
    pub(super) fn word(&self, position: usize) -> Counter<'_> {
        Counter(&self.record[position])
    }

    /// Sets the kind of source.
    pub(crate) fn set_kind(&self, kind: SourceKind) {
        self.word(record::KIND).set(record::kind_number(kind));
    }

    /// Sets the owner, and the index among the owner's sources.
    pub(crate) fn set_owner(&self, owner: u64, index: usize) {
        self.word(record::OWNER).set(owner);
        self.word(record::INDEX).set(index as u64);
    }

    /// Sets the backend, and the reason why it is a fallback.
    pub(crate) fn set_backend(&self, backend: &str, fallback: Option<&str>) {
        let texts = [
            record::backend(backend),
            record::fallback(fallback.unwrap_or_default()),
        ];
        for (from, words) in texts {
            for (position, word) in words.into_iter().enumerate() {
                self.word(from + position).set(word);
            }
        }
    }

    /// Counts a completion.
    #[inline]
    pub(crate) fn complete(&self, operation: OperationNumber) {
        self.word(record::completed(operation)).add(1);
    }

    /// Counts completions. Any thread may call this.
    #[inline]
    pub(crate) fn complete_shared(&self, operation: OperationNumber, operations: u64) {
        self.word(record::completed(operation))
            .add_shared(operations);
    }

    /// Marks a counted completion as failed.
    #[cold]
    pub(crate) fn fail(&self, operation: OperationNumber, errno: i32) {
        self.word(record::failed(operation)).add_shared(1);
        self.error(errno);
    }

    /// Counts an error by its errno. Any thread may call this.
    #[cold]
    pub(super) fn error(&self, errno: i32) {
        count_error(&self.record, errno, 1);
    }

    /// Records the latency of an operation. Only one thread at a time may call this.
    #[cold]
    pub(crate) fn time(&self, operation: OperationNumber, times: Times) {
        self.record_times(operation, times, |counter, n| counter.add(n));
    }

    /// Records the latency of an operation. Any thread may call this.
    #[cold]
    pub(crate) fn time_shared(&self, operation: OperationNumber, times: Times) {
        self.record_times(operation, times, |counter, n| counter.add_shared(n));
    }

    fn record_times(
        &self,
        operation: OperationNumber,
        times: Times,
        add: impl Fn(Counter<'_>, u64),
    ) {
        let Times {
            submitted,
            begun,
            completed,
        } = times;
        for (part, ns) in [
            (TimePart::Queue, begun.saturating_sub(submitted)),
            (
                TimePart::Device,
                completed.saturating_sub(begun.max(submitted)),
            ),
            // Written last and never 0: readers take this sum as the sign that there is data.
            (
                TimePart::Latency,
                completed.saturating_sub(submitted).max(1),
            ),
        ] {
            add(
                self.word(record::buckets(operation, part).start + bucket(ns)),
                1,
            );
            fence(Release);
            add(self.word(record::sum(operation, part)), ns);
        }
    }

    /// Returns the number of completions.
    pub(crate) fn completed(&self) -> u64 {
        let operations = |operation| self.word(record::completed(operation)).get();
        OperationNumber::all().map(operations).sum()
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if self.process == forked::process() {
            registry::end(&self.record);
        }
    }
}

/// Counts errors in the table of `record`. When it is full, its last entry counts all further ones, as errno 0.
pub(super) fn count_error(record: &Record, errno: i32, count: u64) {
    // 0 if it is not an errno, which is positive.
    let errno = u64::try_from(errno).unwrap_or(0);
    let last = record::ERRORS_MAX - 1;
    let is_its = |nth: &usize| {
        let entry = &record[record::ERRORS + 2 * nth];
        let named = entry.compare_exchange(0, errno, Relaxed, Relaxed);
        named.is_ok() || named == Err(errno)
    };
    let nth = (0..last).find(is_its).unwrap_or(last);
    record[record::ERRORS + 2 * nth + 1].fetch_add(count, Relaxed);
}
