//! Checks alert rules on the runs of a comparison.

use annulus_observe::alert::Rule;

use super::json::{Outcome, Run};
use super::plan::Plan;
use super::variant::{Side, side};
use crate::bench::timeline::intervals;
use crate::fault::Fault;
use crate::watching::{Judge, Measured, Verdict};

pub(super) fn judge(rules: &[Rule], plan: &Plan) -> Result<Judge, Fault> {
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

pub(super) fn verdict(judge: &Judge, runs: &[Run]) -> Verdict {
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
            &intervals(sample.timeline.as_ref()),
        );
    }
    verdict.report();
    verdict
}
