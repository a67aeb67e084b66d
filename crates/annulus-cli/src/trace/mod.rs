//! Tracing of extra runs: counts system calls and records flame graphs.
//!
//! Tracing slows the traced program, so it follows the measured runs and never overlaps them. perf must be installed.
//! It is started for each run, attached before the run begins and stopped after it.

mod calls;
mod flame;
mod perf;
mod report;
#[cfg(test)]
mod tests;
mod tracer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::TraceArgs;
use crate::fault::Fault;

pub(crate) use flame::Graphs;
pub(crate) use perf::Counter;
pub(crate) use report::{AtCell, AtDepth, Traced, tables, verdict_on};

/// The length of a recording: enough for a few hundred samples. Counts per operation need a tenth of it.
pub(crate) const RECORDED: Duration = Duration::from_secs(1);

/// The requested tracing.
pub(crate) struct Trace {
    /// The reason why system calls cannot be counted, if they cannot. `None` if counting is not requested.
    counting: Option<Result<(), String>>,
    pub(crate) graphs: Option<Graphs>,
}

impl Trace {
    /// Checks the request before anything is measured. Fails if flame graphs cannot be recorded. If system calls cannot
    /// be counted, the reason appears in place of the counts.
    pub(crate) fn new(args: &TraceArgs, replace: bool) -> Result<Trace, Fault> {
        let graphs = (args.flamegraph.as_deref())
            .map(|path| Graphs::new(path, replace))
            .transpose()?;
        Ok(Trace {
            counting: args.syscalls.then(may_count),
            graphs,
        })
    }

    pub(crate) fn counts(&self) -> bool {
        self.counting.is_some()
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.counts() || self.graphs.is_some()
    }

    /// Returns the reason why system calls cannot be counted, if counting is requested.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.counting.as_ref()?.as_ref().err().cloned()
    }
}

/// Returns the file of the graph of each case and variant; none if no graphs are requested.
pub(crate) fn files<P>(
    trace: &Trace,
    requested: Vec<(P, String)>,
    label: impl Fn(&P, &str) -> String,
) -> Result<Vec<(P, String, PathBuf)>, Fault> {
    let Some(graphs) = &trace.graphs else {
        return Ok(Vec::new());
    };
    let labels: Vec<String> = (requested.iter())
        .map(|(case, name)| label(case, name))
        .collect();
    let files = requested.into_iter().zip(graphs.files(&labels)?);
    Ok(files
        .map(|((case, name), file)| (case, name, file))
        .collect())
}

/// Counts the calls of this process for a moment, so that a failure shows before the measurement.
fn may_count() -> Result<(), String> {
    match Counter::by_name(&[std::process::id()]).and_then(Counter::stop) {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("not available: {why}")),
    }
}

/// Returns whether a program is on `PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the path with `-label` inserted before the extension.
pub(crate) fn labelled(path: &Path, label: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{label}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}
