//! The conclusion from the figures: a sentence, and warnings that each name an option.

use super::json::{Outcome, Run, Sample};
use super::plan::Plan;
use super::stats::Row;
use super::variant::{BASE, Side};
use crate::bench::disturbance::{self, RunShares};
use crate::bench::numbers::{grouped, short};
use crate::bench::spread::Spread;
use crate::trace::AtDepth;

/// The spread of repeats from which more of them are needed to compare a variant.
const SPREAD_MAX: f64 = 0.2;
/// The number of operations below which high percentiles are unreliable.
const TAIL_OPS_MIN: u64 = 50_000;

/// Returns the sentence after the tables. A depth whose runs were disturbed gets no verdict.
pub(crate) fn verdict(runs: &[Run], rows: &[Row<AtDepth>], depths: &[usize]) -> String {
    let cells = depths
        .iter()
        .map(|&depth| (disturbance::depth_cell(depth), clause(rows, depth)));
    disturbance::verdict(&shares(runs), cells)
}

fn shares(runs: &[Run]) -> Vec<RunShares> {
    let measured = runs.iter().filter_map(|run| match &run.outcome {
        Outcome::Measured(sample) => Some((run, sample)),
        _ => None,
    });
    measured
        .map(|(run, sample)| RunShares {
            cell: disturbance::depth_cell(run.depth),
            repeat: run.repeat,
            variant: run.variant.clone(),
            others_busy: sample.others_busy,
            stolen: sample.stolen,
        })
        .collect()
}

fn clause(rows: &[Row<AtDepth>], depth: usize) -> Option<String> {
    // Rows are sorted by speed, so the first of a side is its best.
    let of = |side: Side| {
        rows.iter()
            .find(|row| row.place.depth == depth && row.side == side && row.medians.is_some())
    };
    let best_baseline = of(Side::Baseline);
    let Some(annulus) = of(Side::Annulus) else {
        return best_baseline.or_else(|| of(Side::Base)).and_then(speed);
    };
    let medians = annulus.medians.as_ref()?;
    let mut parts = Vec::new();
    if let Some(ratio) = &medians.ratio_to_base {
        let base = annulus.base.as_deref().unwrap_or(BASE);
        parts.push(compared(
            ratio,
            &format!("the best hand-written ring ({base})"),
        ));
    }
    if let (Some(ratio), Some(baseline)) = (&medians.ratio_to_best_baseline, best_baseline) {
        parts.push(compared(
            ratio,
            &format!("the best baseline ({})", baseline.variant),
        ));
    }
    let mut text = format!(
        "at depth {depth} {} does {} ops/s",
        annulus.variant,
        grouped(medians.ops_per_second.median)
    );
    if !parts.is_empty() {
        text += &format!(", {}", parts.join(" and "));
    }
    Some(text)
}

/// Returns the clause for the fastest row if Annulus was not measured.
fn speed(row: &Row<AtDepth>) -> Option<String> {
    let medians = row.medians.as_ref()?;
    let to_base = match (&medians.ratio_to_base, row.side) {
        (Some(ratio), Side::Baseline) => format!(", {:.2} × the base", ratio.median),
        _ => String::new(),
    };
    let ops = grouped(medians.ops_per_second.median);
    Some(format!(
        "at depth {} {} does {ops} ops/s{to_base}",
        row.place.depth, row.variant
    ))
}

fn compared(ratio: &Spread, other: &str) -> String {
    let number = ratio.median;
    match number {
        _ if ratio.is_level() => format!("level with {other} ({number:.2} ×)"),
        _ if number > 1.0 => format!("{number:.2} × {other}"),
        _ => format!("behind {other} ({number:.2} ×)"),
    }
}

/// Returns the warnings, each for the worst case of its kind and with the option that helps.
pub(crate) fn warnings(plan: &Plan, runs: &[Run], rows: &[Row<AtDepth>]) -> Vec<String> {
    let samples: Vec<(&Run, &Sample)> = runs
        .iter()
        .filter_map(|run| match &run.outcome {
            Outcome::Measured(sample) => Some((run, &**sample)),
            _ => None,
        })
        .collect();
    let mut list = Vec::new();
    list.extend(spread(plan, rows));
    let repeats = format!("--repeat {}", more_repeats(plan));
    list.extend(disturbance::warning(&shares(runs), &repeats));
    if !plan.load.once {
        list.extend(ran_out(&samples));
    }
    list.extend(short_tail(plan, &samples));
    if !rows
        .iter()
        .any(|row| row.side == Side::Base && row.medians.is_some())
    {
        list.push(
            "no hand-written ring could be measured, so there are no ratios to it; its row gives the reason"
                .into(),
        );
    }
    list
}

fn spread(plan: &Plan, rows: &[Row<AtDepth>]) -> Option<String> {
    let wide: Vec<(&Row<AtDepth>, f64)> = rows
        .iter()
        .filter(|row| row.side != Side::Null)
        .filter_map(|row| Some((row, row.medians.as_ref()?.ops_per_second.relative())))
        .filter(|(_, relative)| *relative > SPREAD_MAX)
        .collect();
    let (row, relative) = wide.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!(
        "the repeats of {} of {} rows differ by more than {:.0} % (most: {} at depth {}, {:.0} %): use --repeat {}",
        wide.len(),
        rows.len(),
        SPREAD_MAX * 100.0,
        row.variant,
        row.place.depth,
        relative * 100.0,
        more_repeats(plan)
    ))
}

fn more_repeats(plan: &Plan) -> usize {
    (plan.repeat * 3).max(9)
}

fn ran_out(samples: &[(&Run, &Sample)]) -> Option<String> {
    let hit: Vec<_> = samples
        .iter()
        .filter(|(_, sample)| sample.ran_out_of_blocks)
        .collect();
    let (run, sample) = hit
        .iter()
        .min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))?;
    Some(format!(
        "{} of {} runs ended early because every block had been read once \
         (first: {} after {} s): use a larger file or --size, or a shorter --runtime",
        hit.len(),
        samples.len(),
        run.variant,
        short(sample.seconds)
    ))
}

fn short_tail(plan: &Plan, samples: &[(&Run, &Sample)]) -> Option<String> {
    let fewest = samples.iter().map(|(_, sample)| sample.ops).min()?;
    (fewest < TAIL_OPS_MIN).then(|| {
        format!(
            "p99.9 and max rest on few operations ({fewest} in the shortest run): use --runtime {} if you need them",
            (plan.runtime.as_secs_f64() * 10.0).ceil()
        )
    })
}
