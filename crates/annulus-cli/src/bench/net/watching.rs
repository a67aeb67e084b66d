//! Checks alert rules on the runs of a comparison.

use super::json::Run;
use super::options::Options;
use crate::bench::timeline::intervals;
use crate::fault::Fault;
use crate::watching::{Judge, Measured, Verdict};

pub(super) fn judge(options: &Options) -> Result<Judge, Fault> {
    let measured = Measured {
        command: "bench net",
        operations: &["request"],
        runtime: options.args.runtime,
    };
    Judge::new(&options.args.watch.alert, &measured)
}

/// Checks the rules on the external server, or on the variants of Annulus.
pub(super) fn verdict(judge: &Judge, options: &Options, runs: &[Run]) -> Verdict {
    let mut verdict = Verdict::default();
    for run in runs {
        let Some(sample) = &run.sample else { continue };
        let name = format!("{}, {}, repeat {}", run.variant, run.cell, run.repeat);
        let counts = options.is_there(&run.variant) || run.variant.starts_with("annulus");
        let in_flight = run.cell.connections * options.args.pipeline;
        judge.check(
            &mut verdict,
            &name,
            counts,
            in_flight,
            &intervals(sample.timeline.as_ref()),
        );
    }
    verdict.report();
    verdict
}
