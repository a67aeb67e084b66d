//! The layout of a record, the words in which a source counts. Snapshots are read from them, in this process or
//! another. Each change here changes `VERSION`, except for names, which readers compare themselves.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::histogram::{BUCKETS, Histogram};
use super::layout::preload::{Call, Why};
use super::snapshot::{
    Counts, ErrorCounts, OperationCounts, PreloadCounts, ReasonCounts, Source, SourceKind,
};
use crate::op::{self, OperationNumber};

/// The version of the layout: of the header (`layout/mod.rs`), of a record and of the buckets. Names are compared by
/// [`names`].
pub const VERSION: u64 = 5;

/// The number of entries for operations; some are left for future ones.
const OPERATIONS_MAX: usize = 64;
const _: () = assert!(
    op::ALL.len() <= OPERATIONS_MAX,
    "there are more operations than positions: raise OPERATIONS_MAX and VERSION"
);

/// The kind; 0 if the record is free.
pub(super) const KIND: usize = 0;
pub(super) const OWNER: usize = 1;
pub(super) const INDEX: usize = 2;
/// The counters of `counters.rs`.
pub(super) const COUNTERS: usize = 8;
pub(super) const COUNTERS_MAX: usize = 32;
/// Pairs of errno and count, in no order.
pub(super) const ERRORS: usize = COUNTERS + COUNTERS_MAX;
pub(super) const ERRORS_MAX: usize = 32;
/// Completions and failures by operation.
const DONE: usize = ERRORS + 2 * ERRORS_MAX;
/// The number of words per operation: completions and failures.
const DONE_WORDS: usize = 2;
const BACKEND: usize = DONE + OPERATIONS_MAX * DONE_WORDS;
const BACKEND_WORDS: usize = 32;
const FALLBACK: usize = BACKEND + BACKEND_WORDS;
const FALLBACK_WORDS: usize = 160;
/// The sums of the three histograms by operation, in ns. All words that are written without a reader lie before this,
/// in one page.
const SUMS: usize = 512;
const _: () = assert!(FALLBACK + FALLBACK_WORDS <= SUMS);
/// The number of words of a record that are read in one step; its buckets follow.
pub const HEAD_WORDS: usize = SUMS + OPERATIONS_MAX * PARTS;
/// The number of words of a page, for the largest page size.
pub(super) const PAGE_WORDS: usize = (64 << 10) / size_of::<u64>();
/// The counters of the preload library, on a separate page after the buckets.
const PRELOAD: usize = HEAD_WORDS + OPERATIONS_MAX * PARTS * BUCKETS;
/// The number of words per call: served calls, and failures among them.
const CALL_WORDS: usize = 2;
/// The number of entries for calls; some are left for future ones.
const CALLS_MAX: usize = 96;
const _: () = assert!(Call::ALL.len() <= CALLS_MAX);
const PASSED: usize = PRELOAD + CALLS_MAX * CALL_WORDS;
/// The number of entries for reasons; some are left for future ones.
const REASONS_MAX: usize = 64;
const _: () = assert!(Why::ALL.len() <= REASONS_MAX);
const HANDED_BACK: usize = PASSED + REASONS_MAX;
/// Listeners whose connections are left to the kernel.
const LISTENERS_LEFT: usize = HANDED_BACK + REASONS_MAX;
/// The number of created rings.
pub(super) const RINGS_MADE: usize = LISTENERS_LEFT + REASONS_MAX;
/// The words before this index are counters, whose sums over records are meaningful. Gauges follow.
const PRELOAD_COUNTED: Range<usize> = PRELOAD..RINGS_MADE + 1;
pub(super) const RINGS: usize = PRELOAD_COUNTED.end;
pub(super) const CONNECTIONS: usize = RINGS + 1;
pub(super) const BUFFERS: usize = CONNECTIONS + 1;
pub(super) const BUFFERS_FREE: usize = BUFFERS + 1;
const PRELOAD_WORDS: usize = 512;
const _: () = assert!(BUFFERS_FREE < PRELOAD + PRELOAD_WORDS);
/// The number of words of a record: whole pages.
pub const WORDS: usize = (PRELOAD + PRELOAD_WORDS).next_multiple_of(PAGE_WORDS);

/// The histograms of an operation.
#[derive(Clone, Copy)]
pub(super) enum TimePart {
    Latency,
    Queue,
    Device,
}
const PARTS: usize = 3;

/// Returns the index of the operation's entry. The remainder only serves as a bound for the compiler.
#[inline]
fn position_of(operation: OperationNumber) -> usize {
    operation.index() % OPERATIONS_MAX
}

#[inline]
pub(super) fn completed(operation: OperationNumber) -> usize {
    DONE + position_of(operation) * DONE_WORDS
}

#[inline]
pub(super) fn failed(operation: OperationNumber) -> usize {
    completed(operation) + 1
}

#[inline]
pub(super) fn sum(operation: OperationNumber, part: TimePart) -> usize {
    SUMS + position_of(operation) * PARTS + part as usize
}

/// Returns the words of a histogram's buckets.
#[inline]
pub(super) fn buckets(operation: OperationNumber, part: TimePart) -> Range<usize> {
    let from = HEAD_WORDS + (position_of(operation) * PARTS + part as usize) * BUCKETS;
    from..from + BUCKETS
}

#[inline]
pub(super) fn served(call: Call) -> usize {
    PRELOAD + call as usize * CALL_WORDS
}

#[inline]
pub(super) fn served_failed(call: Call) -> usize {
    served(call) + 1
}

#[inline]
pub(super) fn passed(why: Why) -> usize {
    PASSED + why as usize
}

#[inline]
pub(super) fn handed_back(why: Why) -> usize {
    HANDED_BACK + why as usize
}

#[inline]
pub(super) fn listeners_left(why: Why) -> usize {
    LISTENERS_LEFT + why as usize
}

/// Returns the words of the preload library's counters.
pub(super) fn preload() -> Range<usize> {
    PRELOAD_COUNTED
}

/// Returns a fingerprint of the meaning of a record's numbers. It is equal for two versions of Annulus that have the
/// same operations, counters, kinds, calls and reasons, in the same order.
pub fn names() -> u64 {
    let kinds = KINDS.iter().map(|kind| kind.name());
    let calls = Call::ALL.iter().map(|call| call.name());
    let reasons = Why::ALL.iter().map(|why| why.name());
    let operations = op::NAMES.iter().copied();
    let lists: [&mut dyn Iterator<Item = &'static str>; 5] = [
        &mut operations.into_iter(),
        &mut NUMBER_NAMES.iter().copied(),
        &mut kinds.into_iter(),
        &mut calls.into_iter(),
        &mut reasons.into_iter(),
    ];
    fingerprint(lists)
}

/// Returns the FNV-1a hash of all names. A terminator follows each name and each list.
fn fingerprint(lists: [&mut dyn Iterator<Item = &str>; 5]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut take = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    for list in lists {
        for name in list {
            name.bytes().chain([0]).for_each(&mut take);
        }
        take(1);
    }
    hash
}

/// Returns the position and the words of the backend's name.
pub(super) fn backend(text: &str) -> (usize, Vec<u64>) {
    (BACKEND, words_of(text, BACKEND_WORDS))
}

/// Returns the position and the words of the reason for the fallback.
pub(super) fn fallback(text: &str) -> (usize, Vec<u64>) {
    (FALLBACK, words_of(text, FALLBACK_WORDS))
}

/// Converts `text` to words, truncated to fit.
fn words_of(text: &str, words: usize) -> Vec<u64> {
    let mut bytes = vec![0; words * size_of::<u64>()];
    let mut end = text.len().min(bytes.len() - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    let word = |part: &[u8]| {
        part.iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte))
    };
    bytes.chunks(size_of::<u64>()).map(word).collect()
}

fn text_of(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Defines the counters in the order of their words.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// The numbers of the counters.
        #[expect(non_camel_case_types, reason = "named as the counters are")]
        #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "without `net` there are no cores to count for"))]
        #[derive(Clone, Copy)]
        pub(super) enum Number {
            $($(#[$about])* $name,)*
        }
        /// The names of the counters.
        const NUMBER_NAMES: &[&str] = &[$(stringify!($name)),*];

        #[cfg_attr(not(feature = "net"), allow(dead_code, reason = "without `net` there are no cores to count for"))]
        impl super::Counters {
            $($(#[$about])*
            #[inline]
            pub(crate) fn $name(&self) -> super::Counter<'_> {
                self.counter(Number::$name)
            })*
        }
    };
}

counters! {
    submitted,
    enters,
    waits,
    entries,
    wakeups,
    sq_wakeups,
    poll_refused,
    cancels,
    cancelled,
    timeouts,
    short,
    resubmitted,
    no_buffers,
    cq_overflows,
    fixed,
    stale,
    leaked,
    /// Reads that missed the page cache.
    missed,
    /// Polls of a core's ring.
    ring_polls,
    /// Polls of a core's tasks.
    polls,
    /// Completion queue entries of a core or a preload ring.
    cqes,
    /// Operations in flight: socket operations of a core, or all operations of a preload ring.
    flying,
    /// Connections of a core that were reset because their peer accepted nothing.
    close_timeouts,
    /// Panics of the program's code that were caught.
    panics,
    pool_hits,
    pool_misses,
    pool_evictions,
    pool_waits,
    /// Frames of a page pool that guards hold though their pages are gone.
    pool_held,
}
const _: () = assert!(NUMBER_NAMES.len() <= COUNTERS_MAX);

/// Reads a record. `head` has its first words, and `fetch` reads a number of words from an offset on. Returns `None` if
/// the record is free or of an unknown kind.
pub fn read(
    head: &[u64],
    mut fetch: impl FnMut(usize, usize) -> Option<Vec<u64>>,
) -> Option<Source> {
    let head: &[u64; HEAD_WORDS] = head.try_into().ok()?;
    // The sums in the head are written after the other words (`Counters::record_times`).
    fence(Ordering::Acquire);
    let kind = kind_of(head[KIND])?;
    let mut operations = Vec::new();
    for number in OperationNumber::all() {
        let done = head[completed(number)];
        let sums = [TimePart::Latency, TimePart::Queue, TimePart::Device]
            .map(|part| head[sum(number, part)]);
        if done == 0 && sums == [0; 3] {
            continue;
        }
        let mut histogram = |part: TimePart| {
            let sum_ns = head[sum(number, part)];
            let timed = head[sum(number, TimePart::Latency)] > 0;
            let counts = timed
                .then(|| fetch(buckets(number, part).start, BUCKETS))
                .flatten();
            counts.map_or_else(Histogram::new, |counts| {
                Histogram::of(counts.into_iter(), sum_ns)
            })
        };
        operations.push(OperationCounts {
            name: op::NAMES[number.index()],
            completed: done,
            failed: head[failed(number)],
            latency: histogram(TimePart::Latency),
            queue: histogram(TimePart::Queue),
            device: histogram(TimePart::Device),
        });
    }
    let mut preload = PreloadCounts::default();
    // Other kinds of source have no such words.
    if matches!(
        kind,
        SourceKind::Preload | SourceKind::Passed | SourceKind::Ended
    ) && let Some(words) = fetch(PRELOAD, PRELOAD_WORDS)
    {
        calls(&words, &mut operations);
        preload = preloaded(&words);
    }
    let fallback = text_of(&head[FALLBACK..FALLBACK + FALLBACK_WORDS]);
    Some(Source {
        kind,
        owner: head[OWNER],
        index: u32::try_from(head[INDEX]).unwrap_or(u32::MAX),
        backend: text_of(&head[BACKEND..BACKEND + BACKEND_WORDS]),
        fallback: Some(fallback).filter(|fallback| !fallback.is_empty()),
        counters: counts(head, kind, &operations),
        operations,
        errors: errors(head),
        preload,
    })
}

/// Adds the served calls to the operations; some have the same names.
fn calls(words: &[u64], operations: &mut Vec<OperationCounts>) {
    for call in Call::ALL {
        let [completed, failed] =
            [served(*call), served_failed(*call)].map(|position| words[position - PRELOAD]);
        if completed == 0 && failed == 0 {
            continue;
        }
        let name = call.name();
        let known = operations
            .iter()
            .position(|operation| operation.name == name);
        let at = known.unwrap_or_else(|| {
            operations.push(OperationCounts {
                name,
                ..OperationCounts::default()
            });
            operations.len() - 1
        });
        let known = &mut operations[at];
        known.completed = known.completed.saturating_add(completed);
        known.failed = known.failed.saturating_add(failed);
    }
}

fn preloaded(words: &[u64]) -> PreloadCounts {
    let reasons = |position: fn(Why) -> usize| {
        let counted = Why::ALL.iter().map(|why| ReasonCounts {
            reason: why.name(),
            count: words[position(*why) - PRELOAD],
        });
        counted.filter(|counted| counted.count > 0).collect()
    };
    let gauge = |position: usize| words[position - PRELOAD];
    PreloadCounts {
        passed: reasons(passed),
        handed_back: reasons(handed_back),
        listeners_left: reasons(listeners_left),
        rings: gauge(RINGS),
        connections: gauge(CONNECTIONS),
        buffers: gauge(BUFFERS),
        buffers_free: gauge(BUFFERS_FREE),
    }
}

fn counts(head: &[u64; HEAD_WORDS], kind: SourceKind, operations: &[OperationCounts]) -> Counts {
    let word = |number: Number| head[COUNTERS + number as usize];
    // Another process may have written any numbers.
    let sum = |of: fn(&OperationCounts) -> u64| {
        let counts = operations.iter().map(of);
        counts.fold(0, u64::saturating_add)
    };
    let completed = sum(|operation| operation.completed);
    // The files of a core use the core's ring, which counts for itself.
    let ring = |number| match kind {
        SourceKind::CoreFiles => 0,
        _ => word(number),
    };
    Counts {
        submitted: match kind {
            // Submitted and completed at the same moment.
            SourceKind::FastPath | SourceKind::Preload | SourceKind::Passed => completed,
            _ => word(Number::submitted),
        },
        completed,
        failed: sum(|operation| operation.failed),
        in_flight: match kind {
            SourceKind::Core | SourceKind::Preload => word(Number::flying),
            SourceKind::FastPath | SourceKind::Passed | SourceKind::Ended => 0,
            _ => word(Number::submitted).saturating_sub(completed),
        },
        enters: ring(Number::enters),
        waits: ring(Number::waits),
        entries: ring(Number::entries),
        wakeups: ring(Number::wakeups),
        sq_wakeups: ring(Number::sq_wakeups),
        cancels: word(Number::cancels),
        cancelled: word(Number::cancelled),
        timeouts: word(Number::timeouts),
        short: word(Number::short),
        resubmitted: word(Number::resubmitted),
        no_buffers: word(Number::no_buffers),
        cq_overflows: ring(Number::cq_overflows),
        fixed: word(Number::fixed),
        leaked: word(Number::leaked),
        close_timeouts: word(Number::close_timeouts),
        panics: word(Number::panics),
        pool_hits: word(Number::pool_hits),
        pool_misses: word(Number::pool_misses),
        pool_evictions: word(Number::pool_evictions),
        pool_waits: word(Number::pool_waits),
        pool_held: word(Number::pool_held),
    }
}

fn errors(head: &[u64; HEAD_WORDS]) -> Vec<ErrorCounts> {
    let pairs = head[ERRORS..ERRORS + 2 * ERRORS_MAX].chunks_exact(2);
    let counted = pairs.filter(|pair| pair[1] > 0).map(|pair| ErrorCounts {
        errno: i32::try_from(pair[0]).unwrap_or(0),
        count: pair[1],
    });
    let mut errors: Vec<ErrorCounts> = counted.collect();
    errors.sort_by_key(|error| std::cmp::Reverse(error.count));
    errors
}

/// The kinds by number, starting at 1.
const KINDS: [SourceKind; 10] = [
    SourceKind::Ended,
    SourceKind::Driver,
    SourceKind::OwnRing,
    SourceKind::Threads,
    SourceKind::FastPath,
    SourceKind::Core,
    SourceKind::CoreFiles,
    SourceKind::Preload,
    SourceKind::Passed,
    SourceKind::Pool,
];

pub(super) fn kind_number(kind: SourceKind) -> u64 {
    let position = KINDS.iter().position(|one| *one == kind);
    position.map_or(0, |position| position as u64 + 1)
}

fn kind_of(number: u64) -> Option<SourceKind> {
    KINDS
        .get(usize::try_from(number).ok()?.checked_sub(1)?)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(operations: &[&str], counters: &[&str]) -> u64 {
        let [mut a, mut b] = [operations, counters].map(|list| list.iter().copied());
        let [mut none, mut nor, mut any] = [(); 3].map(|()| std::iter::empty());
        fingerprint([&mut a, &mut b, &mut none, &mut nor, &mut any])
    }

    #[test]
    fn another_name_order_or_list_is_another_layout() {
        let same = of(&["read", "write"], &["enters"]);
        assert_eq!(same, of(&["read", "write"], &["enters"]));
        for other in [
            of(&["write", "read"], &["enters"]),
            of(&["read", "write", "link"], &["enters"]),
            of(&["readwrite"], &["enters"]),
            of(&["read"], &["write", "enters"]),
            of(&["read", "write"], &[]),
        ] {
            assert_ne!(other, same);
        }
    }

    #[test]
    fn every_operation_has_words_of_its_own() {
        let mut taken = std::collections::BTreeSet::new();
        for operation in OperationNumber::all() {
            let parts = [TimePart::Latency, TimePart::Queue, TimePart::Device];
            let buckets = parts.map(|part| buckets(operation, part));
            let sums = parts.map(|part| sum(operation, part));
            assert!(failed(operation) < BACKEND);
            assert!(
                sums.iter()
                    .all(|position| (SUMS..HEAD_WORDS).contains(position))
            );
            let positions = [completed(operation), failed(operation)].into_iter();
            let positions = positions.chain(sums).chain(buckets.into_iter().flatten());
            positions.for_each(|position| assert!(taken.insert(position), "{position} is taken"));
        }
        assert!(taken.iter().all(|position| *position < PRELOAD));
    }
}
