//! The JSON of `annulus bench file --job`, and the conversion of runs to rows. Its schema is `schema/bench-job.json`.

use serde::Serialize;

use super::pass::JobOutcome;
use super::plan::Job;
use crate::bench::file::stats::{Entry, Figures, Row, rows_of};
use crate::bench::file::tally::{Direction, Tally};
use crate::bench::machine::Machine;
use crate::bench::output::Header;

/// The version of the format.
pub(crate) const VERSION: u32 = 2;
/// The variant that runs the engines named in the job file.
pub(crate) const OWN: &str = "job";
pub(crate) const FIO: &str = "fio";

/// One run of a job file.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) header: Header,
    pub(crate) machine: Machine,
    /// The text of the job file.
    pub(crate) job_file: String,
    pub(crate) repeats: usize,
    pub(crate) jobs: Vec<JobFacts>,
    /// The version of fio, with `--with-fio`.
    pub(crate) fio_version: Option<String>,
    /// All runs, in the order in which they were made.
    pub(crate) runs: Vec<Run>,
    /// The table: one row per job, direction and variant.
    pub(crate) rows: Vec<Row<OfJob>>,
    pub(crate) warnings: Vec<String>,
    pub(crate) notes: Vec<String>,
}

/// A section of the file.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JobFacts {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// The stage of the job, from 0. Jobs of one stage run at the same time.
    pub(crate) stage: usize,
    pub(crate) engine: String,
    pub(crate) rw: String,
    pub(crate) iodepth: usize,
    pub(crate) numjobs: usize,
    /// The bytes of each file that the first clone uses.
    pub(crate) file_bytes: u64,
    pub(crate) files: Vec<String>,
}

/// One run of one job by one variant.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Run {
    /// The number of the repeat, from 1.
    pub(crate) repeat: usize,
    /// The index of the pass in the order of execution, from 0.
    pub(crate) position: usize,
    /// `job` (the engine that the file names), `annulus` or `fio`.
    pub(crate) variant: String,
    pub(crate) job: String,
    /// The index of the job in `jobs`. Names may repeat.
    pub(crate) job_index: usize,
    /// Processors that others used during the pass.
    pub(crate) others_busy: f64,
    /// Processors that the hypervisor withheld during the pass.
    pub(crate) stolen: f64,
    pub(crate) sample: Option<Sample>,
    /// The reason why there is no sample, or the failure.
    pub(crate) reason: Option<String>,
    /// True for a failure. False if the machine lacks a feature.
    pub(crate) failed: bool,
}

/// The results of all clones of a job together.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sample {
    pub(crate) read: Option<Side>,
    pub(crate) write: Option<Side>,
    /// Processor time per operation, including the kernel threads of this process. For fio, the time that it reports.
    pub(crate) cpu_us_per_op: f64,
    /// System calls per operation that submit or wait. Absent if they are not counted.
    pub(crate) calls_per_op: Option<f64>,
    /// Blocks whose content was checked.
    pub(crate) verified: u64,
    pub(crate) wrong: u64,
    pub(crate) errors: u64,
    pub(crate) note: Option<String>,
}

/// The results of reads or of writes.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Side {
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) ops_per_second: f64,
    /// Millions of bytes per second.
    pub(crate) megabytes_per_second: f64,
    pub(crate) mean_ns: f64,
    pub(crate) min_ns: u64,
    pub(crate) max_ns: u64,
    /// The percentiles of the job's `percentile_list`. Runs of this tool always include 50 and 99.
    pub(crate) percentiles: Vec<Percentile>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Percentile {
    pub(crate) percentile: f64,
    pub(crate) ns: u64,
}

impl Side {
    fn of(direction: &Direction, seconds: f64, list: &[f64]) -> Option<Side> {
        let ops = direction.ops();
        if ops == 0 {
            return None;
        }
        let seconds = seconds.max(1e-9);
        let mut selected = list.to_vec();
        selected.extend([50.0, 99.0]);
        selected.sort_by(f64::total_cmp);
        selected.dedup();
        let percentiles = selected.into_iter().map(|percentile| Percentile {
            percentile,
            ns: direction.latency.value_at_percentile(percentile),
        });
        Some(Side {
            seconds,
            ops,
            bytes: direction.bytes,
            ops_per_second: ops as f64 / seconds,
            megabytes_per_second: direction.bytes as f64 / seconds / 1e6,
            mean_ns: direction.mean_ns(),
            min_ns: direction.latency.min(),
            max_ns: direction.latency.max(),
            percentiles: percentiles.collect(),
        })
    }
}

impl Sample {
    /// Returns the sample of a job whose clones use `bytes_used` bytes of files in total.
    pub(super) fn of(job: &Job, outcome: &JobOutcome, bytes_used: u64) -> Sample {
        let (sum, back) = (&outcome.tally, outcome.read_back.as_ref());
        let list = &job.options.percentiles;
        let of_back = |of: fn(&Tally) -> u64| back.map_or(0, |(tally, _)| of(tally));
        let completions = sum.completions + of_back(|back| back.completions);
        let [read, write] = &sum.directions;
        Sample {
            read: match back {
                Some((back, seconds)) => Side::of(&back.directions[0], *seconds, list),
                None => Side::of(read, outcome.seconds, list),
            },
            write: Side::of(write, outcome.seconds, list),
            cpu_us_per_op: outcome.cpu_ns / 1e3 / completions.max(1) as f64,
            // Those of reading back are not counted apart.
            calls_per_op: (outcome.calls > 0 && back.is_none())
                .then(|| outcome.calls as f64 / completions.max(1) as f64),
            verified: sum.verified + of_back(|back| back.verified),
            wrong: sum.wrong + of_back(|back| back.wrong),
            errors: sum.errors + of_back(|back| back.errors),
            note: note(job, outcome, bytes_used),
        }
    }
}

/// Returns the variant's note, and notes reads that the page cache may have served.
fn note(job: &Job, outcome: &JobOutcome, bytes_used: u64) -> Option<String> {
    let note = outcome.note.clone();
    let rounds = outcome.tally.directions[0].bytes as f64 / bytes_used.max(1) as f64;
    if job.options.direct || rounds < 1.5 {
        return note;
    }
    let text = format!(
        "the files were read {rounds:.1} times over, but for the first time from the page cache"
    );
    Some(note.map_or(text.clone(), |note| format!("{note}; {text}")))
}

/// The place of a row in the table.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OfJob {
    pub(crate) job: String,
    /// `read` or `write`.
    pub(crate) direction: String,
    /// The engine that the job names.
    pub(crate) engine: String,
}

/// Returns the rows of all jobs, in the order of the file.
pub(super) fn rows(jobs: &[Job], runs: &[Run], variants: &[&str]) -> Vec<Row<OfJob>> {
    let mut rows = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let verifies =
            job.options.verify.is_some() && job.options.writes() && job.options.do_verify;
        let reads = job.options.reads() || verifies;
        for (direction, used) in [("read", reads), ("write", job.options.writes())] {
            let place = OfJob {
                job: job.name.clone(),
                direction: direction.into(),
                engine: job.options.engine_name.clone(),
            };
            let own = runs.iter().filter(|run| used && run.job_index == index);
            let entries: Vec<Entry<'_>> = own.map(|run| entry(run, direction)).collect();
            let mut own = rows_of(&entries, &place, &job.options.percentiles);
            own.sort_by_key(|row| variants.iter().position(|variant| row.variant == *variant));
            rows.extend(own);
        }
    }
    rows
}

fn entry<'r>(run: &'r Run, direction: &str) -> Entry<'r> {
    let sample = run.sample.as_ref().filter(|_| !run.failed);
    let side = sample.and_then(|sample| match direction {
        "read" => sample.read.as_ref(),
        _ => sample.write.as_ref(),
    });
    let figures = sample.zip(side).map(|(sample, side)| Figures {
        ops_per_second: side.ops_per_second,
        megabytes_per_second: side.megabytes_per_second,
        mean_ns: side.mean_ns,
        max_ns: side.max_ns,
        percentiles: (side.percentiles.iter())
            .map(|one| (one.percentile, one.ns))
            .collect(),
        cpu_us_per_op: sample.cpu_us_per_op,
        calls_per_op: sample.calls_per_op,
        peak_rss_bytes: None,
    });
    Entry {
        repeat: run.repeat,
        variant: &run.variant,
        note: sample
            .filter(|_| figures.is_some())
            .and_then(|sample| sample.note.clone()),
        figures,
        reason: run.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_the_repository_is_that_of_the_structs() {
        let schema = schemars::schema_for!(Report);
        crate::bench::output::schema_is_current("bench-job.json", &schema);
    }
}
