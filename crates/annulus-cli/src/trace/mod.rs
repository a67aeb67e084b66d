//! Looking into one more run: which system calls were made, and where processor time went.
//!
//! Always after what is measured and never during it, because to look slows what is looked at. perf and strace are
//! programs of the machine; they are started for a run, attached before it begins and ended after it.

mod calls;
mod flame;
mod perf;
mod report;
mod strace;
#[cfg(test)]
mod tests;
mod tracer;

use std::path::Path;

use crate::args::TraceArgs;
use crate::fault::Fault;

pub(crate) use calls::Counted;
pub(crate) use flame::Graphs;
pub(crate) use perf::Counter as PerfCounter;
pub(crate) use report::{AtCell, AtDepth, Traced, failures, tables};

/// What was requested.
pub(crate) struct Trace {
    /// Who counts system calls, or why nobody can; absent if not asked.
    tool: Option<Result<Tool, String>>,
    pub(crate) graphs: Option<Graphs>,
}

impl Trace {
    /// Refuses what will not work, before anything is measured. That nobody can count is no reason to refuse: it is
    /// said where the counts would be.
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

    /// Why nobody can count, if it was requested.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.tool.as_ref()?.as_ref().err().cloned()
    }

    /// Attaches to these processes: what they call from now on is counted.
    pub(crate) fn count(&self, pids: &[u32]) -> Result<Counter, String> {
        match &self.tool {
            Some(Ok(tool)) => tool.start(pids),
            Some(Err(why)) => Err(why.clone()),
            None => Err("not asked for".into()),
        }
    }
}

/// Who can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// In the kernel, by tracepoints: the program is slowed a little.
    Perf,
    /// By stopping the program at each call: it is slowed much.
    Strace,
}

impl Tool {
    /// The first that can count our own process's calls.
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

/// One that counts now.
pub(crate) enum Counter {
    Perf(PerfCounter),
    Strace(strace::Counter),
}

impl Counter {
    /// Detaches; what was called meanwhile.
    pub(crate) fn stop(self) -> Result<Counted, String> {
        match self {
            Counter::Perf(counter) => counter.stop(),
            Counter::Strace(counter) => counter.stop(),
        }
    }
}

/// Whether a program can be started by its name.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A file whose name ends like this one's, with something before that.
fn labelled(path: &Path, label: &str) -> std::path::PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{label}"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}
