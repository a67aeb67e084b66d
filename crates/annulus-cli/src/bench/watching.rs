//! Checks alert rules on the runs of each comparison.

use annulus::metrics::Histogram;
use annulus_baselines::slices::bounds;
use annulus_observe::alert::Rule;

use super::job::Plan;
use super::json::{self, Outcome};
use super::net;
use super::timeline::Timeline;
use super::variant::{Side, side};
use crate::fault::Fault;
use crate::watching::{Interval, Judge, Measured, Verdict};

pub(crate) fn of_file(rules: &[Rule], plan: &Plan) -> Result<Judge, Fault> {
    let operations: &[&'static str] = match plan.write_percent {
        0 => &["read_at"],
        100 => &["write_at"],
        _ => &["read_at", "write_at"],
    };
    let measured = Measured {
        command: "bench file",
        operations,
        runtime: plan.runtime,
    };
    Judge::new(rules, &measured)
}

pub(crate) fn of_net(options: &net::Options) -> Result<Judge, Fault> {
    let measured = Measured {
        command: "bench net",
        operations: &["request"],
        runtime: options.runtime,
    };
    Judge::new(&options.watch.alert, &measured)
}

pub(crate) fn judge_file(judge: &Judge, runs: &[json::Run]) -> Verdict {
    let mut verdict = Verdict::default();
    for run in runs {
        let sample = match &run.outcome {
            Outcome::Measured(sample)
            | Outcome::Failed {
                sample: Some(sample),
                ..
            } => sample,
            _ => continue,
        };
        let name = format!(
            "{}, depth {}, repeat {}",
            run.variant, run.depth, run.repeat
        );
        let counts = side(&run.variant) == Side::Annulus;
        judge.check(
            &mut verdict,
            &name,
            counts,
            run.depth,
            &slices(sample.timeline.as_ref()),
        );
    }
    verdict.report();
    verdict
}

/// Checks the rules on the external server, or on the variants of Annulus.
pub(crate) fn judge_net(judge: &Judge, options: &net::Options, runs: &[net::Run]) -> Verdict {
    let mut verdict = Verdict::default();
    for run in runs {
        let Some(sample) = &run.sample else { continue };
        let size = run
            .size
            .map_or(String::new(), |size| format!(", {size} bytes"));
        let name = format!(
            "{}, {} connections{size}, repeat {}",
            run.variant, run.connections, run.repeat
        );
        let counts = options.is_there(&run.variant) || run.variant.starts_with("annulus");
        let in_flight = run.connections * options.pipeline;
        judge.check(
            &mut verdict,
            &name,
            counts,
            in_flight,
            &slices(sample.timeline.as_ref()),
        );
    }
    verdict.report();
    verdict
}

fn slices(timeline: Option<&Timeline>) -> Vec<Interval> {
    let slices = timeline.into_iter().flat_map(Timeline::slices);
    let intervals = slices.map(|slice| {
        let mut latency = Histogram::new();
        for (bucket, count) in slice.latency.0 {
            let (first, last) = bounds(bucket);
            // The middle of the bucket minimizes the error of the mean.
            latency.record_many(first.midpoint(last), count);
        }
        Interval {
            length_ns: slice.length_ns,
            completed: slice.completions + slice.errors,
            errors: slice.errors,
            latency,
        }
    });
    intervals
        .filter(|interval| interval.length_ns > 0)
        .collect()
}
