//! The report of an interval between two snapshots, and its JSON. The schema in `schema/top.json` is generated from
//! these structs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use annulus::metrics::layout::GAUGES;
use annulus::metrics::{
    Counts, ErrorCounts, Histogram, OperationCounts, PreloadCounts, ReasonCounts, Snapshot, Source,
};
use nix::errno::Errno;
use serde::Serialize;

use super::units::without_escapes;

/// The version of the format. It changes if a reader of older lines would misread a newer one.
pub(super) const VERSION: u32 = 1;

/// One interval of `annulus top`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The version of this format.
    pub(super) version: u32,
    /// The version of the command that wrote it.
    pub(super) annulus: String,
    pub(super) process: ProcessFacts,
    /// The end of the interval, in ns of the monotonic clock.
    pub(super) at_ns: u64,
    /// The length of the interval.
    pub(super) interval_seconds: f64,
    /// The number of kernel threads for the rings of the process (`iou-wrk-…`).
    pub(super) kernel_workers: u64,
    /// The sources of the counters: rings, cores, blocking threads, and one for all that have ended.
    pub(super) sources: Vec<SourceReport>,
    /// The total of all sources.
    pub(super) total: Done,
    /// The rules of `--alert`.
    pub(super) alerts: Vec<AlertReport>,
    /// Hints about problems.
    pub(super) notes: Vec<String>,
}

/// The state of an alert.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct AlertReport {
    pub(super) rule: String,
    /// `true` if the threshold has been crossed for the time of the rule.
    pub(super) raised: bool,
    /// The measured value, if this interval raised or cleared the alert.
    pub(super) measured: Option<String>,
}

/// The observed process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessFacts {
    pub(super) pid: u32,
    /// The command line, with question marks instead of control characters.
    pub(super) command: String,
    pub(super) uptime_seconds: Option<f64>,
}

/// A source of counters.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SourceReport {
    /// `driver`, `own_ring`, `threads`, `fast_path`, `core`, `core_files`, `preload`, `passed` or `ended`. Newer
    /// versions may have others.
    pub(super) kind: String,
    /// The number of the engine or runtime that owns the source, from 1.
    pub(super) owner: u64,
    /// The number of the source in its owner, from 0.
    pub(super) index: u32,
    /// The backend.
    pub(super) backend: String,
    /// The reason why a fallback is used, if one is.
    pub(super) fallback: Option<String>,
    #[serde(flatten)]
    pub(super) done: Done,
}

/// The activity of a source.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Done {
    /// The operations in the kernel or on a blocking thread, at the end of the interval.
    pub(super) in_flight: u64,
    /// Frames of page pools that guards hold though their pages are gone.
    pool_held: u64,
    /// The average number of entries that an enter submitted within the interval.
    pub(super) entries_per_enter: Option<f64>,
    /// The growth of each counter within the interval, per second.
    pub(super) per_second: BTreeMap<String, f64>,
    /// Each counter since the start of the process.
    pub(super) since_start: BTreeMap<String, u64>,
    /// The operations that were ever requested.
    pub(super) operations: Vec<OperationReport>,
    /// The errors by errno, the most frequent first.
    pub(super) errors: Vec<ErrorReport>,
    /// The counters of the preload library; null without it.
    pub(super) preload: Option<PreloadReport>,
}

/// The figures of an operation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OperationReport {
    pub(super) name: String,
    /// Completions since the start of the process, including errors.
    pub(super) completed: u64,
    /// Errors since the start of the process.
    pub(super) failed: u64,
    /// Completions within the interval, per second, including errors.
    pub(super) completed_per_second: f64,
    /// Errors within the interval, per second.
    pub(super) failed_per_second: f64,
    /// The latency from submission to completion within the interval, of a sample. Null without records.
    pub(super) latency: Option<Latency>,
    /// The first part of the latency: until the kernel or a blocking thread takes the operation.
    pub(super) queue: Option<Latency>,
    /// The second part of the latency: in the kernel and the device, or in the blocking call.
    pub(super) device: Option<Latency>,
}

/// Latencies, in ns, each accurate to a sixteenth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Latency {
    /// The number of sampled operations.
    pub(super) samples: u64,
    pub(super) mean_ns: f64,
    pub(super) p50_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p999_ns: u64,
    pub(super) max_ns: u64,
}

/// The count of an error.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ErrorReport {
    pub(super) errno: i32,
    /// The name, such as `EIO`; null for an unknown errno.
    pub(super) name: Option<String>,
    /// The count since the start of the process.
    pub(super) since_start: u64,
    /// The growth within the interval, per second.
    pub(super) per_second: f64,
}

/// The state of an unmodified program under the preload library.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PreloadReport {
    /// The number of serving rings.
    pub(super) rings: u64,
    /// The number of served connections.
    pub(super) connections: u64,
    /// The number of receive buffers.
    pub(super) buffers: u64,
    /// The number of free receive buffers.
    pub(super) buffers_free: u64,
    /// Calls that were passed to the kernel, the most frequent reason first.
    pub(super) passed: Vec<ReasonReport>,
    /// Descriptors that were served and then handed back to the kernel, the most frequent reason first.
    pub(super) handed_back: Vec<ReasonReport>,
    /// Listeners whose connections are left to the kernel, the most frequent reason first.
    pub(super) listeners_left: Vec<ReasonReport>,
}

/// The count of a reason.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ReasonReport {
    /// The name of the reason in docs/reference/preload.md.
    pub(super) reason: String,
    /// The count since the start of the process.
    pub(super) since_start: u64,
    /// The growth within the interval, per second.
    pub(super) per_second: f64,
}

impl PreloadReport {
    /// Returns the report; `None` without the preload library.
    pub(super) fn new(
        between: &PreloadCounts,
        now: &PreloadCounts,
        seconds: f64,
    ) -> Option<PreloadReport> {
        (*now != PreloadCounts::default()).then(|| PreloadReport {
            rings: now.rings,
            connections: now.connections,
            buffers: now.buffers,
            buffers_free: now.buffers_free,
            passed: reasons(&between.passed, &now.passed, seconds),
            handed_back: reasons(&between.handed_back, &now.handed_back, seconds),
            listeners_left: reasons(&between.listeners_left, &now.listeners_left, seconds),
        })
    }
}

fn reasons(between: &[ReasonCounts], now: &[ReasonCounts], seconds: f64) -> Vec<ReasonReport> {
    let report = |now: &ReasonCounts| {
        let grown = between.iter().find(|grown| grown.reason == now.reason);
        ReasonReport {
            reason: now.reason.to_owned(),
            since_start: now.count,
            per_second: grown.map_or(0.0, |grown| grown.count as f64 / seconds),
        }
    };
    let mut reports: Vec<ReasonReport> = now.iter().map(report).collect();
    reports.sort_by_key(|report| Reverse(report.since_start));
    reports
}

impl Report {
    pub(super) fn between(process: ProcessFacts, earlier: &Snapshot, now: &Snapshot) -> Report {
        // Rates stay finite if the clock does not advance between the snapshots.
        let seconds = now.at_ns.saturating_sub(earlier.at_ns).max(1) as f64 / 1e9;
        let between = now.since(earlier);
        let sources = between.sources.iter().zip(&now.sources);
        let sources = sources.map(|(between, now)| SourceReport::new(between, now, seconds));
        Report {
            version: VERSION,
            annulus: env!("CARGO_PKG_VERSION").to_owned(),
            process,
            at_ns: now.at_ns,
            interval_seconds: seconds,
            kernel_workers: now.kernel_workers,
            sources: sources.collect(),
            total: Done::new(&between.total(), &now.total(), seconds),
            alerts: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl SourceReport {
    fn new(between: &Source, now: &Source, seconds: f64) -> SourceReport {
        SourceReport {
            kind: now.kind.name().to_owned(),
            owner: now.owner,
            index: now.index,
            backend: without_escapes(&now.backend),
            fallback: now.fallback.as_deref().map(without_escapes),
            done: Done::new(between, now, seconds),
        }
    }

    /// Returns the name, such as `core 1.0`: the kind, the owner and the index.
    pub(super) fn name(&self) -> String {
        let kind = self.kind.replace('_', " ");
        match self.owner {
            0 => kind,
            owner => format!("{kind} {owner}.{}", self.index),
        }
    }
}

impl Done {
    fn new(between: &Source, now: &Source, seconds: f64) -> Done {
        let operation = |between: &OperationCounts| {
            let since_start = now.operation(between.name).unwrap_or(between);
            OperationReport::new(between, since_start, seconds)
        };
        let error = |now: &ErrorCounts| {
            let between = between.errors.iter().find(|error| error.errno == now.errno);
            ErrorReport {
                errno: now.errno,
                name: errno_name(now.errno),
                since_start: now.count,
                per_second: between.map_or(0.0, |error| error.count as f64 / seconds),
            }
        };
        let grown = counted(&between.counters);
        let enters = between.counters.enters;
        Done {
            in_flight: now.counters.in_flight,
            pool_held: now.counters.pool_held,
            entries_per_enter: (enters > 0)
                .then(|| between.counters.entries as f64 / enters as f64),
            per_second: grown
                .map(|(name, count)| (name, count as f64 / seconds))
                .collect(),
            since_start: counted(&now.counters).collect(),
            operations: between.operations.iter().map(operation).collect(),
            errors: now.errors.iter().map(error).collect(),
            preload: PreloadReport::new(&between.preload, &now.preload, seconds),
        }
    }

    /// Returns the growth of a counter per second; 0 if the process does not have it.
    pub(super) fn rate(&self, name: &str) -> f64 {
        self.per_second.get(name).copied().unwrap_or(0.0)
    }

    pub(super) fn since_start(&self, name: &str) -> u64 {
        self.since_start.get(name).copied().unwrap_or(0)
    }
}

/// Returns the counters that only grow.
fn counted(counts: &Counts) -> impl Iterator<Item = (String, u64)> + use<> {
    counts
        .fields()
        .filter(|(name, _)| !GAUGES.contains(name))
        .map(|(name, count)| (name.to_owned(), count))
}

impl OperationReport {
    fn new(between: &OperationCounts, now: &OperationCounts, seconds: f64) -> OperationReport {
        OperationReport {
            name: between.name.to_owned(),
            completed: now.completed,
            failed: now.failed,
            completed_per_second: between.completed as f64 / seconds,
            failed_per_second: between.failed as f64 / seconds,
            latency: Latency::of(&between.latency),
            queue: Latency::of(&between.queue),
            device: Latency::of(&between.device),
        }
    }
}

impl Latency {
    fn of(histogram: &Histogram) -> Option<Latency> {
        let at = |quantile| histogram.quantile(quantile);
        Some(Latency {
            samples: histogram.count(),
            mean_ns: histogram.mean_ns(),
            p50_ns: at(0.5)?,
            p90_ns: at(0.9)?,
            p99_ns: at(0.99)?,
            p999_ns: at(0.999)?,
            max_ns: histogram.max_ns(),
        })
    }
}

fn errno_name(errno: i32) -> Option<String> {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => None,
        known => Some(format!("{known:?}")),
    }
}

impl ErrorReport {
    pub(super) fn label(&self) -> String {
        let number = || format!("errno {}", self.errno);
        self.name.clone().unwrap_or_else(number)
    }
}
