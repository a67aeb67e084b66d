//! What the preload library did in a program that `annulus run` started: what is on rings, what is left to the kernel.

use std::cmp::Reverse;

use annulus::metrics::{PreloadCounts, ReasonCounts};
use schemars::JsonSchema;
use serde::Serialize;

use super::grid::{Piece, Tone};
use super::report::Report;
use super::rows::{plain, total};
use super::units::{count, whole};

/// An unmodified program on rings.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct PreloadReport {
    /// Rings that serve right now.
    pub(super) rings: u64,
    /// Connections that are served right now.
    pub(super) connections: u64,
    /// Buffers for what is received, right now.
    pub(super) buffers: u64,
    /// Those of them that hold nothing.
    pub(super) buffers_free: u64,
    /// Calls that were left to the kernel, most frequent reason first.
    pub(super) passed: Vec<ReasonReport>,
    /// Descriptors that were served and then given back to the kernel, most frequent reason first.
    pub(super) handed_back: Vec<ReasonReport>,
}

/// How often something had that reason.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ReasonReport {
    /// As docs/reference/preload.md explains it.
    pub(super) reason: String,
    /// Since the process began.
    pub(super) since_start: u64,
    /// Within the interval.
    pub(super) per_second: f64,
}

impl PreloadReport {
    /// `None`: what counts there is no preload library.
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

/// A line for what is on rings, one for what is left to the kernel, one for what was given back; those that have
/// nothing to say are left out.
pub(super) fn lines(report: &Report) -> Vec<Vec<Piece>> {
    let Some(preload) = &report.total.preload else {
        return Vec::new();
    };
    let served = format!(
        "{} connections on {} {}, {} of {} buffers free",
        whole(preload.connections),
        whole(preload.rings),
        if preload.rings == 1 { "ring" } else { "rings" },
        whole(preload.buffers_free),
        whole(preload.buffers),
    );
    let mut lines = vec![vec![heading("SERVED"), plain(served)]];
    for (title, reasons) in [
        ("PASSED", &preload.passed),
        ("HANDED BACK", &preload.handed_back),
    ] {
        if reasons.is_empty() {
            continue;
        }
        let mut line = vec![heading(title)];
        for reason in reasons {
            if line.len() > 1 {
                line.push(plain("  "));
            }
            let (text, tone) = total(reason.since_start, reason.per_second);
            line.push((format!("{} {text}", reason.reason), tone));
        }
        lines.push(line);
    }
    lines
}

fn heading(title: &str) -> Piece {
    (format!("{title}  "), Tone::Heading)
}

/// What is worth a second look.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(preload) = &report.total.preload else {
        return notes;
    };
    if preload.rings == 0 {
        let why = preload.passed.iter().map(|passed| passed.reason.as_str());
        notes.push(format!(
            "nothing is on a ring any more; left to the kernel for: {}",
            why.collect::<Vec<&str>>().join(", ")
        ));
    }
    let back = preload.handed_back.iter();
    let grown = back.filter(|back| back.per_second > 0.0);
    notes.extend(grown.map(|back| {
        format!(
            "{} connections/s are given back to the kernel: {}",
            count(back.per_second),
            back.reason
        )
    }));
    notes
}
