//! From runs to rows: medians over the repeats, ratios inside each repeat.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contender::{BASE, Side, side};
use super::json::{Outcome, Run, Sample};

/// A number that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        Some(Spread {
            median: median(values)?,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// How far apart the extremes are, as a share of the median.
    pub(crate) fn relative(&self) -> f64 {
        if self.median > 0.0 {
            (self.max - self.min) / self.median
        } else {
            0.0
        }
    }
}

/// One contender at one depth.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Row {
    pub(crate) depth: usize,
    pub(crate) contender: String,
    pub(crate) side: Side,
    /// How many of its runs gave a sample.
    pub(crate) samples: usize,
    /// Medians over the samples; absent if there are none.
    pub(crate) medians: Option<Medians>,
    /// Why there are none, or why some are missing.
    pub(crate) reason: Option<String>,
    /// What a reader of the row should know.
    pub(crate) note: Option<String>,
}

/// What a row says.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Medians {
    pub(crate) ops_per_second: Spread,
    pub(crate) megabytes_per_second: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) p99_99_us: f64,
    pub(crate) max_us: f64,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) calls_per_op: Option<f64>,
    /// Operations per second over those of the best peer in the same repeat.
    pub(crate) ratio_to_best_peer: Option<Spread>,
    /// Operations per second over those of the base in the same repeat.
    pub(crate) ratio_to_base: Option<Spread>,
}

/// The rows of one depth: the measured ones by falling speed, `null` last among them, then the others.
pub(crate) fn rows(runs: &[Run], depth: usize) -> Vec<Row> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.depth == depth).collect();
    let references = references(&runs);
    let mut names: Vec<&str> = Vec::new();
    for run in &runs {
        if !names.contains(&run.contender.as_str()) {
            names.push(&run.contender);
        }
    }
    let mut rows: Vec<Row> = names
        .iter()
        .map(|name| row(&runs, name, depth, &references))
        .collect();
    let key = |row: &Row| {
        row.medians
            .as_ref()
            .map_or(f64::NEG_INFINITY, |medians| medians.ops_per_second.median)
    };
    rows.sort_by(|a, b| {
        let null = (a.side == Side::Null).cmp(&(b.side == Side::Null));
        let measured = b.medians.is_some().cmp(&a.medians.is_some());
        measured
            .then(null)
            .then(key(b).total_cmp(&key(a)))
            .then(a.contender.cmp(&b.contender))
    });
    rows
}

/// The base and the best peer of a repeat, in operations per second.
#[derive(Clone, Copy, Default)]
struct Reference {
    base: Option<f64>,
    best_peer: Option<f64>,
}

fn references(runs: &[&Run]) -> BTreeMap<usize, Reference> {
    let mut references: BTreeMap<usize, Reference> = BTreeMap::new();
    for run in runs {
        let Outcome::Measured(sample) = &run.outcome else {
            continue;
        };
        let reference = references.entry(run.repeat).or_default();
        if run.contender == BASE {
            reference.base = Some(sample.ops_per_second);
        }
        if side(&run.contender) == Side::Peer {
            let best = reference.best_peer.unwrap_or(0.0);
            reference.best_peer = Some(best.max(sample.ops_per_second));
        }
    }
    references
}

fn row(runs: &[&Run], name: &str, depth: usize, references: &BTreeMap<usize, Reference>) -> Row {
    let own: Vec<&&Run> = runs.iter().filter(|run| run.contender == name).collect();
    let samples: Vec<(usize, &Sample)> = own
        .iter()
        .filter_map(|run| match &run.outcome {
            Outcome::Measured(sample) => Some((run.repeat, &**sample)),
            _ => None,
        })
        .collect();
    let ratio = |to: fn(&Reference) -> Option<f64>| {
        let ratios: Vec<f64> = samples
            .iter()
            .filter_map(|(repeat, sample)| {
                let reference = references
                    .get(repeat)
                    .and_then(to)
                    .filter(|&value| value > 0.0)?;
                Some(sample.ops_per_second / reference)
            })
            .collect();
        Spread::of(&ratios)
    };
    let plain: Vec<&Sample> = samples.iter().map(|(_, sample)| *sample).collect();
    Row {
        depth,
        contender: name.to_string(),
        side: side(name),
        samples: samples.len(),
        medians: medians(
            &plain,
            ratio(|reference| reference.best_peer),
            ratio(|reference| reference.base),
        ),
        reason: own.iter().find_map(|run| run.outcome.reason()),
        note: samples.iter().find_map(|(_, sample)| sample.note.clone()),
    }
}

fn medians(
    samples: &[&Sample],
    ratio_to_best_peer: Option<Spread>,
    ratio_to_base: Option<Spread>,
) -> Option<Medians> {
    let column = |of: fn(&Sample) -> f64| {
        samples
            .iter()
            .map(|sample| of(sample))
            .collect::<Vec<f64>>()
    };
    let us = |of: fn(&Sample) -> f64| median(&column(of)).map(|ns| ns / 1000.0);
    let calls: Vec<f64> = samples
        .iter()
        .filter_map(|sample| sample.calls_per_op)
        .collect();
    Some(Medians {
        ops_per_second: Spread::of(&column(|sample| sample.ops_per_second))?,
        megabytes_per_second: median(&column(|sample| sample.megabytes_per_second))?,
        mean_us: us(|sample| sample.latency_ns.mean)?,
        p50_us: us(|sample| sample.latency_ns.p50 as f64)?,
        p90_us: us(|sample| sample.latency_ns.p90 as f64)?,
        p99_us: us(|sample| sample.latency_ns.p99 as f64)?,
        p99_9_us: us(|sample| sample.latency_ns.p99_9 as f64)?,
        p99_99_us: us(|sample| sample.latency_ns.p99_99 as f64)?,
        max_us: us(|sample| sample.latency_ns.max as f64)?,
        cpu_us_per_op: median(&column(|sample| sample.cpu_us_per_op))?,
        calls_per_op: median(&calls),
        ratio_to_best_peer,
        ratio_to_base,
    })
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    fn run(repeat: usize, contender: &str, ops_per_second: f64) -> Run {
        let sample = Sample {
            ops_per_second,
            ..Sample::default()
        };
        Run {
            position: 0,
            depth: 8,
            repeat,
            contender: contender.into(),
            outcome: Outcome::Measured(Box::new(sample)),
        }
    }

    #[test]
    fn ratios_are_taken_inside_a_repeat_and_then_their_median() {
        let runs = [
            run(1, "base", 100.0),
            run(1, "annulus", 90.0),
            run(1, "pread", 50.0),
            run(2, "annulus", 200.0),
            run(2, "base", 200.0),
            run(2, "pread", 400.0),
            run(3, "base", 50.0),
            run(3, "mmap", 20.0),
            run(3, "annulus", 60.0),
            run(3, "pread", 10.0),
        ];
        let rows = rows(&runs, 8);
        let annulus = rows
            .iter()
            .find(|row| row.contender == "annulus")
            .unwrap()
            .medians
            .clone()
            .unwrap();
        assert_eq!(annulus.ratio_to_base, Spread::of(&[0.9, 1.0, 1.2]));
        assert_eq!(annulus.ratio_to_best_peer, Spread::of(&[1.8, 0.5, 3.0]));
        let order: Vec<&str> = rows.iter().map(|row| row.contender.as_str()).collect();
        assert_eq!(order, ["base", "annulus", "pread", "mmap"]);
    }
}
