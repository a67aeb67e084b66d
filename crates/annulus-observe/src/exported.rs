//! The metric names and descriptions that the exporters share, and totals that never decrease.

use annulus::metrics::{PreloadCounts, Snapshot, Source, SourceKind};

/// The description of a field that has no other one.
const NO_DESCRIPTION: &str = "A counter";

/// Returns the exported name and the description of a field of `Counts`. The name omits the prefix `annulus_`, and the
/// suffix `_total` of a counter.
pub(crate) fn field(field: &'static str) -> (&'static str, &'static str) {
    let description = match field {
        "submitted" => "Operations submitted to the kernel or to a blocking thread",
        "completed" => "Completions, including those with an error",
        "failed" => "Completions with an error, except cancelled and timed-out operations",
        "enters" => "Calls of io_uring_enter, or of epoll_wait",
        "waits" => "Calls of io_uring_enter or epoll_wait that may block",
        "entries" => "Submission queue entries that the kernel has consumed",
        "wakeups" => "System calls of other threads to wake a driver or a core",
        "sq_wakeups" => "Wake-ups of the kernel thread of SQPOLL",
        "cancels" => "Cancellations requested from the kernel",
        "cancelled" => "Operations that completed as cancelled",
        "timeouts" => "Operations whose timeout expired",
        "short" => "Transfers shorter than requested, except at the end of a file",
        "resubmitted" => "Resubmissions of the rest of a short transfer",
        "no_buffers" => "Receives that failed because no buffer was free (ENOBUFS)",
        "cq_overflows" => "Overflows of the completion queue",
        "fixed" => "Operations that used registered memory",
        "leaked" => "Operations abandoned after the drain timeout, with their memory leaked",
        "close_timeouts" => {
            "Connections of dropped streams that were reset because the peer accepted no data within the close timeout"
        }
        "panics" => {
            "Panics of wakers, buffers and other code of the program that the library caught"
        }
        "pool_hits" => "Pages of a page pool that were in memory",
        "pool_misses" => "Pages of a page pool that were not in memory",
        "pool_evictions" => "Pages that a page pool removed to make space",
        "pool_waits" => "Loads of a page pool that waited for a frame",
        "in_flight" => "Operations currently in the kernel or on a blocking thread",
        "pool_held" => "Frames of a page pool that guards hold though their pages are gone",
        _ => NO_DESCRIPTION,
    };
    match field {
        "short" => ("short_transfers", description),
        name => (name, description),
    }
}

/// The names of the other metrics, without prefix and suffix, and their descriptions.
pub(crate) const OPERATIONS: (&str, &str) =
    ("operations", "Completions, including those with an error");
pub(crate) const OPERATION_FAILURES: (&str, &str) = (
    "operation_failures",
    "Completions with an error, except requested cancels",
);
#[cfg(feature = "prometheus")]
pub(crate) const OPERATION_ERRORS: (&str, &str) =
    ("operation_errors", "Completions with an error, by errno");
pub(crate) const LATENCY: (&str, &str) = (
    "operation_duration",
    "Time from submission to completion, of a sample of the operations",
);
pub(crate) const QUEUE: (&str, &str) = (
    "operation_queue",
    "Time from submission until the kernel or a blocking thread received the operation",
);
pub(crate) const DEVICE: (&str, &str) = (
    "operation_device",
    "Time in the kernel and the device, or in the blocking call",
);
#[cfg(feature = "prometheus")]
pub(crate) const SOURCES: (&str, &str) = (
    "sources",
    "Current number of drivers, cores and other sources of counts",
);
pub(crate) const KERNEL_WORKERS: (&str, &str) = (
    "kernel_workers",
    "Threads that the kernel has created for the rings of this process",
);
pub(crate) const BACKEND: (&str, &str) = (
    "backend_info",
    "The backend in use, and the reason for a fallback",
);
#[cfg(feature = "prometheus")]
pub(crate) const PROCESSES: (&str, &str) = (
    "processes",
    "Processes of this machine that share their metrics, and those that cannot be read",
);
pub(crate) const ALERT: (&str, &str) = ("alert", "1 while the alert is raised");

pub(crate) const PASSED: (&str, &str) = (
    "preload_passed",
    "Calls that the preload library passed to the kernel",
);
pub(crate) const HANDED_BACK: (&str, &str) = (
    "preload_handbacks",
    "Descriptors that the preload library handed back to the kernel",
);
/// Name, description and value of a gauge of the preload library.
type PreloadGauge = (&'static str, &'static str, fn(&PreloadCounts) -> u64);
pub(crate) const PRELOAD: [PreloadGauge; 4] = [
    (
        "preload_rings",
        "Current number of rings of the preload library",
        |counts| counts.rings,
    ),
    (
        "preload_connections",
        "Connections that these rings currently serve",
        |counts| counts.connections,
    ),
    (
        "preload_buffers",
        "Receive buffers of these rings",
        |counts| counts.buffers,
    ),
    (
        "preload_buffers_free",
        "Receive buffers that are free",
        |counts| counts.buffers_free,
    ),
];

/// The counts of each kind of source, including sources that have ended.
///
/// In a snapshot, the counts of a driver move to the source `ended` when the driver ends. A series per kind would then
/// decrease, and a reader would take that for a restart and count twice.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    before: Option<Snapshot>,
    kinds: Vec<Source>,
}

impl Totals {
    /// Adds the counts since the last snapshot, and returns them.
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
            kind.counters.pool_held = sum(|source| source.counters.pool_held);
            kind.preload.rings = sum(|source| source.preload.rings);
            kind.preload.connections = sum(|source| source.preload.connections);
            kind.preload.buffers = sum(|source| source.preload.buffers);
            kind.preload.buffers_free = sum(|source| source.preload.buffers_free);
        }
        self.before = Some(now.clone());
        between
    }

    fn of(&mut self, kind: SourceKind) -> &mut Source {
        let position = self.kinds.iter().position(|known| known.kind == kind);
        let at = position.unwrap_or_else(|| {
            let mut source = Source::default();
            source.kind = kind;
            self.kinds.push(source);
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }

    /// Returns one source for each kind that has appeared.
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
    fn the_counts_of_a_driver_that_ends_are_kept_and_not_counted_twice() {
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
    fn preload_gauges_are_current_values_and_preload_reasons_are_totals() {
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
    fn each_count_has_a_description() {
        for (name, _) in Counts::default().fields() {
            assert_ne!(field(name).1, NO_DESCRIPTION, "`{name}`");
        }
    }
}
