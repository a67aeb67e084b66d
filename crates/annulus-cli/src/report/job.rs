//! The contents of a report on `bench file --job`.

use super::files::{machine_facts, table_of};
use super::model::{Comparison, Embedded, Group};
use crate::bench::file::fio::report::{JobFacts, OfJob, Report};
use crate::bench::file::fio::table::COLUMNS;
use crate::bench::file::stats::Row;

impl Comparison {
    /// Prepares the report on a job file.
    pub(crate) fn of_job(report: &Report, checks: &str) -> serde_json::Result<Comparison> {
        Ok(Comparison {
            kind: "job",
            title: format!("A job file with {} jobs", report.jobs.len()),
            verdict: String::new(),
            checks: checks.trim_end().to_owned(),
            warnings: report.warnings.clone(),
            notes: report.notes.clone(),
            load: vec![
                ("Job file", report.job_file.clone()),
                ("Repeats", report.repeats.to_string()),
            ],
            machine: machine_facts(&report.machine),
            header: report.header.clone(),
            variants: variants(report),
            groups: (report.jobs.iter())
                .map(|job| group(job, &report.rows))
                .collect(),
            latency: "from the submission of an operation to its completion",
            unit: "ops",
            no_calls: None,
            json: Embedded {
                text: serde_json::to_string(report)?,
                slices: None,
            },
        })
    }
}

fn variants(report: &Report) -> Vec<(String, String)> {
    let fio = report.fio_version.as_ref();
    let mut list = vec![
        (
            "job".to_owned(),
            "the engine that each job names".to_owned(),
        ),
        (
            "annulus".to_owned(),
            "the same jobs through Annulus".to_owned(),
        ),
    ];
    list.extend(fio.map(|version| ("fio".to_owned(), version.clone())));
    list
}

/// Returns the table of the jobs with this name. Jobs with equal names share a table, as in the text.
fn group(job: &JobFacts, rows: &[Row<OfJob>]) -> Group {
    let rows: Vec<&Row<OfJob>> = rows
        .iter()
        .filter(|row| row.place.job == job.name)
        .collect();
    let name = |row: &Row<OfJob>| format!("{} {}", row.place.direction, row.variant);
    Group {
        title: format!(
            "{}: {} {}, depth {} × {} clones",
            job.name, job.engine, job.rw, job.iodepth, job.numjobs
        ),
        ..table_of(&COLUMNS, &rows, name)
    }
}
