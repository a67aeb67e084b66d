//! The contents of a report on `bench net`.

use super::files::machine_facts;
use super::model::{Comparison, Group, Repeat, VariantRuns, bytes, embed};
use crate::bench::net::json::{Report, Row};
use crate::bench::net::table;
use crate::trace::AtCell;

impl Comparison {
    /// Prepares the report on a comparison of `bench net`.
    pub(crate) fn of_network(
        report: &Report,
        budget_bytes: usize,
    ) -> serde_json::Result<Comparison> {
        let load = &report.load;
        Ok(Comparison {
            kind: "net",
            title: load.description.clone(),
            verdict: report.verdict.clone(),
            checks: checks(report),
            warnings: report.warnings.clone(),
            notes: Vec::new(),
            load: load_facts(report),
            machine: machine_facts(&report.machine),
            header: report.header.clone(),
            variants: (report.variants.iter())
                .map(|one| (one.name.clone(), one.about.clone()))
                .collect(),
            groups: groups(report),
            latency: match load.rate {
                Some(_) => "from the due time of a request to its response, shown at the due time",
                None => "from sending a request to its response, in a closed loop",
            },
            unit: "requests",
            no_calls: Some(
                "The client cannot observe when the server enters the kernel; the table has the sum.",
            ),
            json: embed(report, budget_bytes)?,
        })
    }
}

fn checks(report: &Report) -> String {
    let totals = || {
        report
            .runs
            .iter()
            .filter_map(|run| Some(run.sample.as_ref()?.totals))
    };
    let (requests, responses): (u64, u64) = totals().fold((0, 0), |sum, totals| {
        (sum.0 + totals.requests, sum.1 + totals.responses)
    });
    let errors: u64 = (report.runs.iter())
        .filter_map(|run| run.sample.as_ref())
        .flat_map(|sample| &sample.errors)
        .map(|error| error.count)
        .sum();
    let void = report.runs.iter().filter(|run| run.failed()).count();
    format!(
        "{responses} of {requests} requests completed, each response checked; {errors} errors; {void} of {} runs invalid",
        report.runs.len()
    )
}

fn load_facts(report: &Report) -> Vec<(&'static str, String)> {
    let load = &report.load;
    let list: Vec<String> = load.connections.iter().map(usize::to_string).collect();
    let rate = load
        .rate
        .map(|rate| format!("{rate} requests per second, by the clock"));
    vec![
        ("Protocol", load.protocol.clone()),
        ("Connections", list.join(", ")),
        ("In flight on each", load.pipeline.to_string()),
        (
            "Pace",
            rate.unwrap_or_else(|| "the next request after each response".into()),
        ),
        ("Client threads", load.client_threads.to_string()),
        (
            "Measured",
            format!("{} s × {} repeats", load.runtime_seconds, load.repeats),
        ),
        ("Seed", report.seed.to_string()),
    ]
}

fn groups(report: &Report) -> Vec<Group> {
    let cells = report.load.cells().into_iter();
    cells.map(|cell| group(report, cell)).collect()
}

fn group(report: &Report, cell: AtCell) -> Group {
    let load = &report.load;
    let rows: Vec<&Row> = (report.rows.iter())
        .filter(|row| row.cell == cell)
        .collect();
    let mut remarks = Vec::new();
    for row in &rows {
        let reason = row
            .reason
            .iter()
            .map(|reason| format!("{}: FAILED: {reason}", row.variant));
        let limit = row
            .limit
            .iter()
            .map(|limit| format!("{}: {limit}", row.variant));
        remarks.extend(reason.chain(limit));
    }
    let length = cell
        .size
        .map_or(String::new(), |size| format!(", {}", bytes(size)));
    Group {
        title: format!("{} connections{length}", cell.connections),
        headings: table::headings(&load.protocol).into(),
        rows: rows
            .iter()
            .filter_map(|row| Some(table::cells(row)?.to_vec()))
            .collect(),
        remarks,
        variants: rows.iter().map(|row| variant(report, row)).collect(),
    }
}

fn variant(report: &Report, row: &Row) -> VariantRuns {
    let own = report
        .runs
        .iter()
        .enumerate()
        .filter(|(_, run)| run.cell == row.cell && run.variant == row.variant);
    let repeats = own.filter_map(|(index, run)| {
        let sample = run.good()?;
        Some(Repeat {
            run: index,
            number: run.repeat,
            per_second: sample.requests_per_second,
            timeline: sample.timeline.clone(),
        })
    });
    VariantRuns {
        name: row.variant.clone(),
        null: false,
        speed: row
            .medians
            .as_ref()
            .map(|medians| medians.requests_per_second),
        samples: row.samples,
        p99_us: row.medians.as_ref().map(|medians| medians.p99_us),
        repeats: repeats.collect(),
    }
}
