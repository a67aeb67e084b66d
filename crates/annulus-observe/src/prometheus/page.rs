//! The text formats: OpenMetrics, as prometheus-client writes it, and the older format.

use std::collections::BTreeMap;
use std::fmt;

use annulus::metrics::layout::GAUGES;
use annulus::metrics::{
    Histogram, OperationCounts, PreloadCounts, ReasonCounts, Snapshot, Source, Watch, watch,
};
use nix::errno::Errno;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::alert;
use crate::exported::{self, Totals};

/// Upper bounds of the buckets in ns: 1, 2.5 and 5 times each power of ten, from 1 µs to 10 s. The library's buckets
/// are finer; each is counted in the first of these that contains it.
const BUCKETS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let mut power = 1_000;
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = match at % 3 {
            0 => power,
            1 => power / 10 * 25,
            _ => power * 5,
        };
        if at % 3 == 2 {
            power *= 10;
        }
        at += 1;
    }
    bounds
};

/// Writes snapshots of this process as text. Latencies are recorded while an `Exposition` exists.
#[derive(Debug)]
pub struct Exposition {
    totals: Totals,
    _watching: Watch,
}

impl Default for Exposition {
    fn default() -> Exposition {
        Exposition::new()
    }
}

impl Exposition {
    /// The `Content-Type` of [`text`](Exposition::text).
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    /// The `Content-Type` of [`plain_text`](Exposition::plain_text).
    pub const PLAIN_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Returns an exposition and starts to record latencies.
    pub fn new() -> Exposition {
        Exposition {
            totals: Totals::default(),
            _watching: watch(),
        }
    }

    /// Returns a snapshot of this process, and the state of its [alerts](crate::alert::states), in the OpenMetrics
    /// format. The snapshot must be newer than the previous one.
    pub fn text(&mut self, now: &Snapshot) -> String {
        self.totals.advance(now);
        let alerts = alert::states().into_iter();
        let alerts = alerts.map(|state| (state.rule.to_string(), state.is_raised));
        encode(self.totals.kinds(), now, alerts.collect())
    }

    /// Returns the same in the older text format, for readers whose `Accept` header does not name OpenMetrics.
    pub fn plain_text(&mut self, now: &Snapshot) -> String {
        plain(&self.text(now))
    }
}

/// Returns the page of one process in the OpenMetrics format.
pub(super) fn encode(kinds: &[Source], now: &Snapshot, alerts: Vec<(String, bool)>) -> String {
    let page = Page {
        kinds: kinds.to_vec(),
        now: now.clone(),
        alerts,
    };
    let mut registry = Registry::with_prefix("annulus");
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    match text::encode(&mut text, &registry) {
        Ok(()) => text,
        Err(fmt::Error) => unreachable!("writing to a String does not fail"),
    }
}

/// Converts to the older format: the comments of a counter have its full name, and there are no units and no end mark.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        let counter = (line.strip_prefix("# TYPE ")).and_then(|line| line.strip_suffix(" counter"));
        match (counter, help.strip_prefix("# HELP ")) {
            _ if line.starts_with("# UNIT ") || line == "# EOF" => continue,
            _ if line.starts_with("# HELP ") => {
                // The type follows and decides the name.
                help = line;
                continue;
            }
            (Some(name), Some(rest)) => {
                let help = rest.strip_prefix(name).unwrap_or_default();
                plain += &format!("# HELP {name}_total{help}\n# TYPE {name}_total counter\n");
            }
            (_, Some(_)) => plain += &format!("{help}\n{line}\n"),
            (_, None) => plain += &format!("{line}\n"),
        }
        help = "";
    }
    plain
}

/// The contents of a page.
#[derive(Debug)]
struct Page {
    kinds: Vec<Source>,
    now: Snapshot,
    alerts: Vec<(String, bool)>,
}

/// A row of a counter or gauge: its labels and its value.
type Row<'a> = (Vec<(&'static str, &'a str)>, u64);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut encoder;
        self.operations(out)?;
        self.latencies(out)?;
        let fields = |source: &Source| source.counters.fields();
        for (field, _) in fields(&Source::default()) {
            let rows = self.kinds.iter().map(|source| {
                let found = fields(source).find(|(name, _)| *name == field);
                (of(source), found.map_or(0, |(_, value)| value))
            });
            match GAUGES.contains(&field) {
                true => gauges(out, exported::field(field), rows)?,
                false => counters(out, exported::field(field), rows)?,
            }
        }
        let count = |kind: &Source| {
            let sources = self.now.sources.iter();
            sources.filter(|source| source.kind == kind.kind).count() as u64
        };
        gauges(
            out,
            exported::SOURCES,
            self.kinds.iter().map(|kind| (of(kind), count(kind))),
        )?;
        let workers = (Vec::new(), self.now.kernel_workers);
        gauges(out, exported::KERNEL_WORKERS, [workers].into_iter())?;
        self.backends(out)?;
        self.preload(out)?;
        let alerts = self.alerts.iter();
        let alerts =
            alerts.map(|(rule, raised)| (vec![("rule", rule.as_str())], u64::from(*raised)));
        gauges(out, exported::ALERT, alerts)
    }
}

/// Returns the labels of a kind of source.
fn of(source: &Source) -> Vec<(&'static str, &'static str)> {
    vec![("source", source.kind.name())]
}

fn counters<'a>(
    out: &mut DescriptorEncoder<'_>,
    (name, help): (&'static str, &str),
    rows: impl Iterator<Item = Row<'a>>,
) -> fmt::Result {
    let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in rows {
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges<'a>(
    out: &mut DescriptorEncoder<'_>,
    (name, help): (&'static str, &str),
    rows: impl Iterator<Item = Row<'a>>,
) -> fmt::Result {
    let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in rows {
        // Exact up to 2^53.
        family
            .encode_family(&labels)?
            .encode_gauge(&(value as f64))?;
    }
    Ok(())
}

impl Page {
    fn operations(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let rows = |count: fn(&OperationCounts) -> u64| {
            self.kinds.iter().flat_map(move |source| {
                source.operations.iter().map(move |operation| {
                    let labels = vec![("op", operation.name), ("source", source.kind.name())];
                    (labels, count(operation))
                })
            })
        };
        counters(
            out,
            exported::OPERATIONS,
            rows(|operation| operation.completed),
        )?;
        counters(
            out,
            exported::OPERATION_FAILURES,
            rows(|operation| operation.failed),
        )?;
        let mut errors: BTreeMap<i32, u64> = BTreeMap::new();
        for error in self.kinds.iter().flat_map(|source| &source.errors) {
            *errors.entry(error.errno).or_default() += error.count;
        }
        let errors: Vec<(String, u64)> = errors
            .into_iter()
            .map(|(errno, count)| (name(errno), count))
            .collect();
        let rows = errors
            .iter()
            .map(|(name, count)| (vec![("errno", name.as_str())], *count));
        counters(out, exported::OPERATION_ERRORS, rows)
    }

    fn latencies(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut all = Source::default();
        for kind in &self.kinds {
            all.add(kind);
        }
        all.operations.sort_by_key(|operation| operation.name);
        histograms(out, exported::LATENCY, &all, |operation| &operation.latency)?;
        histograms(out, exported::QUEUE, &all, |operation| &operation.queue)?;
        histograms(out, exported::DEVICE, &all, |operation| &operation.device)
    }

    /// Writes nothing if the preload library is not in use.
    fn preload(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kinds = || {
            let has = |kind: &&Source| kind.preload != PreloadCounts::default();
            self.kinds.iter().filter(has)
        };
        if kinds().next().is_none() {
            return Ok(());
        }
        let rows = |reasons: fn(&PreloadCounts) -> &[ReasonCounts]| {
            kinds().flat_map(move |kind| {
                let of_kind = reasons(&kind.preload).iter();
                of_kind.map(|one| {
                    let labels = vec![("reason", one.reason), ("source", kind.kind.name())];
                    (labels, one.count)
                })
            })
        };
        counters(out, exported::PASSED, rows(|counts| &counts.passed))?;
        counters(
            out,
            exported::HANDED_BACK,
            rows(|counts| &counts.handed_back),
        )?;
        for (name, help, value) in exported::PRELOAD {
            let sum = kinds().map(|kind| value(&kind.preload)).sum();
            gauges(out, (name, help), [(Vec::new(), sum)].into_iter())?;
        }
        Ok(())
    }

    fn backends(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = exported::BACKEND;
        let mut family = out.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let mut known = Vec::new();
        for source in self
            .now
            .sources
            .iter()
            .filter(|source| !source.backend.is_empty())
        {
            let labels = [
                ("source", source.kind.name()),
                ("backend", source.backend.as_str()),
                ("fallback", source.fallback.as_deref().unwrap_or_default()),
            ];
            if !known.contains(&labels) {
                family.encode_family(&labels)?.encode_gauge(&1.0)?;
                known.push(labels);
            }
        }
        Ok(())
    }
}

/// Returns the name of an error, such as `EIO`, or its number if it has no name.
fn name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => errno.to_string(),
        known => format!("{known:?}"),
    }
}

/// Writes a histogram of each operation, for one part of the latency.
fn histograms(
    out: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    all: &Source,
    part: fn(&OperationCounts) -> &Histogram,
) -> fmt::Result {
    let unit = Unit::Seconds;
    let mut family = out.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for operation in &all.operations {
        let recorded = part(operation);
        if recorded.count() == 0 {
            continue;
        }
        family
            .encode_family(&[("op", operation.name)])?
            .encode_histogram::<NoLabelSet>(
                recorded.sum_ns() as f64 / 1e9,
                recorded.count(),
                &coarse(recorded),
                None,
            )?;
    }
    Ok(())
}

/// Returns the buckets of the text: upper bound in seconds, and count.
fn coarse(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut counts = [0; BUCKETS_NS.len() + 1];
    for bucket in histogram.buckets() {
        let (last, count) = (bucket.last_ns, bucket.count);
        counts[BUCKETS_NS.partition_point(|bound| *bound < last)] += count;
    }
    let bounds = BUCKETS_NS.iter().map(|ns| *ns as f64 / 1e9);
    bounds.chain([f64::INFINITY]).zip(counts).collect()
}

#[cfg(test)]
mod tests {
    use annulus::metrics::{ErrorCounts, SourceKind};

    use super::*;

    fn planted() -> Snapshot {
        let mut operation = OperationCounts::default();
        (operation.name, operation.completed, operation.failed) = ("read_at", 100, 3);
        for ns in [900, 1_000, 3_000, 2_000_000, 20_000_000_000] {
            operation.latency.record(ns);
        }
        let mut source = Source::default();
        (source.kind, source.owner) = (SourceKind::Driver, 1);
        source.backend = "io_uring (a \"mode\")".to_owned();
        source.fallback = Some("no \\ of:\nit".to_owned());
        (source.counters.enters, source.counters.in_flight) = (7, 5);
        source.operations.push(operation);
        for (errno, count) in [(5, 2), (4095, 1)] {
            let mut error = ErrorCounts::default();
            (error.errno, error.count) = (errno, count);
            source.errors.push(error);
        }
        let mut snapshot = Snapshot::default();
        snapshot.sources = vec![source];
        snapshot.kernel_workers = 2;
        snapshot
    }

    #[test]
    fn each_counter_is_on_the_page_with_its_labels() {
        let mut exposition = Exposition::new();
        let text = exposition.text(&planted());
        for line in [
            r#"annulus_operations_total{op="read_at",source="driver"} 100"#,
            r#"annulus_operation_failures_total{op="read_at",source="driver"} 3"#,
            r#"annulus_operation_errors_total{errno="EIO"} 2"#,
            r#"annulus_operation_errors_total{errno="4095"} 1"#,
            r#"annulus_enters_total{source="driver"} 7"#,
            r#"annulus_in_flight{source="driver"} 5.0"#,
            r#"annulus_sources{source="driver"} 1.0"#,
            r#"annulus_kernel_workers{} 2.0"#,
            r#"annulus_backend_info{source="driver",backend="io_uring (a \"mode\")",fallback="no \\ of:\nit"} 1.0"#,
            r#"annulus_operation_duration_seconds_count{op="read_at"} 5"#,
            // 1 µs is in a bucket of the library whose upper bound is above 1 µs.
            r#"annulus_operation_duration_seconds_bucket{le="0.000001",op="read_at"} 1"#,
            r#"annulus_operation_duration_seconds_bucket{le="0.0000025",op="read_at"} 2"#,
            r#"annulus_operation_duration_seconds_bucket{le="0.000005",op="read_at"} 3"#,
            r#"annulus_operation_duration_seconds_bucket{le="0.0025",op="read_at"} 4"#,
            r#"annulus_operation_duration_seconds_bucket{le="10.0",op="read_at"} 4"#,
            r#"annulus_operation_duration_seconds_bucket{le="+Inf",op="read_at"} 5"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn only_a_program_under_the_preload_library_has_its_metrics() {
        let text = Exposition::new().text(&planted());
        assert!(!text.contains("preload"), "{text}");
        let mut snapshot = planted();
        let source = &mut snapshot.sources[0];
        source.kind = SourceKind::Preload;
        source.preload.connections = 300;
        let mut reason = ReasonCounts::default();
        (reason.reason, reason.count) = ("port", 2);
        source.preload.passed.push(reason);
        let text = Exposition::new().text(&snapshot);
        for line in [
            r#"annulus_preload_passed_total{reason="port",source="preload"} 2"#,
            r#"annulus_preload_connections{} 300.0"#,
            r#"annulus_preload_rings{} 0.0"#,
            r#"annulus_operations_total{op="read_at",source="preload"} 100"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_older_format_has_the_same_values_and_full_counter_names() {
        let open = Exposition::new().text(&planted());
        let plain = Exposition::new().plain_text(&planted());
        // Other tests of this process may have alerts.
        let values = |text: &str| -> Vec<String> {
            let lines = text
                .lines()
                .filter(|line| !line.starts_with('#') && !line.contains("_alert"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(values(&open), values(&plain));
        assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"));
        assert!(plain.contains("# TYPE annulus_enters_total counter\n"));
        assert!(plain.contains("# HELP annulus_enters_total Calls of"));
        assert!(plain.contains("# TYPE annulus_in_flight gauge\n"));
        let count_helps = |text: &str| text.matches("# HELP").count();
        assert_eq!(count_helps(&open), count_helps(&plain));
    }

    #[test]
    fn bucket_bounds_rise_from_one_microsecond_to_ten_seconds() {
        assert_eq!(BUCKETS_NS[..4], [1_000, 2_500, 5_000, 10_000]);
        assert_eq!(BUCKETS_NS[21], 10_000_000_000);
        assert!(BUCKETS_NS.is_sorted());
    }
}
