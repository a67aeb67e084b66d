//! The report as text.

use std::fmt::Write;

use super::grid::{Grid, Piece};
use super::preload;
use super::report::Report;
use super::rows::{self, Sort};
use super::units::duration;

pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    let interval = duration((report.interval_seconds * 1e9) as u64);
    line(&mut text, &format!("process {}", rows::process(report)));
    for (backend, _) in rows::backends(report) {
        line(&mut text, &format!("backend {backend}"));
    }
    line(
        &mut text,
        &format!("within {interval}: {}", rows::summary(report)),
    );
    if let Some(pool) = rows::pool(report) {
        line(&mut text, &pool);
    }
    table(&mut text, &rows::sources(report));
    table(&mut text, &rows::operations(report, Sort::Rate, None));
    let preload = preload::lines(report);
    if !preload.is_empty() {
        text.push('\n');
    }
    for pieces in preload {
        line(&mut text, &joined(&pieces));
    }
    let errors = rows::errors(report);
    if !errors.is_empty() {
        text.push('\n');
        line(
            &mut text,
            &format!(
                "errors since the start (+: grew within the interval): {}",
                joined(&errors)
            ),
        );
    }
    for (alert, _) in rows::alerts(report) {
        line(&mut text, &alert);
    }
    for note in &report.notes {
        line(&mut text, &format!("! {note}"));
    }
    text
}

fn table(text: &mut String, grid: &Grid) {
    if grid.rows.is_empty() {
        return;
    }
    text.push('\n');
    for pieces in grid.lines(usize::MAX) {
        line(text, &joined(&pieces));
    }
}

pub(super) fn joined(pieces: &[Piece]) -> String {
    pieces.iter().map(|(text, _)| text.as_str()).collect()
}

fn line(text: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
}
