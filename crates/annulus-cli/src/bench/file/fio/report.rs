//! The JSON of `annulus bench file --job`, and the conversion of runs to rows. Its schema is `schema/bench-job.json`.

use serde::Serialize;

use super::pass::JobOutcome;
use super::plan::Job;
use crate::bench::file::tally::{Direction, Tally};
use crate::bench::machine::Machine;
use crate::bench::output::Header;
use crate::bench::spread::{Spread, median};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// The variant that runs the engines named in the job file.
pub(super) const OWN: &str = "job";
pub(super) const FIO: &str = "fio";

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
    pub(crate) rows: Vec<Row>,
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

    pub(super) fn at(&self, percentile: f64) -> Option<u64> {
        let percentile = self
            .percentiles
            .iter()
            .find(|one| (one.percentile - percentile).abs() < 1e-9);
        percentile.map(|one| one.ns)
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

/// One line of the table: medians over the repeats.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    pub(crate) job: String,
    /// `read` or `write`.
    pub(crate) direction: String,
    pub(crate) variant: String,
    /// The engine of the variant.
    pub(crate) engine: String,
    pub(crate) samples: usize,
    pub(crate) medians: Option<Medians>,
    pub(crate) reason: Option<String>,
    /// A note on the row.
    pub(crate) note: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Medians {
    pub(crate) ops_per_second: Spread,
    pub(crate) megabytes_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) max_us: f64,
    pub(crate) percentiles_us: Vec<(f64, f64)>,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) calls_per_op: Option<f64>,
    /// Operations per second over those of the job's own engine in the same repeat.
    pub(crate) ratio_to_job: Option<Spread>,
    /// Operations per second over fio's in the same repeat.
    pub(crate) ratio_to_fio: Option<Spread>,
}

/// Returns the rows of all jobs, in the order of the file.
pub(super) fn rows(jobs: &[Job], runs: &[Run], variants: &[&str]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let verifies =
            job.options.verify.is_some() && job.options.writes() && job.options.do_verify;
        let reads = job.options.reads() || verifies;
        for (direction, used) in [("read", reads), ("write", job.options.writes())] {
            for variant in variants.iter().filter(|_| used) {
                rows.push(row((index, job), runs, direction, variant));
            }
        }
    }
    rows
}

fn side_of<'a>(run: &'a Run, direction: &str) -> Option<&'a Side> {
    let sample = run.sample.as_ref()?;
    match direction {
        "read" => sample.read.as_ref(),
        _ => sample.write.as_ref(),
    }
}

fn row((index, job): (usize, &Job), runs: &[Run], direction: &str, variant: &str) -> Row {
    let of_job = runs.iter().filter(|run| run.job_index == index);
    let own: Vec<&Run> = of_job
        .clone()
        .filter(|run| run.variant == variant)
        .collect();
    let sides: Vec<(&Run, &Side)> = (own.iter())
        .filter(|run| !run.failed)
        .filter_map(|run| Some((*run, side_of(run, direction)?)))
        .collect();
    let ratio = |to: &str| {
        let ratios: Vec<f64> = (sides.iter())
            .filter_map(|(run, side)| {
                let mut others = of_job.clone();
                let other =
                    others.find(|other| other.variant == to && other.repeat == run.repeat)?;
                let reference = side_of(other, direction)?.ops_per_second;
                (reference > 0.0).then(|| side.ops_per_second / reference)
            })
            .collect();
        Spread::of(&ratios).filter(|_| variant != to)
    };
    Row {
        job: job.name.clone(),
        direction: direction.into(),
        variant: variant.into(),
        engine: match variant {
            "annulus" => "annulus".into(),
            _ => job.options.engine_name.clone(),
        },
        samples: sides.len(),
        medians: medians(&sides, &job.options.percentiles, ratio(OWN), ratio(FIO)),
        reason: own.iter().find_map(|run| run.reason.clone()),
        note: sides
            .iter()
            .find_map(|(run, _)| run.sample.as_ref()?.note.clone()),
    }
}

fn medians(
    sides: &[(&Run, &Side)],
    list: &[f64],
    ratio_to_job: Option<Spread>,
    ratio_to_fio: Option<Spread>,
) -> Option<Medians> {
    let column =
        |of: &dyn Fn(&Side) -> f64| sides.iter().map(|(_, side)| of(side)).collect::<Vec<f64>>();
    let at = |percentile: f64| {
        let values: Vec<f64> = (sides.iter())
            .filter_map(|(_, side)| Some(side.at(percentile)? as f64 / 1e3))
            .collect();
        median(&values)
    };
    let samples = sides.iter().filter_map(|(run, _)| run.sample.as_ref());
    let cpu: Vec<f64> = samples.clone().map(|sample| sample.cpu_us_per_op).collect();
    let calls: Vec<f64> = samples.filter_map(|sample| sample.calls_per_op).collect();
    Some(Medians {
        ops_per_second: Spread::of(&column(&|side| side.ops_per_second))?,
        megabytes_per_second: median(&column(&|side| side.megabytes_per_second))?,
        mean_us: median(&column(&|side| side.mean_ns / 1e3))?,
        p50_us: at(50.0),
        p99_us: at(99.0),
        max_us: median(&column(&|side| side.max_ns as f64 / 1e3))?,
        percentiles_us: list.iter().filter_map(|&p| Some((p, at(p)?))).collect(),
        cpu_us_per_op: median(&cpu)?,
        calls_per_op: median(&calls),
        ratio_to_job,
        ratio_to_fio,
    })
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
