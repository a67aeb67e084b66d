//! The JSON of `annulus bench nop`. Its schema is `schema/bench-nop.json`.

use serde::Serialize;

use super::layers::Layer;
use crate::bench::machine::Machine;
use crate::bench::stats::{Spread, median};
use crate::trace::{AtDepth, Traced};

/// The version of the format. It changes when a reader of older files would misread a newer file.
pub(crate) const VERSION: u32 = 1;
/// The layer that all others are compared with.
const REFERENCE: &str = "abi-defer";

/// One comparison of `annulus bench nop`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The version of this format.
    pub(crate) version: u32,
    /// The version of the command that wrote it.
    pub(crate) annulus: String,
    /// The command as it was typed.
    pub(crate) command: Vec<String>,
    /// The start time, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    /// The seed of the order of runs. `--seed` with this number repeats the order.
    pub(crate) seed: u64,
    pub(crate) machine: Machine,
    pub(crate) depths: Vec<usize>,
    pub(crate) runtime_seconds: f64,
    pub(crate) repeats: usize,
    pub(crate) layers: Vec<LayerFacts>,
    /// All runs, in the order in which they were made.
    pub(crate) runs: Vec<Run>,
    /// The tables: one row per depth and layer.
    pub(crate) rows: Vec<Row>,
    /// With `--syscalls` or `--flamegraph`: an extra run of each layer at each depth, after `runs`.
    pub(crate) traced: Vec<Traced<AtDepth>>,
    /// Set if a signal ended the benchmark early: runs are missing, or the last one was cut short.
    pub(crate) interrupted: bool,
    pub(crate) verdict: String,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LayerFacts {
    pub(crate) name: String,
    pub(crate) about: String,
}

/// One run of one layer at one depth.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Run {
    pub(crate) depth: usize,
    /// The number of the repeat, from 1.
    pub(crate) repeat: usize,
    pub(crate) layer: String,
    pub(crate) sample: Option<Sample>,
    /// The reason why there is no sample, or why the run is shorter than requested.
    pub(crate) reason: Option<String>,
    /// True for a failure. False if the machine lacks a feature, such as the ring.
    pub(crate) failed: bool,
}

/// The numbers of a run.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) ns_per_op: f64,
    /// Processor time of the whole process.
    pub(crate) cpu_ns_per_op: f64,
    /// `io_uring_enter` calls. Absent for a layer without a ring.
    pub(crate) enters_per_op: Option<f64>,
    /// Voluntary and involuntary context switches of all threads of the process.
    pub(crate) context_switches_per_op: f64,
    /// Processors that other processes and the kernel kept busy, on average.
    pub(crate) others_busy: f64,
    /// Processors that the hypervisor withheld, on average.
    pub(crate) stolen: f64,
}

/// One layer at one depth: medians over its runs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    pub(crate) depth: usize,
    pub(crate) layer: String,
    pub(crate) medians: Option<Medians>,
    pub(crate) reason: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Medians {
    pub(crate) ns_per_op: Spread,
    pub(crate) cpu_ns_per_op: Spread,
    /// Millions of operations per second.
    pub(crate) mops_per_second: f64,
    pub(crate) enters_per_op: Option<f64>,
    pub(crate) context_switches_per_op: f64,
    /// Nanoseconds above `abi-defer` in the same repeat. `cpu_ns_over_reference` is the processor time.
    pub(crate) ns_over_reference: Option<Spread>,
    pub(crate) cpu_ns_over_reference: Option<Spread>,
}

/// Returns the rows of one depth, from the lowest layer to the highest.
pub(crate) fn rows(runs: &[Run], depth: usize, layers: &[Layer]) -> Vec<Row> {
    layers
        .iter()
        .map(|layer| row(runs, depth, layer.name()))
        .collect()
}

fn row(runs: &[Run], depth: usize, layer: &str) -> Row {
    let of = |layer: &str| -> Vec<(usize, &Sample)> {
        (runs.iter())
            .filter(|run| run.depth == depth && run.layer == layer)
            .filter_map(|run| Some((run.repeat, run.sample.as_ref()?)))
            .collect()
    };
    let (own, reference) = (of(layer), of(REFERENCE));
    let column = |value: fn(&Sample) -> f64| -> Vec<f64> {
        own.iter().map(|(_, sample)| value(sample)).collect()
    };
    let over = |value: fn(&Sample) -> f64| {
        let differences: Vec<f64> = (own.iter())
            .filter_map(|(repeat, sample)| {
                let (_, reference) = reference.iter().find(|(same, _)| same == repeat)?;
                Some(value(sample) - value(reference))
            })
            .collect();
        Spread::of(&differences)
    };
    let enters: Vec<f64> = (own.iter())
        .filter_map(|(_, sample)| sample.enters_per_op)
        .collect();
    let medians = || {
        let ns_per_op = Spread::of(&column(|sample| sample.ns_per_op))?;
        Some(Medians {
            ns_per_op,
            cpu_ns_per_op: Spread::of(&column(|sample| sample.cpu_ns_per_op))?,
            mops_per_second: 1000.0 / ns_per_op.median,
            enters_per_op: median(&enters),
            context_switches_per_op: median(&column(|sample| sample.context_switches_per_op))?,
            ns_over_reference: over(|sample| sample.ns_per_op),
            cpu_ns_over_reference: over(|sample| sample.cpu_ns_per_op),
        })
    };
    Row {
        depth,
        layer: layer.to_string(),
        medians: medians(),
        reason: (runs.iter())
            .filter(|run| run.depth == depth && run.layer == layer)
            .find_map(|run| run.reason.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::json::schema_is_current;

    #[test]
    fn the_schema_of_nops_in_the_repository_is_that_of_the_structs() {
        schema_is_current("bench-nop.json", &schemars::schema_for!(Report));
    }

    #[test]
    fn differences_are_taken_inside_a_repeat() {
        let run = |repeat, layer: &str, ns_per_op| Run {
            depth: 8,
            repeat,
            layer: layer.into(),
            sample: Some(Sample {
                ns_per_op,
                ..Sample::default()
            }),
            reason: None,
            failed: false,
        };
        let runs = [
            run(1, REFERENCE, 50.0),
            run(1, "annulus", 150.0),
            run(2, "annulus", 300.0),
            run(2, REFERENCE, 100.0),
            run(3, "annulus", 70.0),
        ];
        let medians = row(&runs, 8, "annulus").medians.unwrap();
        assert_eq!(medians.ns_over_reference, Spread::of(&[100.0, 200.0]));
        assert_eq!(medians.ns_per_op.median, 150.0);
    }
}
