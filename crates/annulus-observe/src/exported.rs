//! What the exporters share: names with their meaning, and totals that never go back.

use annulus::metrics::{PreloadCounts, Snapshot, Source, SourceKind};

/// What the counters of a source are called outside, without the `annulus_` before and the `_total` behind, and what
/// they mean. By the names of `Counts::fields`; `in_flight` is a gauge and not among them.
const COUNTERS: [(&str, &str, &str); 18] = [
    (
        "submitted",
        "submitted",
        "Operations given to the kernel or to a blocking thread",
    ),
    ("completed", "completed", "Operations answered"),
    ("failed", "failed", "Operations answered with an error"),
    (
        "enters",
        "enters",
        "Calls of io_uring_enter, or of epoll_wait",
    ),
    ("waits", "waits", "Those of them that might sleep"),
    (
        "entries",
        "entries",
        "Entries of submission queues that the kernel took",
    ),
    (
        "wakeups",
        "wakeups",
        "Times another thread had to wake a driver or core by a system call",
    ),
    (
        "sq_wakeups",
        "sq_wakeups",
        "Times the kernel thread of SQPOLL had to be woken",
    ),
    ("cancels", "cancels", "Cancels asked of the kernel"),
    (
        "cancelled",
        "cancelled",
        "Operations that ended as cancelled",
    ),
    ("timeouts", "timeouts", "Operations whose timeout passed"),
    (
        "short",
        "short_transfers",
        "Transfers shorter than asked, not at the end of a file",
    ),
    (
        "resubmitted",
        "resubmitted",
        "Times the rest of a transfer was submitted again",
    ),
    (
        "no_buffers",
        "no_buffers",
        "Receives that found no buffer free (ENOBUFS)",
    ),
    (
        "cq_overflows",
        "cq_overflows",
        "Times completions did not fit into the completion queue",
    ),
    ("fixed", "fixed", "Operations that used registered memory"),
    (
        "leaked",
        "leaked",
        "Operations given up at the end of a drain, their memory leaked",
    ),
    (
        "close_timeouts",
        "close_timeouts",
        "Connections of dropped streams reset because the peer took nothing for the close timeout",
    ),
];

/// Name and meaning of a counter. One that is not in the list goes by its field.
pub(crate) fn counter(field: &'static str) -> (&'static str, &'static str) {
    let known = COUNTERS.iter().find(|(known, ..)| *known == field);
    known.map_or((field, "A counter"), |(_, name, means)| (*name, *means))
}

/// The other names, with the same things left out.
pub(crate) const OPERATIONS: (&str, &str) = ("operations", "Answers, errors among them");
pub(crate) const OPERATION_FAILURES: (&str, &str) =
    ("operation_failures", "Answers that are errors");
#[cfg(feature = "prometheus")]
pub(crate) const OPERATION_ERRORS: (&str, &str) = ("operation_errors", "Errors by their kind");
pub(crate) const LATENCY: (&str, &str) = (
    "operation_duration",
    "From submission to completion, of a sample of the operations",
);
pub(crate) const QUEUE: (&str, &str) = (
    "operation_queue",
    "From submission until the kernel or a blocking thread received it",
);
pub(crate) const DEVICE: (&str, &str) = (
    "operation_device",
    "In the kernel and the device, or in the blocking call",
);
pub(crate) const IN_FLIGHT: (&str, &str) = (
    "in_flight",
    "Operations with the kernel or a blocking thread right now",
);
#[cfg(feature = "prometheus")]
pub(crate) const SOURCES: (&str, &str) =
    ("sources", "Drivers, cores and others that count, right now");
pub(crate) const KERNEL_WORKERS: (&str, &str) = (
    "kernel_workers",
    "Threads that the kernel has made for this process's rings",
);
pub(crate) const BACKEND: (&str, &str) = (
    "backend_info",
    "What does the work, and why it is not the best",
);
pub(crate) const ALERT: (&str, &str) = ("alert", "1 while the alert is raised");

pub(crate) const PASSED: (&str, &str) = (
    "preload_passed",
    "Calls that the preload library left to the kernel",
);
pub(crate) const HANDED_BACK: (&str, &str) = (
    "preload_handbacks",
    "Descriptors that the preload library gave back to the kernel",
);
/// Name, meaning, and where the number is.
type PreloadGauge = (&'static str, &'static str, fn(&PreloadCounts) -> u64);
pub(crate) const PRELOAD: [PreloadGauge; 4] = [
    (
        "preload_rings",
        "Rings of the preload library right now",
        |counts| counts.rings,
    ),
    (
        "preload_connections",
        "Connections on these rings right now",
        |counts| counts.connections,
    ),
    (
        "preload_buffers",
        "Buffers for what these rings receive",
        |counts| counts.buffers,
    ),
    (
        "preload_buffers_free",
        "Those of them that hold nothing",
        |counts| counts.buffers_free,
    ),
];

/// What each kind of source has counted, all that have ended in the meantime included.
///
/// In a snapshot, what a driver had counted goes over to the ended ones when it ends: as a series by kind it would go
/// back, and a reader would take that for a restart and count it twice.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    before: Option<Snapshot>,
    kinds: Vec<Source>,
}

impl Totals {
    /// Counts what has happened up to `now`, and returns what was new.
    pub(crate) fn advance(&mut self, now: &Snapshot) -> Snapshot {
        let between = match &self.before {
            Some(before) => now.since(before),
            None => now.clone(),
        };
        for source in &between.sources {
            self.of(source.kind).add(source);
        }
        for kind in &mut self.kinds {
            let same = now.sources.iter().filter(|source| source.kind == kind.kind);
            let sum = |of: fn(&Source) -> u64| same.clone().map(of).sum();
            kind.counters.in_flight = sum(|source| source.counters.in_flight);
            kind.preload.rings = sum(|source| source.preload.rings);
            kind.preload.connections = sum(|source| source.preload.connections);
            kind.preload.buffers = sum(|source| source.preload.buffers);
            kind.preload.buffers_free = sum(|source| source.preload.buffers_free);
        }
        self.before = Some(now.clone());
        between
    }

    fn of(&mut self, kind: SourceKind) -> &mut Source {
        let found = self.kinds.iter().position(|known| known.kind == kind);
        let at = found.unwrap_or_else(|| {
            let mut source = Source::default();
            source.kind = kind;
            self.kinds.push(source);
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }

    /// One source for each kind that was ever seen.
    pub(crate) fn kinds(&self) -> &[Source] {
        &self.kinds
    }
}

#[cfg(test)]
mod tests {
    use annulus::metrics::{Counts, ReasonCounts};

    use super::*;

    fn source(kind: SourceKind, index: u32, enters: u64) -> Source {
        let mut source = Source::default();
        (source.kind, source.index) = (kind, index);
        source.owner = u64::from(kind != SourceKind::Ended);
        source.counters.enters = enters;
        source.counters.in_flight = 2;
        source
    }

    fn snapshot(sources: &[Source]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.sources = sources.to_vec();
        snapshot
    }

    #[test]
    fn a_driver_that_ends_takes_nothing_away_and_is_not_counted_twice() {
        let mut totals = Totals::default();
        let driver = SourceKind::Driver;
        totals.advance(&snapshot(&[source(driver, 0, 100), source(driver, 1, 10)]));
        let enters = |totals: &Totals| -> Vec<(SourceKind, u64, u64)> {
            let kinds = totals.kinds().iter();
            kinds
                .map(|one| (one.kind, one.counters.enters, one.counters.in_flight))
                .collect()
        };
        assert_eq!(enters(&totals), [(driver, 110, 4)]);
        totals.advance(&snapshot(&[
            source(driver, 1, 11),
            source(SourceKind::Ended, 0, 105),
        ]));
        assert_eq!(
            enters(&totals),
            [(driver, 111, 2), (SourceKind::Ended, 5, 2)]
        );
    }

    #[test]
    fn what_the_preload_library_has_now_is_no_sum_over_time_and_its_reasons_are() {
        let ring = |passed| {
            let mut ring = source(SourceKind::Preload, 0, 1);
            ring.preload.connections = 300;
            let mut reason = ReasonCounts::default();
            (reason.reason, reason.count) = ("port", passed);
            ring.preload.passed = vec![reason];
            ring
        };
        let mut totals = Totals::default();
        totals.advance(&snapshot(&[ring(1)]));
        totals.advance(&snapshot(&[ring(5)]));
        let [kind] = totals.kinds() else {
            panic!("{totals:?}");
        };
        assert_eq!(kind.preload.connections, 300);
        assert_eq!(kind.preload.passed[0].count, 5);
    }

    #[test]
    fn each_counter_has_a_name_and_a_meaning_of_its_own() {
        for (field, _) in Counts::default()
            .fields()
            .filter(|(field, _)| *field != "in_flight")
        {
            assert_ne!(
                counter(field).1,
                "A counter",
                "`{field}` is not in the list"
            );
        }
        let fields = Counts::default().fields().count();
        assert_eq!(
            COUNTERS.len() + 1,
            fields,
            "one in the list is no field any more"
        );
    }
}
