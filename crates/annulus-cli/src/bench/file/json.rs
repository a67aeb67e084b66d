//! The JSON of a comparison: all measurements, in the order of the runs. Its schema is generated from these structs and
//! kept in `schema/bench-file.json`.

use serde::{Deserialize, Serialize};

use super::stats::Row;
use super::variant::{Side, side};
use crate::bench::machine::Machine;
use crate::bench::output::{Figures, Header};
use crate::bench::timeline::Timeline;
use crate::trace::{AtDepth, Traced};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;

/// A comparison of `annulus bench file`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) header: Header,
    /// The seed. Passing it to `--seed` repeats the order of runs and blocks.
    pub(crate) seed: u64,
    pub(crate) machine: Machine,
    pub(crate) load: Load,
    pub(crate) variants: Vec<VariantFacts>,
    /// All runs, in order.
    pub(crate) runs: Vec<Run>,
    /// The tables: one row per depth and variant.
    pub(crate) rows: Vec<Row<AtDepth>>,
    /// The additional traced runs of `--syscalls` and `--flamegraph`.
    #[serde(default)]
    pub(crate) traced: Vec<Traced<AtDepth>>,
    /// A signal ended it early: runs are missing, or the last one was cut short.
    #[serde(default)]
    pub(crate) interrupted: bool,
    pub(crate) notes: Vec<String>,
    pub(crate) warnings: Vec<String>,
    pub(crate) verdict: String,
}

impl Report {
    /// Returns a line on the checks of all runs.
    pub(crate) fn checks_line(&self) -> String {
        let mut sum = Checks::default();
        for run in &self.runs {
            let sample = match &run.outcome {
                Outcome::Measured(sample)
                | Outcome::Failed {
                    sample: Some(sample),
                    ..
                } => sample,
                _ => continue,
            };
            if side(&run.variant) == Side::Null {
                continue;
            }
            sum.completions += sample.checks.completions;
            sum.correct += sample.checks.correct;
            sum.compared_afterwards += sample.checks.compared_afterwards;
            sum.wrong_afterwards += sample.checks.wrong_afterwards;
        }
        let what = if self.load.contents_known {
            "length and content"
        } else {
            "length"
        };
        if sum.completions == 0 {
            return String::new();
        }
        let mut text = format!(
            "checked {} of {} results: {what} right",
            sum.correct, sum.completions
        );
        if sum.compared_afterwards > 0 {
            let correct = sum.compared_afterwards - sum.wrong_afterwards;
            text += &format!(
                "; {correct} of {} compared again afterwards are correct",
                sum.compared_afterwards
            );
        }
        text.push('\n');
        text
    }
}

/// The load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Load {
    pub(crate) rw: String,
    pub(crate) write_percent: u8,
    pub(crate) block_bytes: u64,
    pub(crate) offset_bytes: u64,
    /// The total size of all files.
    pub(crate) size_bytes: u64,
    /// The number of files, over which the data is spread evenly.
    pub(crate) files: usize,
    /// `direct`; `buffered, cold`; `buffered, hot`.
    pub(crate) cache: String,
    pub(crate) file: String,
    /// The content of every completion was checked, as in a file that the tool created. Otherwise only a sample was, as
    /// in the user's file.
    pub(crate) contents_known: bool,
    pub(crate) depths: Vec<usize>,
    /// `--threads`; the tool's help gives its meaning for each variant.
    pub(crate) threads: Option<usize>,
    /// `--drivers`, of Annulus.
    pub(crate) drivers: Option<usize>,
    /// `--load`, the name of a set of these options.
    pub(crate) name: Option<String>,
    /// Every write was on stable storage when it completed (`--sync each`).
    pub(crate) durable: bool,
    /// The memory limit of the process, page cache included (`--memory`).
    pub(crate) memory_limit_bytes: Option<u64>,
    pub(crate) runtime_seconds: f64,
    pub(crate) repeats: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct VariantFacts {
    pub(crate) name: String,
    pub(crate) side: Side,
    pub(crate) about: String,
}

/// One run of a variant at a depth.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Run {
    /// The position in the order of runs, from 0.
    pub(crate) position: usize,
    pub(crate) depth: usize,
    /// The number of the repeat, from 1.
    pub(crate) repeat: usize,
    pub(crate) variant: String,
    pub(crate) outcome: Outcome,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(crate) enum Outcome {
    Measured(Box<Sample>),
    /// The load does not suit the variant.
    NotApplicable {
        reason: String,
    },
    /// The machine lacks something that the variant needs.
    Unavailable {
        reason: String,
    },
    /// The page cache was not in the requested state, so nothing was measured.
    NotPrepared {
        reason: String,
    },
    /// A signal ended it before half of its time was measured.
    Interrupted {
        reason: String,
    },
    /// Wrong results, errors, or no completions.
    Failed {
        reason: String,
        sample: Option<Box<Sample>>,
    },
}

impl Outcome {
    /// Returns the figures of a run that counts.
    pub(crate) fn sample(&self) -> Option<&Sample> {
        match self {
            Outcome::Measured(sample) => Some(sample),
            _ => None,
        }
    }

    /// Returns the figures of any run.
    pub(crate) fn any_sample_mut(&mut self) -> Option<&mut Sample> {
        match self {
            Outcome::Measured(sample)
            | Outcome::Failed {
                sample: Some(sample),
                ..
            } => Some(sample),
            _ => None,
        }
    }

    /// Returns whether the run failed only because nothing completed within the measured time.
    pub(crate) fn has_no_completions(&self) -> bool {
        let Outcome::Failed { sample, .. } = self else {
            return false;
        };
        sample.as_ref().is_some_and(|sample| {
            sample.ops == 0 && sample.checks.bad() == 0 && !sample.ran_out_of_blocks
        })
    }

    /// Returns the reason why there is no sample.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Outcome::Measured(_) => None,
            Outcome::NotApplicable { reason } => Some(format!("not applicable: {reason}")),
            Outcome::Unavailable { reason } => Some(format!("not available here: {reason}")),
            Outcome::NotPrepared { reason } | Outcome::Interrupted { reason } => {
                Some(reason.clone())
            }
            Outcome::Failed { reason, .. } => Some(format!("FAILED: {reason}")),
        }
    }
}

/// The figures of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sample {
    /// The measured time.
    pub(crate) seconds: f64,
    /// Correct completions within it.
    pub(crate) ops: u64,
    pub(crate) ops_per_second: f64,
    /// In millions of bytes.
    pub(crate) megabytes_per_second: f64,
    pub(crate) latency_ns: Latency,
    /// Processor time of the whole process per operation, kernel threads of the ring included.
    pub(crate) cpu_us_per_op: f64,
    /// Calls that submit or wait (for a ring: enters) per operation.
    pub(crate) calls_per_op: Option<f64>,
    /// The most memory that was resident in this process during the run, mapped files included.
    #[serde(default)]
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) checks: Checks,
    /// The share of the file in the page cache before the run.
    pub(crate) resident_before: f64,
    /// The run ended early because every block had been used.
    pub(crate) ran_out_of_blocks: bool,
    /// Processors used by other processes and the kernel, on average.
    pub(crate) others_busy: f64,
    /// Processors withheld by the hypervisor, on average.
    pub(crate) stolen: f64,
    pub(crate) note: Option<String>,
    /// The measured time in slices, with `--timeline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeline: Option<Timeline>,
}

impl Sample {
    pub(crate) fn add_note(&mut self, more: &str) {
        let note = self.note.take().map_or(String::new(), |note| note + "; ");
        self.note = Some(note + more);
    }
}

/// Latencies from submission to completion.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p99_9: u64,
    pub(crate) p99_99: u64,
    pub(crate) max: u64,
}

/// The checks of the data of all completions, including the ramp and the drain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Checks {
    /// The number of completions of the run.
    pub(crate) completions: u64,
    /// Completions with the right length and, in a file that the tool created, the right content.
    pub(crate) correct: u64,
    pub(crate) wrong: u64,
    pub(crate) errors: u64,
    /// Operations checked again after the run: writes, and reads of a file of unknown content.
    pub(crate) compared_afterwards: u64,
    pub(crate) wrong_afterwards: u64,
}

impl Checks {
    /// Returns the number of completions that are wrong, whenever that was detected.
    pub(crate) fn bad(&self) -> u64 {
        self.wrong + self.errors + self.wrong_afterwards
    }
}

impl Figures for Report {
    fn timelines(&mut self) -> impl Iterator<Item = &mut Option<Timeline>> {
        let samples = self.runs.iter_mut().map(|run| run.outcome.any_sample_mut());
        samples.flatten().map(|sample| &mut sample.timeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::schema_is_current;

    #[test]
    fn the_schema_in_the_repository_is_current() {
        schema_is_current("bench-file.json", &schemars::schema_for!(Report));
    }
}
