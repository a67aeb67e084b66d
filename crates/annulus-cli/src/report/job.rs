//! The contents of a report on `bench file --job`.

use super::files::machine_facts;
use super::model::{Comparison, Embedded, Group, VariantRuns};
use crate::bench::file::fio::report::{JobFacts, Report, Row};
use crate::bench::file::fio::table::{HEADINGS, cells};

/// The meaning of each column of the table.
const MEANINGS: [&str; HEADINGS.len()] = [
    "the section of the job file",
    "reads or writes",
    "the engine that the job names, Annulus, or fio itself",
    "operations per second; median over the repeats",
    "millions of bytes per second",
    "the mean latency, µs",
    "half of the operations took at most N µs",
    "99 of 100 took at most N µs",
    "the longest latency, µs",
    "processor time of the whole process per operation, µs",
    "calls that submit or wait, per operation",
    "speed over that of the job's own engine in the same repeat, with the extremes",
    "speed over that of fio in the same repeat, with the extremes",
];

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
fn group(job: &JobFacts, rows: &[Row]) -> Group {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.job == job.name).collect();
    let remarks = rows.iter().flat_map(|row| {
        let texts = row.reason.iter().chain(&row.note);
        texts.map(|text| format!("{} {}: {text}", row.direction, row.variant))
    });
    Group {
        title: format!(
            "{}: {} {}, depth {} × {} clones",
            job.name, job.engine, job.rw, job.iodepth, job.numjobs
        ),
        headings: HEADINGS.into_iter().zip(MEANINGS).collect(),
        rows: (rows.iter())
            .filter_map(|row| Some(cells(row, row.medians.as_ref()?).to_vec()))
            .collect(),
        remarks: remarks.collect(),
        variants: rows
            .iter()
            .map(|row| VariantRuns {
                name: row.variant.clone(),
                null: false,
                speed: row.medians.as_ref().map(|medians| medians.ops_per_second),
                samples: row.samples,
                p99_us: row.medians.as_ref().and_then(|medians| medians.p99_us),
                repeats: Vec::new(),
            })
            .collect(),
    }
}
