//! The table of a job file. Each job and direction has a row for its own engine, for Annulus and optionally for fio.

use super::report::{FIO, OWN, OfJob};
use crate::bench::file::stats::Row;
use crate::bench::file::table::{self, CPU, Column, MAX, P50, P99, dash, times, us};
use crate::bench::numbers::{grouped, short};

/// The most percentiles that fit on a line.
const PERCENTILES_MAX: usize = 8;

/// The columns.
pub(crate) const COLUMNS: [Column<OfJob>; 13] = [
    Column("job", "the section of the job file", |row, _| {
        row.place.job.clone()
    }),
    Column("", "reads or writes", |row, _| row.place.direction.clone()),
    Column(
        "by",
        "the engine that the job names, Annulus, or fio itself",
        |row, _| match &row.variant[..] {
            OWN => row.place.engine.clone(),
            other => other.to_string(),
        },
    ),
    Column(
        "IOPS",
        "operations per second; median over the repeats",
        |_, of| grouped(of.ops_per_second.median),
    ),
    Column("MB/s", "millions of bytes per second", |_, of| {
        grouped(of.megabytes_per_second)
    }),
    Column("mean", "the mean latency, µs", |_, of| short(of.mean_us)),
    Column("p50", P50, |_, of| us(of.p50_us)),
    Column("p99", P99, |_, of| us(of.p99_us)),
    Column("max", MAX, |_, of| short(of.max_us)),
    Column("CPU/op", CPU, |_, of| format!("{:.2}", of.cpu_us_per_op)),
    Column(
        "calls/op",
        "calls that submit or wait, per operation",
        |_, of| {
            of.calls_per_op
                .map_or_else(dash, |calls| format!("{calls:.2}"))
        },
    ),
    Column(
        "× job",
        "speed over that of the job's own engine in the same repeat, with the extremes",
        |row, of| times(&of.ratio_to_base.filter(|_| row.variant != OWN)),
    ),
    Column(
        "× fio",
        "speed over that of fio in the same repeat, with the extremes",
        |row, of| times(&of.ratio_to_best_baseline.filter(|_| row.variant != FIO)),
    ),
];

/// Formats the rows as text, followed by their percentiles and remarks.
pub(super) fn table(rows: &[Row<OfJob>]) -> String {
    let rows: Vec<&Row<OfJob>> = rows.iter().collect();
    let list: String = rows.iter().map(|row| percentiles(row)).collect();
    table::table(&COLUMNS, &rows, name) + &list
}

fn name(row: &Row<OfJob>) -> String {
    format!("{} {} {}", row.place.job, row.place.direction, row.variant)
}

/// Formats the percentiles of the job's list, if they fit on a line.
fn percentiles(row: &Row<OfJob>) -> String {
    let medians = row.medians.as_ref();
    let list = medians.map_or(&[][..], |medians| &medians.percentiles_us);
    if list.is_empty() || list.len() > PERCENTILES_MAX {
        return String::new();
    }
    let parts: Vec<String> = list
        .iter()
        .map(|(p, us)| format!("p{p} {}", short(*us)))
        .collect();
    format!("{}: {}\n", name(row), parts.join(", "))
}
