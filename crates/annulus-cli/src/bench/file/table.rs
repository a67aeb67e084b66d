//! The table of one depth, with the reason in place of missing figures.

use super::stats::{Loss, Medians, Row};
use super::variant::Side;
use crate::bench::numbers::{grouped, short};
use crate::bench::spread::Spread;

pub(crate) const HEADINGS: [&str; COLUMNS] = [
    "variant",
    "ops/s",
    "× base (min–max)",
    "CPU µs/op",
    "p50",
    "p99",
    "p99.9",
    "max",
    "enters/op",
    "RSS MB",
    "Annulus",
];
const COLUMNS: usize = 11;
const GAP: &str = "  ";

/// Formats the rows, with a heading line.
pub(crate) fn table(rows: &[Row]) -> String {
    let cells: Vec<(usize, [String; COLUMNS])> = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| Some((index, cells(row, row.medians.as_ref()?))))
        .collect();
    let mut widths = HEADINGS.map(|heading| heading.chars().count());
    widths[0] = rows
        .iter()
        .map(|row| row.variant.len())
        .chain([widths[0]])
        .max()
        .unwrap_or(0);
    for (_, row) in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(&widths, &HEADINGS.map(String::from));
    let rule: usize = widths.iter().sum::<usize>() + GAP.len() * (widths.len() - 1);
    text += &"─".repeat(rule);
    text.push('\n');
    for (_, row) in &cells {
        text += &line(&widths, row);
    }
    for row in rows {
        if let Some(reason) = &row.reason {
            let partly = if row.medians.is_some() {
                "some runs: "
            } else {
                ""
            };
            text += &format!(
                "{:<width$}{GAP}{partly}{reason}\n",
                row.variant,
                width = widths[0]
            );
        }
    }
    text + &notes(rows)
}

/// Returns the notes, each after the names of its variants.
fn notes(rows: &[Row]) -> String {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        let Some(note) = row.note.as_deref() else {
            continue;
        };
        match notes.iter_mut().find(|(known, _)| *known == note) {
            Some((_, about)) => about.push(&row.variant),
            None => notes.push((note, vec![&row.variant])),
        }
    }
    notes
        .iter()
        .map(|(note, about)| format!("{}: {note}\n", about.join(", ")))
        .collect()
}

fn line(widths: &[usize; COLUMNS], cells: &[String; COLUMNS]) -> String {
    let mut text = format!("{:<width$}", cells[0], width = widths[0]);
    for (cell, width) in cells.iter().zip(widths).skip(1) {
        text += &format!("{GAP}{cell:>width$}");
    }
    text.push('\n');
    text
}

pub(crate) fn cells(row: &Row, medians: &Medians) -> [String; COLUMNS] {
    let dash = || "–".to_string();
    // The null variant has no meaningful speed.
    let null = row.side == Side::Null;
    [
        row.variant.clone(),
        grouped(medians.ops_per_second.median),
        match &medians.ratio_to_base {
            _ if null => dash(),
            None => dash(),
            Some(_) if row.base.as_ref() == Some(&row.variant) => "base".into(),
            Some(ratio) => compared(ratio),
        },
        format!("{:.2}", medians.cpu_us_per_op),
        short(medians.p50_us),
        short(medians.p99_us),
        short(medians.p99_9_us),
        short(medians.max_us),
        medians
            .calls_per_op
            .map_or_else(dash, |calls| format!("{calls:.3}")),
        medians
            .peak_rss_bytes
            .map_or_else(dash, |bytes| grouped(bytes / 1e6)),
        lost(&row.annulus_loses),
    ]
}

/// Formats a ratio, or "level", with its extremes.
fn compared(ratio: &Spread) -> String {
    let spread = format!("({:.2}–{:.2})", ratio.min, ratio.max);
    match ratio.is_level() {
        true => format!("level {spread}"),
        false => format!("{:.2} {spread}", ratio.median),
    }
}

/// Returns the mark of a row that Annulus loses to.
fn lost(losses: &[Loss]) -> String {
    match losses {
        [] => String::new(),
        [Loss::OpsPerSecond] => "loses".into(),
        [Loss::Cpu] => "loses CPU".into(),
        _ => "loses, CPU too".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_numbers_gives_its_reason() {
        let row = Row {
            depth: 8,
            variant: "mmap".into(),
            side: Side::Baseline,
            base: None,
            annulus_loses: Vec::new(),
            samples: 0,
            medians: None,
            reason: Some("not applicable: because".into()),
            note: None,
        };
        assert!(
            table(&[row])
                .lines()
                .last()
                .unwrap()
                .starts_with("mmap     not applicable: because")
        );
    }
}
