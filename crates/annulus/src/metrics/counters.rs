//! What a source counts by: its record, and the few things that are done to it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::histogram::bucket;
use super::record::{self, Number, Part};
use super::registry;
use super::snapshot::SourceKind;
use crate::op::OperationNumber;
use crate::sys::counter_storage::CounterStorage;
use crate::sys::forked;

pub(super) type Record = CounterStorage<{ record::WORDS }>;

/// Counts for one source. Dropped, what it has counted is that of the ended ones.
///
/// Each number is written by one thread where it can be, so that counting costs a load and a store; reading
/// is anybody's, at any time. Those of a ring are written by its driver alone, but for `wakeups`, which
/// callers write; those of blocking threads under the driver's lock; those of a core by its thread.
pub(crate) struct Counters {
    record: Arc<Record>,
    /// The process it was made in; what a child of a fork has of it is none of its own.
    process: u64,
}

/// One number.
#[derive(Clone, Copy)]
pub(crate) struct Counter<'a>(&'a AtomicU64);

impl Counter<'_> {
    /// Adds; for a counter that only the calling thread writes.
    #[inline]
    pub(crate) fn add(self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Adds; for a counter that several threads write.
    #[inline]
    pub(crate) fn add_shared(self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Replaces; for a number that is counted elsewhere.
    #[inline]
    pub(crate) fn set(self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn get(self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// When an operation came by where, ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Submitted.
    pub(crate) submitted: u64,
    /// With the kernel, or with a blocking thread.
    pub(crate) begun: u64,
    /// Answered.
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

    /// Says what it is that counts here.
    pub(crate) fn be(&self, kind: SourceKind) {
        self.word(record::KIND).set(record::kind_number(kind));
    }

    /// Says whose it is, and which of them.
    pub(crate) fn belong(&self, owner: u64, index: usize) {
        self.word(record::OWNER).set(owner);
        self.word(record::INDEX).set(index as u64);
    }

    /// Says what does the work, and why it is not what would be best.
    pub(crate) fn describe(&self, backend: &str, fallback: Option<&str>) {
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

    /// Counts an answer.
    #[inline]
    pub(crate) fn complete(&self, operation: OperationNumber) {
        self.word(record::completed(operation)).add(1);
    }

    /// Counts answers; any thread may.
    #[inline]
    pub(crate) fn complete_shared(&self, operation: OperationNumber, operations: u64) {
        self.word(record::completed(operation))
            .add_shared(operations);
    }

    /// Of an answer that has been counted: it is an error.
    #[cold]
    pub(crate) fn fail(&self, operation: OperationNumber, errno: i32) {
        self.word(record::failed(operation)).add_shared(1);
        self.error(errno);
    }

    /// Counts an error by its kind; any thread may.
    #[cold]
    pub(super) fn error(&self, errno: i32) {
        count_error(&self.record, errno, 1);
    }

    /// Counts how long an operation took. By one thread at a time.
    #[cold]
    pub(crate) fn time(&self, operation: OperationNumber, times: Times) {
        self.record_times(operation, times, |counter, n| counter.add(n));
    }

    /// The same; any thread may.
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
            (Part::Queue, begun.saturating_sub(submitted)),
            (Part::Device, completed.saturating_sub(begun.max(submitted))),
            // The sum of this one says that there is something to read: it is written last, and never 0.
            (Part::Latency, completed.saturating_sub(submitted).max(1)),
        ] {
            add(
                self.word(record::buckets(operation, part).start + bucket(ns)),
                1,
            );
            add(self.word(record::sum(operation, part)), ns);
        }
    }

    /// Answers so far.
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
    // An errno, which is positive, or 0.
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
