//! The JSON of a comparison: all measurements, in the order of the runs. Its schema is generated from these structs and
//! kept in `schema/bench-file.json`.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::layout::{self, Digits};
use super::machine::Machine;
use super::stats::Row;
use super::timeline::{Timeline, on_one_line};
use super::variant::Side;
use crate::fault::Fault;
use crate::signals::Removal;
use crate::trace::{AtDepth, Traced};

/// Incremented when a reader of older files would misinterpret a newer one.
pub(crate) const VERSION: u32 = 1;

/// A comparison of `annulus bench file`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    /// The version of annulus that wrote it.
    pub(crate) annulus: String,
    /// The command line.
    pub(crate) command: Vec<String>,
    /// The start time, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    /// The seed. Passing it to `--seed` repeats the order of runs and blocks.
    pub(crate) seed: u64,
    pub(crate) machine: Machine,
    pub(crate) load: Load,
    pub(crate) variants: Vec<VariantFacts>,
    /// All runs, in order.
    pub(crate) runs: Vec<Run>,
    /// The tables: one row per depth and variant.
    pub(crate) rows: Vec<Row>,
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
    #[serde(
        default,
        serialize_with = "on_one_line",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(test, schemars(with = "Option<Timeline>"))]
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

/// A report whose runs may have timelines.
pub(crate) trait Figures: Clone + Serialize {
    /// Returns the report without its timelines.
    fn without_timelines(&self) -> Self;
}

impl Figures for Report {
    fn without_timelines(&self) -> Report {
        let mut report = self.clone();
        for run in &mut report.runs {
            if let Some(sample) = run.outcome.any_sample_mut() {
                sample.timeline = None;
            }
        }
        report
    }
}

/// The file to write. Everything that can be refused is refused before the measurement.
pub(crate) struct Destination {
    option: &'static str,
    path: PathBuf,
    replace: bool,
}

impl Destination {
    pub(crate) fn new(path: &Path, replace: bool) -> Result<Destination, Fault> {
        Destination::of("--json", path, replace)
    }

    /// Returns the file that `option` names.
    pub(crate) fn of(
        option: &'static str,
        path: &Path,
        replace: bool,
    ) -> Result<Destination, Fault> {
        let shown = path.display();
        if !replace && fs::symlink_metadata(path).is_ok() {
            return Err(Fault::usage(format!(
                "{option} {shown} exists; --replace replaces it"
            )));
        }
        if path.is_dir() || path.file_name().is_none() {
            return Err(Fault::usage(format!(
                "{option} {shown} is a directory; name a file"
            )));
        }
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(Fault::usage(format!(
                "{option} {shown}: the directory {} does not exist",
                folder.display()
            )));
        }
        rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(|error| {
            Fault::usage(format!(
                "{option} {shown}: cannot write in {}: {error}",
                folder.display()
            ))
        })?;
        Ok(Destination {
            option,
            path: path.to_path_buf(),
            replace,
        })
    }

    /// Writes one line per run. With `timelines`, each run keeps its timeline and numbers have all digits, so that a
    /// report from the file is identical to the one from the run.
    pub(crate) fn write<R: Figures>(&self, report: &R, timelines: bool) -> Result<(), Fault> {
        if timelines {
            return self.write_lines(report, Digits::All);
        }
        self.write_lines(&report.without_timelines(), Digits::Six)
    }

    /// Writes a report without timelines, one line per run.
    pub(crate) fn write_figures(&self, report: &impl Serialize) -> Result<(), Fault> {
        self.write_lines(report, Digits::Six)
    }

    fn write_lines(&self, report: &impl Serialize, digits: Digits) -> Result<(), Fault> {
        self.write_with(|file| {
            let mut out = BufWriter::new(file);
            layout::write_lines(&mut out, report, digits)?;
            out.write_all(b"\n")?;
            out.flush()
        })
    }

    /// Writes text.
    pub(crate) fn write_text(&self, text: &str) -> Result<(), Fault> {
        self.write_with(|file| file.write_all(text.as_bytes()))
    }

    /// Writes to a temporary file in the same folder and renames it, so that the file is complete or absent.
    fn write_with(&self, put: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<(), Fault> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(format!(".tmp-{}", std::process::id()));
        let written = self.write_beside(Path::new(&beside), put);
        written.map_err(|error| {
            let hint = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    "; name a file on another disk"
                }
                _ => "",
            };
            let (option, shown) = (self.option, self.path.display());
            Fault::failed(format!(
                "writing {option} {shown}: {error}{hint}; the results are in the table only"
            ))
        })
    }

    fn write_beside(
        &self,
        beside: &Path,
        put: impl FnOnce(&mut File) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut file = File::create_new(beside)?;
        // After the rename there is nothing left to remove.
        let name = beside.to_path_buf();
        let _removal = Removal::new(move || drop(fs::remove_file(name)));
        put(&mut file)?;
        file.sync_all()?;
        if self.replace {
            return fs::rename(beside, &self.path);
        }
        // Another process may have created the file in the meantime.
        renameat_with(CWD, beside, CWD, &self.path, RenameFlags::NOREPLACE)?;
        Ok(())
    }
}

/// Compares a schema with the one in the repository. `UPDATE_SCHEMA=1 cargo test -p annulus-cli schema` writes it.
#[cfg(test)]
pub(crate) fn schema_is_current(name: &str, schema: &schemars::Schema) {
    let path = format!("{}/schema/{name}", env!("CARGO_MANIFEST_DIR"));
    let schema = serde_json::to_string_pretty(schema).unwrap() + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &schema).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == schema,
        "{path} is not current; run: UPDATE_SCHEMA=1 cargo test -p annulus-cli schema"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_in_the_repository_is_current() {
        schema_is_current("bench-file.json", &schemars::schema_for!(Report));
    }
}
