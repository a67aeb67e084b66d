//! The text itself: OpenMetrics, as prometheus-client writes it.

use std::collections::BTreeMap;
use std::fmt;

use annulus::metrics::{Histogram, OperationCounts, Snapshot, Source, Watch, alert, watch};
use nix::errno::Errno;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::exported::{self, Totals};

/// Upper ends of the buckets, ns: 1, 2.5 and 5 of each power of ten, from a microsecond to ten seconds. Ours are finer;
/// each is counted in the first of these that holds all of it.
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

/// Writes snapshots of this process as text. While one lives, latencies are recorded.
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
    /// What the header `Content-Type` must say.
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Nothing has been written yet.
    pub fn new() -> Exposition {
        Exposition {
            totals: Totals::default(),
            _watching: watch(),
        }
    }

    /// The text of a snapshot of this process, newer than the one before, with the state of its
    /// [alerts](annulus::metrics::alert::states).
    pub fn text(&mut self, now: &Snapshot) -> String {
        self.totals.advance(now);
        let page = Page {
            kinds: self.totals.kinds().to_vec(),
            now: now.clone(),
            alerts: (alert::states().into_iter())
                .map(|(rule, raised)| (rule.to_string(), raised))
                .collect(),
        };
        let mut registry = Registry::with_prefix("annulus");
        registry.register_collector(Box::new(page));
        let mut text = String::new();
        match text::encode(&mut text, &registry) {
            Ok(()) => text,
            Err(fmt::Error) => unreachable!("a String takes whatever is written to it"),
        }
    }
}

/// All that is on one page.
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
        for (field, _) in fields(&Source::default()).filter(|(field, _)| *field != "in_flight") {
            let rows = self.kinds.iter().map(|source| {
                let found = fields(source).find(|(name, _)| *name == field);
                (of(source), found.map_or(0, |(_, value)| value))
            });
            counters(out, exported::counter(field), rows)?;
        }
        let in_flight = self
            .kinds
            .iter()
            .map(|kind| (of(kind), kind.counters.in_flight));
        gauges(out, exported::IN_FLIGHT, in_flight)?;
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
        let alerts = self.alerts.iter();
        let alerts =
            alerts.map(|(rule, raised)| (vec![("rule", rule.as_str())], u64::from(*raised)));
        gauges(out, exported::ALERT, alerts)
    }
}

/// The labels of a kind of source.
fn of(source: &Source) -> Vec<(&'static str, &'static str)> {
    vec![("source", source.kind.name())]
}

fn counters<'a>(
    out: &mut DescriptorEncoder<'_>,
    (name, means): (&'static str, &str),
    rows: impl Iterator<Item = Row<'a>>,
) -> fmt::Result {
    let mut family = out.encode_descriptor(name, means, None, MetricType::Counter)?;
    for (labels, value) in rows {
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges<'a>(
    out: &mut DescriptorEncoder<'_>,
    (name, means): (&'static str, &str),
    rows: impl Iterator<Item = Row<'a>>,
) -> fmt::Result {
    let mut family = out.encode_descriptor(name, means, None, MetricType::Gauge)?;
    for (labels, value) in rows {
        // Whole numbers up to 2^53; more is never in flight.
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
        let parts: [(_, fn(&OperationCounts) -> &Histogram); 3] = [
            (exported::LATENCY, |operation| &operation.latency),
            (exported::QUEUE, |operation| &operation.queue),
            (exported::DEVICE, |operation| &operation.device),
        ];
        for ((name, means), part) in parts {
            let unit = Unit::Seconds;
            let mut family =
                out.encode_descriptor(name, means, Some(&unit), MetricType::Histogram)?;
            for operation in all.operations.iter().filter(|one| part(one).count() > 0) {
                let recorded = part(operation);
                family
                    .encode_family(&[("op", operation.name)])?
                    .encode_histogram::<NoLabelSet>(
                        recorded.sum_ns() as f64 / 1e9,
                        recorded.count(),
                        &coarse(recorded),
                        None,
                    )?;
            }
        }
        Ok(())
    }

    fn backends(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, means) = exported::BACKEND;
        let mut family = out.encode_descriptor(name, means, None, MetricType::Info)?;
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
                family.encode_info(&labels)?;
                known.push(labels);
            }
        }
        Ok(())
    }
}

/// `EIO`; a number that has no name, as the number.
fn name(errno: i32) -> String {
    match Errno::from_raw(errno) {
        Errno::UnknownErrno => errno.to_string(),
        known => format!("{known:?}"),
    }
}

/// In the buckets of the text: seconds, and how many lie in each.
fn coarse(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut counts = [0; BUCKETS_NS.len() + 1];
    for (_, last, count) in histogram.buckets() {
        counts[BUCKETS_NS.partition_point(|bound| *bound < last)] += count;
    }
    let bounds = BUCKETS_NS.iter().map(|ns| *ns as f64 / 1e9);
    bounds.chain([f64::INFINITY]).zip(counts).collect()
}
