//! What happened between two snapshots, as rates: what is shown, and the JSON. Its schema is made from these
//! structs and kept in `schema/top.json`.

use std::collections::BTreeMap;

use annulus::metrics::{Counts, ErrorCounts, Histogram, OperationCounts, Snapshot, Source};
use nix::errno::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use super::notes::notes;
use super::preload::PreloadReport;
use super::units::harmless;

/// Changed whenever a reader of older lines would misread a newer one.
pub(super) const VERSION: u32 = 1;

/// One interval of `annulus top`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// The version of this format.
    pub(super) version: u32,
    /// The version of the command that wrote it.
    pub(super) annulus: String,
    pub(super) process: ProcessFacts,
    /// The end of the interval, in ns of the monotonic clock.
    pub(super) at_ns: u64,
    /// Between the two looks.
    pub(super) interval_seconds: f64,
    /// Threads that the kernel has made for the rings of the process (`iou-wrk-…`), right now.
    pub(super) kernel_workers: u64,
    /// Who counts: rings, cores, blocking threads, and one for all that have ended.
    pub(super) sources: Vec<SourceReport>,
    /// All sources together.
    pub(super) total: Done,
    /// The rules of `--alert`.
    pub(super) alerts: Vec<AlertReport>,
    /// What is worth a second look, in sentences.
    pub(super) notes: Vec<String>,
}

/// A threshold.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct AlertReport {
    pub(super) rule: String,
    /// Whether it has been crossed, for as long as the rule says.
    pub(super) raised: bool,
    /// What was measured, where this interval raised or cleared it.
    pub(super) measured: Option<String>,
}

/// Which process it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ProcessFacts {
    pub(super) pid: u32,
    /// Its command line; control characters are replaced by question marks.
    pub(super) command: String,
    pub(super) uptime_seconds: Option<f64>,
}

/// One thing that counts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct SourceReport {
    /// `driver`, `own_ring`, `threads`, `fast_path`, `core`, `core_files`, `preload`, `passed`, `ended`; there may be
    /// more in newer versions.
    pub(super) kind: String,
    /// Which engine or runtime of the process it belongs to, from 1.
    pub(super) owner: u64,
    /// Which of its owner's, from 0.
    pub(super) index: u32,
    /// What does the work.
    pub(super) backend: String,
    /// Why it is not what would be best, if it is not.
    pub(super) fallback: Option<String>,
    #[serde(flatten)]
    pub(super) done: Done,
}

/// What was done.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Done {
    /// Operations with the kernel or a blocking thread, at the end of the interval.
    pub(super) in_flight: u64,
    /// Entries that one enter gave to the kernel, within the interval.
    pub(super) entries_per_enter: Option<f64>,
    /// Each counter's growth within the interval, per second.
    pub(super) per_second: BTreeMap<String, f64>,
    /// Each counter since the process began.
    pub(super) since_start: BTreeMap<String, u64>,
    /// By operation, those that were ever asked for.
    pub(super) operations: Vec<OperationReport>,
    /// By errno, most frequent first.
    pub(super) errors: Vec<ErrorReport>,
    /// What the preload library did; null where there is none.
    pub(super) preload: Option<PreloadReport>,
}

/// One operation.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct OperationReport {
    pub(super) name: String,
    /// Answers since the process began.
    pub(super) completed: u64,
    /// Of these, errors.
    pub(super) failed: u64,
    /// Answers within the interval, per second.
    pub(super) completed_per_second: f64,
    /// Of these, errors.
    pub(super) failed_per_second: f64,
    /// From submission to completion, within the interval, of a sample; null where nothing was recorded.
    pub(super) latency: Option<Latency>,
    /// The first part of it: until the kernel, or a blocking thread, had it.
    pub(super) queue: Option<Latency>,
    /// The second part: in the kernel and the device, or in the blocking call.
    pub(super) device: Option<Latency>,
}

/// How long it took, in ns; each to a sixteenth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Latency {
    /// Of how many operations.
    pub(super) samples: u64,
    pub(super) mean_ns: f64,
    pub(super) p50_ns: u64,
    pub(super) p90_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p999_ns: u64,
    pub(super) max_ns: u64,
}

/// How often an error was the answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ErrorReport {
    pub(super) errno: i32,
    /// `EIO`; null for one without a name.
    pub(super) name: Option<String>,
    /// Since the process began.
    pub(super) since_start: u64,
    /// Within the interval.
    pub(super) per_second: f64,
}

impl Report {
    pub(super) fn between(process: ProcessFacts, earlier: &Snapshot, now: &Snapshot) -> Report {
        // Two looks within a nanosecond are a clock that stands still; rates are finite all the same.
        let seconds = now.at_ns.saturating_sub(earlier.at_ns).max(1) as f64 / 1e9;
        let between = now.since(earlier);
        let sources = between.sources.iter().zip(&now.sources);
        let sources = sources.map(|(between, now)| SourceReport::new(between, now, seconds));
        let mut report = Report {
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
        };
        report.notes = notes(&report);
        report
    }
}

impl SourceReport {
    fn new(between: &Source, now: &Source, seconds: f64) -> SourceReport {
        SourceReport {
            kind: now.kind.name().to_owned(),
            owner: now.owner,
            index: now.index,
            backend: harmless(&now.backend),
            fallback: now.fallback.as_deref().map(harmless),
            done: Done::new(between, now, seconds),
        }
    }

    /// `core 1.0`: the owner and which of its.
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

    /// Growth of the counter of that name, per second; 0 for one that the process does not have.
    pub(super) fn rate(&self, name: &str) -> f64 {
        self.per_second.get(name).copied().unwrap_or(0.0)
    }

    pub(super) fn since_start(&self, name: &str) -> u64 {
        self.since_start.get(name).copied().unwrap_or(0)
    }
}

/// The counters that only grow.
fn counted(counts: &Counts) -> impl Iterator<Item = (String, u64)> + use<> {
    counts
        .fields()
        .filter(|(name, _)| *name != "in_flight")
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
