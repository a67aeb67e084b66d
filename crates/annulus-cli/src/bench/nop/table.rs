//! The tables of `bench nop`: one per depth, from the lowest layer to the highest, with the cost of each layer.

use super::json::{Medians, Report, Row, Run};
use crate::bench::columns::ruled;
use crate::bench::disturbance::{self, RunShares};
use crate::bench::stats::Spread;
use crate::bench::table::{grouped, short};

const HEADINGS: [&str; 8] = [
    "layer",
    "NOPs/s",
    "ns/op (min–max)",
    "CPU ns/op",
    "enters/op",
    "switches/op",
    "+ns",
    "+CPU ns",
];

/// Returns all tables, the meaning of the columns, and the verdict.
pub(crate) fn tables(report: &Report) -> String {
    let mut text = String::new();
    for &depth in &report.depths {
        let rows: Vec<&Row> = report
            .rows
            .iter()
            .filter(|row| row.depth == depth)
            .collect();
        text += &format!("\ndepth {depth}\n{}", table(&rows));
    }
    text += "\n+ns and +CPU ns: more than abi-defer in the same repeat, the median of that; CPU is the whole process, \
             so a driver's thread counts\n";
    let repeats = format!("--repeat {}", (report.repeats * 3).max(15));
    if let Some(warning) = disturbance::warning(&shares(&report.runs), &repeats) {
        text += &format!("warning: {warning}\n");
    }
    text + &report.verdict + "\n"
}

fn table(rows: &[&Row]) -> String {
    let mut lines = vec![HEADINGS.map(String::from)];
    lines.extend(rows.iter().filter_map(|row| cells(row)));
    let mut text = ruled(&lines);
    for row in rows {
        if let Some(reason) = &row.reason {
            text += &format!("{}: {reason}\n", row.layer);
        }
    }
    text
}

fn cells(row: &Row) -> Option<[String; HEADINGS.len()]> {
    let medians = row.medians.as_ref()?;
    let dash = || "–".to_string();
    let signed = |spread: &Option<Spread>| {
        spread.map_or_else(dash, |spread| format!("{:+.0}", spread.median))
    };
    let ns = &medians.ns_per_op;
    Some([
        row.layer.clone(),
        grouped(medians.mops_per_second * 1e6),
        format!("{} ({}–{})", short(ns.median), short(ns.min), short(ns.max)),
        short(medians.cpu_ns_per_op.median),
        medians
            .enters_per_op
            .map_or_else(dash, |enters| format!("{enters:.3}")),
        format!("{:.3}", medians.context_switches_per_op),
        signed(&medians.ns_over_reference),
        signed(&medians.cpu_ns_over_reference),
    ])
}

/// Returns a sentence with the cost of Annulus over the ABI at each depth. A depth whose runs were disturbed gets no
/// verdict.
pub(crate) fn verdict(runs: &[Run], rows: &[Row], depths: &[usize]) -> String {
    disturbance::verdict(&shares(runs), depths, |depth| clause(rows, depth))
}

fn shares(runs: &[Run]) -> Vec<RunShares> {
    let measured = runs
        .iter()
        .filter_map(|run| Some((run, run.sample.as_ref()?)));
    measured
        .map(|(run, sample)| RunShares {
            cell: disturbance::depth_cell(run.depth),
            repeat: run.repeat,
            variant: run.layer.clone(),
            others_busy: sample.others_busy,
            stolen: sample.stolen,
        })
        .collect()
}

fn clause(rows: &[Row], depth: usize) -> Option<String> {
    let of = |layer: &str| -> Option<&Medians> {
        rows.iter()
            .find(|row| row.depth == depth && row.layer == layer)?
            .medians
            .as_ref()
    };
    let (annulus, reference) = (of("annulus")?, of("abi-defer")?);
    let (executor, hop) = (of("null-executor")?, of("null-hand-off")?);
    Some(format!(
        "at depth {depth} a NOP takes {} ns through Annulus and {} by hand ({} of {} ns CPU); without any kernel the \
         executor alone takes {} and a hop to a thread and back {}",
        short(annulus.ns_per_op.median),
        short(reference.ns_per_op.median),
        short(annulus.cpu_ns_per_op.median),
        short(reference.cpu_ns_per_op.median),
        short(executor.ns_per_op.median),
        short(hop.ns_per_op.median),
    ))
}
