//! The table of a job file. Each job and direction has a row for its own engine, for Annulus and optionally for fio.

use super::report::{Medians, Row};
use crate::bench::columns::ruled;
use crate::bench::numbers::{grouped, short};
use crate::bench::spread::Spread;

pub(crate) const HEADINGS: [&str; 13] = [
    "job", "", "by", "IOPS", "MB/s", "mean", "p50", "p99", "max", "CPU/op", "calls/op", "× job",
    "× fio",
];

/// Formats the rows as text, followed by a line for each row with a note or a reason.
pub(super) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_string)];
    let mut below = String::new();
    for row in rows {
        match &row.medians {
            Some(medians) => lines.push(cells(row, medians)),
            None => {
                let reason = row.reason.as_deref().unwrap_or("nothing was measured");
                below += &format!("{} {} {}: {reason}\n", row.job, row.direction, row.variant);
            }
        }
    }
    let mut text = match lines.len() {
        1 => String::new(),
        _ => ruled(&lines),
    };
    for row in rows {
        let Some(medians) = &row.medians else {
            continue;
        };
        for reason in row.reason.iter().chain(&row.note) {
            below += &format!("{} {} {}: {reason}\n", row.job, row.direction, row.variant);
        }
        text += &percentiles(row, medians);
    }
    text + &below
}

pub(crate) fn cells(row: &Row, medians: &Medians) -> [String; HEADINGS.len()] {
    let dash = || "–".to_string();
    let us = |value: Option<f64>| value.map_or_else(dash, short);
    let ratio = |spread: &Option<Spread>| match spread {
        Some(spread) => format!("{:.2} ({:.2}–{:.2})", spread.median, spread.min, spread.max),
        None => dash(),
    };
    [
        row.job.clone(),
        row.direction.clone(),
        match row.variant.as_str() {
            "job" => row.engine.clone(),
            other => other.to_string(),
        },
        grouped(medians.ops_per_second.median),
        grouped(medians.megabytes_per_second),
        short(medians.mean_us),
        us(medians.p50_us),
        us(medians.p99_us),
        short(medians.max_us),
        format!("{:.2}", medians.cpu_us_per_op),
        medians
            .calls_per_op
            .map_or_else(dash, |calls| format!("{calls:.2}")),
        ratio(&medians.ratio_to_job),
        ratio(&medians.ratio_to_fio),
    ]
}

/// Formats the percentiles of the job's list, if they fit on a line.
fn percentiles(row: &Row, medians: &Medians) -> String {
    const MOST: usize = 8;
    let list = &medians.percentiles_us;
    if list.is_empty() || list.len() > MOST {
        return String::new();
    }
    let parts: Vec<String> = list
        .iter()
        .map(|(p, us)| format!("p{p} {}", short(*us)))
        .collect();
    format!(
        "{} {} {}: {}\n",
        row.job,
        row.direction,
        row.variant,
        parts.join(", ")
    )
}
