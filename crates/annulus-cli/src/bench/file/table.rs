//! The tables of depths and of job files, with the reason in place of missing figures.

use super::stats::{Loss, Medians, Row};
use super::variant::Side;
use crate::bench::columns::{remarks, ruled};
use crate::bench::numbers::{grouped, short};
use crate::bench::spread::Spread;
use crate::trace::AtDepth;

/// A column of rows in a place of type `P`: its heading, its meaning, and the cell of a row.
pub(crate) struct Column<P>(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) fn(&Row<P>, &Medians) -> String,
);

/// The columns of a depth.
pub(crate) const OF_DEPTH: [Column<AtDepth>; 11] = [
    Column("variant", "the variant", |row, _| row.variant.clone()),
    Column(
        "ops/s",
        "correct results per second; median over the repeats",
        |_, of| grouped(of.ops_per_second.median),
    ),
    Column(
        "× base (min–max)",
        "speed over that of the fastest ring by hand in the same repeat, with the extremes; level: no difference shown",
        |row, of| match &of.ratio_to_base {
            // The null variant has no meaningful speed.
            Some(_) if row.side == Side::Null => dash(),
            Some(_) if row.base.as_ref() == Some(&row.variant) => "base".into(),
            Some(ratio) if ratio.is_level() => format!("level {}", extremes(ratio)),
            ratio => times(ratio),
        },
    ),
    Column("CPU µs/op", CPU, |_, of| {
        format!("{:.2}", of.cpu_us_per_op)
    }),
    Column("p50", P50, |_, of| us(of.p50_us)),
    Column("p99", P99, |_, of| us(of.p99_us)),
    Column("p99.9", "999 of 1,000 took at most N µs", |_, of| {
        us(of.p99_9_us)
    }),
    Column("max", MAX, |_, of| short(of.max_us)),
    Column(
        "enters/op",
        "calls that submit or wait, per operation; for a ring, enters",
        |_, of| {
            of.calls_per_op
                .map_or_else(dash, |calls| format!("{calls:.3}"))
        },
    ),
    Column(
        "RSS MB",
        "the most memory that was resident in the process during a run, mapped files included",
        |_, of| {
            of.peak_rss_bytes
                .map_or_else(dash, |bytes| grouped(bytes / 1e6))
        },
    ),
    Column(
        "Annulus",
        "the figures in which the fastest form of Annulus loses to this row: speed, processor time, or both",
        |row, _| match &row.annulus_loses[..] {
            [] => String::new(),
            [Loss::OpsPerSecond] => "loses".into(),
            [Loss::Cpu] => "loses CPU".into(),
            _ => "loses, CPU too".into(),
        },
    ),
];

/// Meanings that several tables share.
pub(crate) const CPU: &str = "processor time of the whole process per operation, µs";
pub(crate) const P50: &str = "half of the operations took at most N µs";
pub(crate) const P99: &str = "99 of 100 took at most N µs";
pub(crate) const MAX: &str = "the longest latency, µs";

/// Formats the rows, with their remarks. `name` is the name of a row in a remark.
pub(crate) fn table<P>(
    columns: &[Column<P>],
    rows: &[&Row<P>],
    name: fn(&Row<P>) -> String,
) -> String {
    let mut lines = vec![columns.iter().map(|column| column.0.to_string()).collect()];
    lines.extend(rows.iter().filter_map(|row| cells(columns, row)));
    let text = match lines.len() {
        1 => String::new(),
        _ => ruled(&lines),
    };
    let list = rows.iter().flat_map(|row| {
        let texts = remarks_on(row).into_iter();
        texts.map(|text| (name(row), text))
    });
    text + &remarks(&list.collect::<Vec<_>>())
}

/// Returns the cells of a row, if it has figures.
pub(crate) fn cells<P>(columns: &[Column<P>], row: &Row<P>) -> Option<Vec<String>> {
    let medians = row.medians.as_ref()?;
    Some(
        columns
            .iter()
            .map(|column| column.2(row, medians))
            .collect(),
    )
}

/// Returns the reason why samples of a row are missing, and the remark on its figures.
pub(crate) fn remarks_on<P>(row: &Row<P>) -> Vec<String> {
    let partly = row.medians.as_ref().map_or("", |_| "some runs: ");
    let reason = row.reason.iter().map(|reason| format!("{partly}{reason}"));
    reason.chain(row.note.clone()).collect()
}

pub(crate) fn dash() -> String {
    "–".into()
}

/// Formats a latency in µs.
pub(crate) fn us(value: Option<f64>) -> String {
    value.map_or_else(dash, short)
}

/// Formats a ratio with its extremes.
pub(crate) fn times(ratio: &Option<Spread>) -> String {
    ratio.as_ref().map_or_else(dash, |ratio| {
        format!("{:.2} {}", ratio.median, extremes(ratio))
    })
}

fn extremes(ratio: &Spread) -> String {
    format!("({:.2}–{:.2})", ratio.min, ratio.max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_numbers_gives_its_reason() {
        let row = Row {
            place: AtDepth { depth: 8 },
            variant: "mmap".into(),
            side: Side::Baseline,
            base: None,
            annulus_loses: Vec::new(),
            samples: 0,
            medians: None,
            reason: Some("not applicable: because".into()),
            note: None,
        };
        let text = table(&OF_DEPTH, &[&row], |row| row.variant.clone());
        assert_eq!(text, "mmap: not applicable: because\n");
    }
}
