//! Tracing of extra runs: counts system calls and records flame graphs.
//!
//! Tracing slows the traced program, so it follows the measured runs and never overlaps them. perf and strace must be
//! installed. They are started for each run, attached before it begins and stopped after it.

mod calls;
mod flame;
mod perf;
mod report;
mod strace;
#[cfg(test)]
mod tests;
mod tracer;

use std::path::Path;
use std::time::Duration;

use crate::args::TraceArgs;
use crate::fault::Fault;

pub(crate) use calls::Counted;
pub(crate) use flame::Graphs;
pub(crate) use perf::Counter as PerfCounter;
pub(crate) use report::{AtCell, AtDepth, Traced, tables, verdict_on};

/// The length of a recording: enough for a few hundred samples. Counts per operation need a tenth of it.
pub(crate) const RECORDED: Duration = Duration::from_secs(1);

/// The requested tracing.
pub(crate) struct Trace {
    /// The tool that counts system calls, or the reason why none can. `None` if counting is not requested.
    tool: Option<Result<Tool, String>>,
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
            tool: args.syscalls.then(Tool::find),
            graphs,
        })
    }

    pub(crate) fn counts(&self) -> bool {
        self.tool.is_some()
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.counts() || self.graphs.is_some()
    }

    /// Returns the reason why system calls cannot be counted, if counting is requested.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.tool.as_ref()?.as_ref().err().cloned()
    }

    /// Attaches to the processes and starts counting their system calls.
    pub(crate) fn count(&self, pids: &[u32]) -> Result<Counter, String> {
        match &self.tool {
            Some(Ok(tool)) => tool.start(pids),
            Some(Err(why)) => Err(why.clone()),
            None => Err("not requested".into()),
        }
    }
}

/// A program that can count system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// Counts in the kernel with tracepoints. The traced program slows down a little.
    Perf,
    /// Stops the traced program at each call, which slows it down a lot.
    Strace,
}

impl Tool {
    /// Returns the first tool that can count this process's calls.
    fn find() -> Result<Tool, String> {
        let mut reasons = Vec::new();
        for tool in [Tool::Perf, Tool::Strace] {
            match tool.start(&[std::process::id()]).and_then(Counter::stop) {
                Ok(_) => return Ok(tool),
                Err(why) => reasons.push(why),
            }
        }
        Err(format!("not available: {}", reasons.join("; ")))
    }

    fn start(self, pids: &[u32]) -> Result<Counter, String> {
        match self {
            Tool::Perf => PerfCounter::by_name(pids).map(Counter::Perf),
            Tool::Strace => strace::Counter::start(pids).map(Counter::Strace),
        }
    }
}

/// An attached tracer that is counting.
pub(crate) enum Counter {
    Perf(PerfCounter),
    Strace(strace::Counter),
}

impl Counter {
    /// Detaches the tracer and returns the counts.
    pub(crate) fn stop(self) -> Result<Counted, String> {
        match self {
            Counter::Perf(counter) => counter.stop(),
            Counter::Strace(counter) => counter.stop(),
        }
    }
}

/// Returns whether a program is on `PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the path with `-label` inserted before the extension.
pub(crate) fn labelled(path: &Path, label: &str) -> std::path::PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{label}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}
