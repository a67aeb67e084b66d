//! The results of the extra runs, for the JSON report and as text.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::calls::{Calls, Counted};
use crate::fault::Fault;

/// The number of calls that a line names. The others are added up.
const NAMES_SHOWN: usize = 6;
/// Calls below this number per operation are not named, because they belong to the start and end of the run.
const PER_OP_SHOWN: f64 = 0.0005;

/// The trace of one variant, from an extra run after the measured runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Traced<P> {
    pub(crate) variant: String,
    #[serde(flatten)]
    pub(crate) case: P,
    /// With `--syscalls`: the system calls of the run.
    pub(crate) syscalls: Option<Syscalls>,
    /// The reason why system calls were not counted, and how to enable counting.
    pub(crate) syscalls_note: Option<String>,
    /// With `--flamegraph`: the path of the graph.
    pub(crate) flamegraph: Option<String>,
    /// The number of samples in the graph.
    pub(crate) flamegraph_samples: Option<u64>,
    /// A limitation of the graph, or the reason why there is none.
    pub(crate) flamegraph_note: Option<String>,
}

/// The queue depth of a trace of `bench file`. The counts cover the whole process, including the tool's
/// calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AtDepth {
    pub(crate) depth: usize,
}

/// A cell of `bench net`: the variants are compared within it. The counts of its traces cover the server's process and
/// its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AtCell {
    pub(crate) connections: usize,
    pub(crate) size: Option<u64>,
}

impl AtCell {
    /// Returns the cells of all sizes and numbers of connections.
    pub(crate) fn all(sizes: &[Option<u64>], connections: &[usize]) -> Vec<AtCell> {
        let of_size = |&size| {
            let cell = move |&connections| AtCell { connections, size };
            connections.iter().map(cell)
        };
        sizes.iter().flat_map(of_size).collect()
    }
}

impl fmt::Display for AtCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{} connections, {size} bytes", self.connections),
            None => write!(f, "{} connections", self.connections),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Syscalls {
    /// The tracer: `perf`. Files of earlier versions may have `strace`.
    pub(crate) counted_by: String,
    /// Operations or responses while calls were counted. For `bench file`, this is the whole run.
    pub(crate) ops: u64,
    pub(crate) all: u64,
    pub(crate) all_per_op: f64,
    /// Counts by name, most frequent first. `(others)` are calls that perf does not count by name.
    pub(crate) calls: Vec<Calls>,
}

impl<P> Traced<P> {
    pub(crate) fn new(variant: &str, case: P) -> Traced<P> {
        Traced {
            variant: variant.to_string(),
            case,
            syscalls: None,
            syscalls_note: None,
            flamegraph: None,
            flamegraph_samples: None,
            flamegraph_note: None,
        }
    }

    /// Stores the counts of a run, with its number of operations, or the reason for missing counts.
    pub(crate) fn counted(&mut self, counted: Result<(Counted, u64), String>) {
        match counted {
            Ok((_, 0)) => self.syscalls_note = Some("no operation completed meanwhile".into()),
            Ok((counted, ops)) => {
                self.syscalls = Some(Syscalls {
                    counted_by: "perf".into(),
                    ops,
                    all: counted.all,
                    all_per_op: counted.all as f64 / ops as f64,
                    calls: counted.per_op(ops),
                });
            }
            Err(why) => self.syscalls_note = Some(why),
        }
    }

    /// Stores a written graph, or the reason for a missing one.
    pub(crate) fn drawn(
        &mut self,
        file: &std::path::Path,
        drawn: Result<super::flame::Drawn, String>,
    ) {
        match drawn {
            Ok(drawn) => {
                self.flamegraph = Some(file.display().to_string());
                self.flamegraph_samples = Some(drawn.samples);
                self.flamegraph_note = drawn.note;
            }
            Err(why) => self.flamegraph_note = Some(why),
        }
    }
}

/// Returns the text report: a table for each depth or cell, and a line for each graph.
pub(crate) fn tables<P: PartialEq>(traced: &[Traced<P>], label: impl Fn(&P) -> String) -> String {
    let mut text = String::new();
    let mut cases: Vec<&P> = Vec::new();
    for one in traced {
        if !cases.contains(&&one.case) {
            cases.push(&one.case);
        }
    }
    for case in cases {
        let here: Vec<&Traced<P>> = traced.iter().filter(|one| one.case == *case).collect();
        text += &table(&here, &label(case));
    }
    for one in traced {
        let of = format!("{}, {}", one.variant, label(&one.case));
        let note = one.flamegraph_note.as_ref();
        if let (Some(file), Some(samples)) = (&one.flamegraph, one.flamegraph_samples) {
            let note = note.map_or(String::new(), |note| format!("; {note}"));
            text += &format!("flame graph of {of}: {file} ({samples} samples{note})\n");
        } else if let Some(note) = note {
            text += &format!("no flame graph of {of}: {note}\n");
        }
    }
    text
}

/// Returns an error if a requested graph is missing.
pub(crate) fn verdict_on<P>(traced: &[Traced<P>]) -> Result<(), Fault> {
    let missing = |one: &&Traced<P>| one.flamegraph.is_none() && one.flamegraph_note.is_some();
    let missing = traced.iter().filter(missing);
    let names: Vec<&str> = missing.map(|one| one.variant.as_str()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(failed!(
            "no flame graph of {}; the reason is printed above",
            names.join(", ")
        )),
    }
}

fn table<P>(traced: &[&Traced<P>], case: &str) -> String {
    let counted = |one: &&&Traced<P>| one.syscalls.is_some() || one.syscalls_note.is_some();
    let rows: Vec<_> = traced.iter().filter(counted).collect();
    let Some(by) = traced.iter().find_map(|one| one.syscalls.as_ref()) else {
        // Adjacent variants with the same reason share a line.
        let mut notes: Vec<&str> = (rows.iter())
            .filter_map(|one| one.syscalls_note.as_deref())
            .collect();
        notes.dedup();
        let line = |note: &&str| format!("\nsystem calls, {case}: {note}\n");
        return notes.iter().map(line).collect();
    };
    let widest = rows.iter().map(|one| one.variant.len()).max();
    let width = widest.unwrap_or(0).max("variant".len());
    let mut text = format!(
        "\nsystem calls per operation, {case}, of one more run (counted by {})\n{:width$}       all  \
         by name; [errors]\n{}\n",
        by.counted_by,
        "variant",
        "─".repeat(width + 29)
    );
    for one in rows {
        let name = &one.variant;
        text += &match (&one.syscalls, &one.syscalls_note) {
            (Some(calls), _) => {
                let named = named(&calls.calls);
                format!("{name:width$}  {:>8}  {named}\n", per_op(calls.all_per_op))
            }
            (None, note) => format!("{name:width$}  {}\n", note.as_deref().unwrap_or("–")),
        };
    }
    text
}

/// Formats the most frequent calls, with the others as one number.
fn named(calls: &[Calls]) -> String {
    let shown = (calls.iter().take(NAMES_SHOWN))
        .take_while(|calls| calls.per_op >= PER_OP_SHOWN)
        .count();
    let mut parts: Vec<String> = (calls[..shown].iter())
        .map(|calls| {
            let errors = match calls.errors {
                0 => String::new(),
                errors => format!(" [{errors}]"),
            };
            format!("{} {}{errors}", calls.name, per_op(calls.per_op))
        })
        .collect();
    let rest = &calls[shown..];
    let count: u64 = rest.iter().map(|calls| calls.count).sum();
    if count > 0 {
        let errors: u64 = rest.iter().map(|calls| calls.errors).sum();
        let errors = if errors > 0 {
            format!(" [{errors}]")
        } else {
            String::new()
        };
        parts.push(format!("{count} others in all{errors}"));
    }
    parts.join(", ")
}

fn per_op(value: f64) -> String {
    match value {
        _ if value >= 0.0995 || value == 0.0 => format!("{value:.2}"),
        _ if value >= PER_OP_SHOWN => format!("{value:.4}"),
        _ => "<0.0005".into(),
    }
}
