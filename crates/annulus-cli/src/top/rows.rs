//! The report as tables, with a row for each source and each operation, and as lines.

use std::cmp::Reverse;

use super::grid::{Align, Column, Grid, Piece, Tone};
use super::heat::History;
use super::report::{Done, OperationReport, Report, SourceReport};
use super::units::{count, duration, uptime, whole};

/// The order of the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Rate,
    P99,
    Max,
    Errors,
    Name,
}

impl Sort {
    pub(super) fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::P99,
            Sort::P99 => Sort::Max,
            Sort::Max => Sort::Errors,
            Sort::Errors => Sort::Name,
            Sort::Name => Sort::Rate,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Rate => "ops/s",
            Sort::P99 => "p99",
            Sort::Max => "max",
            Sort::Errors => "err/s",
            Sort::Name => "name",
        }
    }
}

/// The mark of counters that grew within the interval. It makes them recognisable without colour.
const GREW: char = '+';

/// Returns the process, its uptime and its command.
pub(super) fn process(report: &Report) -> String {
    let facts = &report.process;
    let up = facts
        .uptime_seconds
        .map_or_else(String::new, |seconds| format!("  up {}", uptime(seconds)));
    format!("{}{up}  {}", facts.pid, facts.command)
}

/// Returns the backends, with the reason for a fallback. Equal lines are printed once.
pub(super) fn backends(report: &Report) -> Vec<Piece> {
    let mut lines: Vec<Piece> = Vec::new();
    for source in &report.sources {
        let line = match &source.fallback {
            _ if source.backend.is_empty() => continue,
            None => (source.backend.clone(), Tone::Plain),
            Some(reason) => {
                let text = format!("{}, a fallback: {reason}", source.backend);
                (text, Tone::Attention)
            }
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns the total of all sources, on one line.
pub(super) fn summary(report: &Report) -> String {
    let total = &report.total;
    format!(
        "{} ops/s  {} errors/s  {} in flight  {} entries/enter  {} kernel workers",
        count(total.rate("completed")),
        count(total.rate("failed")),
        total.in_flight,
        ratio(total.entries_per_enter),
        report.kernel_workers,
    )
}

/// Counters that are shown as rates: heading, name and rank.
const RATES: [(&str, &str, u8); 4] = [
    ("enters/s", "enters", 3),
    ("waits/s", "waits", 6),
    ("wakes/s", "wakeups", 5),
    ("sqwk/s", "sq_wakeups", 9),
];

/// Counters of exceptional events: heading, name and rank.
const EXCEPTIONAL: [(&str, &str, u8); 5] = [
    ("ENOBUFS", "no_buffers", 4),
    ("CQovf", "cq_overflows", 4),
    ("short", "short", 7),
    ("cancels", "cancels", 8),
    ("timeouts", "timeouts", 10),
];

/// Returns a row for each source that was ever active, and one for the total.
pub(super) fn sources(report: &Report) -> Grid {
    let right = |heading, rank| column(heading, Align::Right, rank);
    let mut columns = vec![
        column("SOURCE", Align::Left, 0),
        right("ops/s", 1),
        right("flight", 2),
        right("ent/enter", 3),
    ];
    columns.extend(RATES.map(|(heading, _, rank)| right(heading, rank)));
    columns.extend(EXCEPTIONAL.map(|(heading, _, rank)| right(heading, rank)));
    let mut rows: Vec<Vec<Piece>> = Vec::new();
    let busy: Vec<&SourceReport> = report.sources.iter().filter(|at| was_active(at)).collect();
    if busy.len() != 1 {
        rows.push(source_row("all", &report.total));
    }
    rows.extend(busy.iter().map(|at| source_row(&at.name(), &at.done)));
    Grid { columns, rows }
}

/// Returns whether a source was ever active. A program may never use some parts of an engine.
fn was_active(source: &SourceReport) -> bool {
    let done = &source.done;
    done.in_flight > 0 || done.since_start.values().any(|count| *count > 0)
}

fn source_row(name: &str, done: &Done) -> Vec<Piece> {
    let mut row = vec![
        plain(name),
        plain(count(done.rate("completed"))),
        plain(whole(done.in_flight)),
        plain(ratio(done.entries_per_enter)),
    ];
    row.extend(RATES.map(|(_, name, _)| plain(count(done.rate(name)))));
    row.extend(EXCEPTIONAL.map(|(_, name, _)| total(done.since_start(name), done.rate(name))));
    row
}

/// Returns a row for each operation. With a history, the rows have a strip of latencies over time.
pub(super) fn operations(report: &Report, sort: Sort, history: Option<&History>) -> Grid {
    let right = |heading, rank| column(heading, Align::Right, rank);
    let mut columns = vec![
        column("OPERATION", Align::Left, 0),
        right("ops/s", 1),
        right("err/s", 4),
        right("p50", 3),
        right("p99", 2),
        right("max", 3),
        right("q p99", 6),
        right("dev p99", 6),
    ];
    if history.is_some() {
        columns.push(column("p99 OVER TIME", Align::Rest, 5));
    }
    let mut shown: Vec<&OperationReport> = report.total.operations.iter().collect();
    sort_by(&mut shown, sort);
    let row = |operation: &&OperationReport| {
        let mut row = operation_row(operation);
        if let Some(history) = history {
            row.push((history.strip(&operation.name), Tone::Strip));
        }
        row
    };
    let rows = shown.iter().map(row).collect();
    Grid { columns, rows }
}

fn sort_by(operations: &mut [&OperationReport], sort: Sort) {
    let latency = |operation: &OperationReport| operation.latency;
    // Equal operations are sorted by name.
    operations.sort_by(|one, other| one.name.cmp(&other.name));
    match sort {
        Sort::Name => {}
        Sort::Rate => operations.sort_by_key(|op| Reverse(magnitude(op.completed_per_second))),
        Sort::Errors => operations.sort_by_key(|op| Reverse(magnitude(op.failed_per_second))),
        Sort::P99 => operations.sort_by_key(|op| Reverse(latency(op).map(|l| l.p99_ns))),
        Sort::Max => operations.sort_by_key(|op| Reverse(latency(op).map(|l| l.max_ns))),
    }
}

/// Rounds a rate so that rates within about a quarter are equal. Otherwise rows with similar rates, such as `recv` and
/// `send`, would change order in every interval.
fn magnitude(rate: f64) -> Option<i32> {
    (rate > 0.0).then(|| rate.log(1.25).round() as i32)
}

fn operation_row(operation: &OperationReport) -> Vec<Piece> {
    let time = |ns: Option<u64>| plain(ns.map_or_else(|| "-".to_owned(), duration));
    let latency = operation.latency;
    let errors = match count(operation.failed_per_second) {
        none if operation.failed_per_second == 0.0 => plain(none),
        some => (some, Tone::Attention),
    };
    vec![
        plain(operation.name.as_str()),
        plain(count(operation.completed_per_second)),
        errors,
        time(latency.map(|latency| latency.p50_ns)),
        time(latency.map(|latency| latency.p99_ns)),
        time(latency.map(|latency| latency.max_ns)),
        time(operation.queue.map(|queue| queue.p99_ns)),
        time(operation.device.map(|device| device.p99_ns)),
    ]
}

/// Returns the errors since the start of the process, such as `EIO 7+  ENOENT 3`. The mark shows growth.
pub(super) fn errors(report: &Report) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for error in &report.total.errors {
        if !pieces.is_empty() {
            pieces.push(plain("  "));
        }
        let (text, tone) = total(error.since_start, error.per_second);
        pieces.push((format!("{} {text}", error.label()), tone));
    }
    pieces
}

/// Returns a line for each rule, raised alerts first.
pub(super) fn alerts(report: &Report) -> Vec<Piece> {
    let mut lines: Vec<Piece> = Vec::new();
    for raised in [true, false] {
        for alert in report.alerts.iter().filter(|alert| alert.raised == raised) {
            let measured = alert.measured.as_deref();
            let measured = measured.map_or_else(String::new, |value| format!(" ({value})"));
            lines.push(match raised {
                true => {
                    let text = format!("ALERT {}{measured}", alert.rule);
                    (text, Tone::Attention)
                }
                false => plain(format!("quiet {}{measured}", alert.rule)),
            });
        }
    }
    lines
}

/// Returns the rates of the page pools, if there are any.
pub(super) fn pool(report: &Report) -> Option<String> {
    let total = &report.total;
    let is_used = total.since_start("pool_hits") + total.since_start("pool_misses") > 0;
    let rate = |name| format!("{}/s", count(total.rate(name)));
    is_used.then(|| {
        format!(
            "page pools: {} hits, {} misses, {} evictions, {} waits for a frame",
            rate("pool_hits"),
            rate("pool_misses"),
            rate("pool_evictions"),
            rate("pool_waits")
        )
    })
}

pub(super) fn total(since_start: u64, per_second: f64) -> Piece {
    let text = whole(since_start);
    match per_second > 0.0 {
        true => (format!("{text}{GREW}"), Tone::Attention),
        false => plain(text),
    }
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), count)
}

fn column(heading: &'static str, align: Align, rank: u8) -> Column {
    Column {
        heading,
        align,
        rank,
    }
}

pub(super) fn plain(text: impl Into<String>) -> Piece {
    (text.into(), Tone::Plain)
}
