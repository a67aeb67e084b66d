//! Rows from runs: medians over the repeats, and ratios within each repeat.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{Outcome, Run, Sample};
use super::variant::{Side, side};
use crate::bench::spread::{Spread, median};

/// One variant at one depth.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    pub(crate) depth: usize,
    pub(crate) variant: String,
    pub(crate) side: Side,
    /// The hand-written ring that `ratio_to_base` is relative to: the fastest at this depth.
    #[serde(default)]
    pub(crate) base: Option<String>,
    /// The figures in which the fastest form of Annulus at this depth loses to this variant.
    #[serde(default)]
    pub(crate) annulus_loses: Vec<Loss>,
    /// The number of its runs with a sample.
    pub(crate) samples: usize,
    /// Medians over the samples; absent if there are none.
    pub(crate) medians: Option<Medians>,
    /// The reason why samples are missing.
    pub(crate) reason: Option<String>,
    /// A remark on the figures.
    pub(crate) note: Option<String>,
}

/// A figure in which Annulus is behind by more than the spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Loss {
    OpsPerSecond,
    Cpu,
}

/// The figures of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    #[serde(default)]
    pub(crate) peak_rss_bytes: Option<f64>,
    /// Operations per second relative to the best baseline in the same repeat.
    pub(crate) ratio_to_best_baseline: Option<Spread>,
    /// Operations per second relative to the fastest hand-written ring in the same repeat.
    pub(crate) ratio_to_base: Option<Spread>,
}

/// Returns the rows of one depth: measured variants by falling speed, then `null`, then variants without figures.
pub(crate) fn rows(runs: &[Run], depth: usize) -> Vec<Row> {
    let runs: Vec<&Run> = runs.iter().filter(|run| run.depth == depth).collect();
    let base = fastest(&runs, Side::Base);
    let references = References::of(
        &runs,
        base.as_deref(),
        fastest(&runs, Side::Annulus).as_deref(),
    );
    let mut names: Vec<&str> = Vec::new();
    for run in &runs {
        if !names.contains(&run.variant.as_str()) {
            names.push(&run.variant);
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
            .then(a.variant.cmp(&b.variant))
    });
    rows
}

/// Returns the variant of a side with the highest median speed.
fn fastest(runs: &[&Run], side: Side) -> Option<String> {
    let mut speeds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for run in runs.iter().filter(|run| self::side(&run.variant) == side) {
        if let Some(sample) = run.outcome.sample() {
            let speeds = speeds.entry(&run.variant).or_default();
            speeds.push(sample.ops_per_second);
        }
    }
    let medians = speeds
        .into_iter()
        .filter_map(|(name, speeds)| Some((name, median(&speeds)?)));
    let best = medians.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(best.0.to_string())
}

/// The speeds that the runs of a depth are compared with, by repeat.
struct References {
    /// The hand-written ring that is the base.
    base_name: Option<String>,
    by_repeat: BTreeMap<usize, Reference>,
}

/// The references of one repeat.
#[derive(Clone, Copy, Default)]
struct Reference {
    /// In operations per second, like the next two.
    base: Option<f64>,
    best_baseline: Option<f64>,
    annulus: Option<f64>,
    /// In microseconds per operation.
    annulus_cpu: Option<f64>,
}

impl References {
    fn of(runs: &[&Run], base: Option<&str>, annulus: Option<&str>) -> References {
        let mut by_repeat: BTreeMap<usize, Reference> = BTreeMap::new();
        for run in runs {
            let Some(sample) = run.outcome.sample() else {
                continue;
            };
            let reference = by_repeat.entry(run.repeat).or_default();
            let name = Some(run.variant.as_str());
            if name == base {
                reference.base = Some(sample.ops_per_second);
            }
            if name == annulus {
                reference.annulus = Some(sample.ops_per_second);
                reference.annulus_cpu = Some(sample.cpu_us_per_op);
            }
            if side(&run.variant) == Side::Baseline {
                let best = reference.best_baseline.unwrap_or(0.0);
                reference.best_baseline = Some(best.max(sample.ops_per_second));
            }
        }
        References {
            base_name: base.map(str::to_string),
            by_repeat,
        }
    }

    /// Returns the ratios of samples to a reference, each within its repeat.
    fn ratios(
        &self,
        samples: &[(usize, &Sample)],
        of: fn(&Sample) -> f64,
        to: fn(&Reference) -> Option<f64>,
    ) -> Option<Spread> {
        let ratios: Vec<f64> = samples
            .iter()
            .filter_map(|(repeat, sample)| {
                let reference = self.by_repeat.get(repeat).and_then(to);
                Some(of(sample) / reference.filter(|&value| value > 0.0)?)
            })
            .collect();
        Spread::of(&ratios)
    }

    /// Returns the figures in which the fastest form of Annulus loses to a variant with these samples.
    fn annulus_loses(&self, name: &str, samples: &[(usize, &Sample)]) -> Vec<Loss> {
        if matches!(side(name), Side::Annulus | Side::Null) {
            return Vec::new();
        }
        let speed = |sample: &Sample| sample.ops_per_second;
        let speed = self.ratios(samples, speed, |reference| reference.annulus);
        let cpu = |sample: &Sample| sample.cpu_us_per_op;
        let cpu = self.ratios(samples, cpu, |reference| reference.annulus_cpu);
        let faster = speed.filter(|ratio| !ratio.is_level() && ratio.median > 1.0);
        let cheaper = cpu.filter(|ratio| !ratio.is_level() && ratio.median < 1.0);
        let speed = faster.map(|_| Loss::OpsPerSecond);
        speed
            .into_iter()
            .chain(cheaper.map(|_| Loss::Cpu))
            .collect()
    }
}

fn row(runs: &[&Run], name: &str, depth: usize, references: &References) -> Row {
    let own: Vec<&&Run> = runs.iter().filter(|run| run.variant == name).collect();
    let samples: Vec<(usize, &Sample)> = own
        .iter()
        .filter_map(|run| match &run.outcome {
            Outcome::Measured(sample) => Some((run.repeat, &**sample)),
            _ => None,
        })
        .collect();
    let ratio = |to: fn(&Reference) -> Option<f64>| {
        references.ratios(&samples, |sample| sample.ops_per_second, to)
    };
    let plain: Vec<&Sample> = samples.iter().map(|(_, sample)| *sample).collect();
    Row {
        depth,
        variant: name.to_string(),
        side: side(name),
        base: references.base_name.clone(),
        annulus_loses: references.annulus_loses(name, &samples),
        samples: samples.len(),
        medians: medians(
            &plain,
            ratio(|reference| reference.best_baseline),
            ratio(|reference| reference.base),
        ),
        reason: own.iter().find_map(|run| run.outcome.reason()),
        note: samples.iter().find_map(|(_, sample)| sample.note.clone()),
    }
}

fn medians(
    samples: &[&Sample],
    ratio_to_best_baseline: Option<Spread>,
    ratio_to_base: Option<Spread>,
) -> Option<Medians> {
    let column = |of: fn(&Sample) -> f64| {
        samples
            .iter()
            .map(|sample| of(sample))
            .collect::<Vec<f64>>()
    };
    let us = |of: fn(&Sample) -> f64| median(&column(of)).map(|ns| ns / 1000.0);
    let some = |of: fn(&Sample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(|sample| of(sample)).collect();
        median(&values)
    };
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
        calls_per_op: some(|sample| sample.calls_per_op),
        peak_rss_bytes: some(|sample| sample.peak_rss_bytes.map(|bytes| bytes as f64)),
        ratio_to_best_baseline,
        ratio_to_base,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(repeat: usize, variant: &str, ops_per_second: f64) -> Run {
        let sample = Sample {
            ops_per_second,
            ..Sample::default()
        };
        Run {
            position: 0,
            depth: 8,
            repeat,
            variant: variant.into(),
            outcome: Outcome::Measured(Box::new(sample)),
        }
    }

    #[test]
    fn ratios_are_taken_within_a_repeat_and_then_their_median() {
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
            .find(|row| row.variant == "annulus")
            .unwrap()
            .medians
            .clone()
            .unwrap();
        assert_eq!(annulus.ratio_to_base, Spread::of(&[0.9, 1.0, 1.2]));
        assert_eq!(annulus.ratio_to_best_baseline, Spread::of(&[1.8, 0.5, 3.0]));
        let order: Vec<&str> = rows.iter().map(|row| row.variant.as_str()).collect();
        assert_eq!(order, ["base", "annulus", "pread", "mmap"]);
    }

    #[test]
    fn the_base_is_the_fastest_hand_written_ring_and_losses_exceed_the_spread() {
        let mut runs = Vec::new();
        for (repeat, hand, annulus, peer) in [(1, 130.0, 100.0, 95.0), (2, 120.0, 90.0, 99.0)] {
            runs.extend([
                run(repeat, "base", 100.0),
                run(repeat, "base-chunk2", hand),
                run(repeat, "annulus-own", annulus),
                run(repeat, "annulus", annulus / 2.0),
                run(repeat, "pread", peer),
            ]);
        }
        let rows = rows(&runs, 8);
        let row = |name: &str| rows.iter().find(|row| row.variant == name).unwrap();
        assert!(
            rows.iter()
                .all(|row| row.base.as_deref() == Some("base-chunk2"))
        );
        let base = row("base-chunk2");
        let ratio = base.medians.as_ref().unwrap().ratio_to_base;
        assert_eq!(ratio, Spread::of(&[1.0, 1.0]));
        assert_eq!(base.annulus_loses, [Loss::OpsPerSecond]);
        assert_eq!(row("pread").annulus_loses, [], "0.95 and 1.1 are level");
        assert_eq!(row("annulus").annulus_loses, []);
    }
}
