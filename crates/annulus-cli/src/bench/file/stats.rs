//! Rows of tables from runs: medians over the repeats, and ratios within each repeat.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::Run;
use super::variant::{Side, side};
use crate::bench::spread::{Spread, median};
use crate::trace::AtDepth;

/// One variant at a depth, or in one direction of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row<P> {
    #[serde(flatten)]
    pub(crate) place: P,
    pub(crate) variant: String,
    pub(crate) side: Side,
    /// The variant that `ratio_to_base` is relative to: the fastest hand-written ring, or the engine of the job.
    #[serde(default)]
    pub(crate) base: Option<String>,
    /// The figures in which the fastest form of Annulus loses to this variant.
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
    pub(crate) p50_us: Option<f64>,
    pub(crate) p90_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p99_9_us: Option<f64>,
    pub(crate) p99_99_us: Option<f64>,
    pub(crate) max_us: f64,
    /// The percentiles of a job's `percentile_list`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) percentiles_us: Vec<(f64, f64)>,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) calls_per_op: Option<f64>,
    #[serde(default)]
    pub(crate) peak_rss_bytes: Option<f64>,
    /// Operations per second relative to the best baseline in the same repeat.
    pub(crate) ratio_to_best_baseline: Option<Spread>,
    /// Operations per second relative to the base in the same repeat.
    pub(crate) ratio_to_base: Option<Spread>,
}

/// A run of a variant in the place of a row.
pub(crate) struct Entry<'r> {
    pub(crate) repeat: usize,
    pub(crate) variant: &'r str,
    /// The figures of a run that counts.
    pub(crate) figures: Option<Figures>,
    pub(crate) reason: Option<String>,
    pub(crate) note: Option<String>,
}

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) ops_per_second: f64,
    pub(crate) megabytes_per_second: f64,
    pub(crate) mean_ns: f64,
    pub(crate) max_ns: u64,
    /// In percent, with the latency in ns.
    pub(crate) percentiles: Vec<(f64, u64)>,
    pub(crate) cpu_us_per_op: f64,
    pub(crate) calls_per_op: Option<f64>,
    pub(crate) peak_rss_bytes: Option<u64>,
}

impl Figures {
    fn at(&self, percentile: f64) -> Option<u64> {
        let mut percentiles = self.percentiles.iter();
        let found = percentiles.find(|(one, _)| (one - percentile).abs() < 1e-9);
        found.map(|(_, ns)| *ns)
    }
}

/// Returns the rows of one depth: measured variants by falling speed, then `null`, then variants without figures.
pub(crate) fn rows(runs: &[Run], depth: usize) -> Vec<Row<AtDepth>> {
    let entries = runs.iter().filter(|run| run.depth == depth).map(|run| {
        let sample = run.outcome.sample();
        Entry {
            repeat: run.repeat,
            variant: &run.variant,
            figures: sample.map(|sample| {
                let latency = &sample.latency_ns;
                Figures {
                    ops_per_second: sample.ops_per_second,
                    megabytes_per_second: sample.megabytes_per_second,
                    mean_ns: latency.mean,
                    max_ns: latency.max,
                    percentiles: vec![
                        (50.0, latency.p50),
                        (90.0, latency.p90),
                        (99.0, latency.p99),
                        (99.9, latency.p99_9),
                        (99.99, latency.p99_99),
                    ],
                    cpu_us_per_op: sample.cpu_us_per_op,
                    calls_per_op: sample.calls_per_op,
                    peak_rss_bytes: sample.peak_rss_bytes,
                }
            }),
            reason: run.outcome.reason(),
            note: sample.and_then(|sample| sample.note.clone()),
        }
    });
    let entries: Vec<Entry<'_>> = entries.collect();
    let mut rows = rows_of(&entries, &AtDepth { depth }, &[]);
    let key = |row: &Row<AtDepth>| {
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

/// Returns the rows of one place, in the order in which their variants first ran.
pub(crate) fn rows_of<P: Clone>(
    entries: &[Entry<'_>],
    place: &P,
    percentiles: &[f64],
) -> Vec<Row<P>> {
    let references = References::of(entries);
    let mut names: Vec<&str> = Vec::new();
    for entry in entries {
        if !names.contains(&entry.variant) {
            names.push(entry.variant);
        }
    }
    let row = |name: &&str| {
        let own: Vec<&Entry<'_>> = (entries.iter())
            .filter(|entry| entry.variant == *name)
            .collect();
        let figures: Vec<(usize, &Figures)> = (own.iter())
            .filter_map(|entry| Some((entry.repeat, entry.figures.as_ref()?)))
            .collect();
        Row {
            place: place.clone(),
            variant: name.to_string(),
            side: side(name),
            base: references.base_name.clone(),
            annulus_loses: references.annulus_loses(name, &figures),
            samples: figures.len(),
            medians: medians(&figures, percentiles, &references),
            reason: own.iter().find_map(|entry| entry.reason.clone()),
            note: own.iter().find_map(|entry| entry.note.clone()),
        }
    };
    names.iter().map(row).collect()
}

/// Returns the variant of a side with the highest median speed.
fn fastest<'r>(entries: &[Entry<'r>], side: Side) -> Option<&'r str> {
    let mut speeds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for entry in entries
        .iter()
        .filter(|entry| self::side(entry.variant) == side)
    {
        if let Some(figures) = &entry.figures {
            let speeds = speeds.entry(entry.variant).or_default();
            speeds.push(figures.ops_per_second);
        }
    }
    let medians = speeds
        .into_iter()
        .filter_map(|(name, speeds)| Some((name, median(&speeds)?)));
    let best = medians.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(best.0)
}

/// The speeds that the runs of a place are compared with, by repeat.
struct References {
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
    fn of(entries: &[Entry<'_>]) -> References {
        let (base, annulus) = (
            fastest(entries, Side::Base),
            fastest(entries, Side::Annulus),
        );
        let mut by_repeat: BTreeMap<usize, Reference> = BTreeMap::new();
        for entry in entries {
            let Some(figures) = &entry.figures else {
                continue;
            };
            let reference = by_repeat.entry(entry.repeat).or_default();
            let name = Some(entry.variant);
            if name == base {
                reference.base = Some(figures.ops_per_second);
            }
            if name == annulus {
                reference.annulus = Some(figures.ops_per_second);
                reference.annulus_cpu = Some(figures.cpu_us_per_op);
            }
            if side(entry.variant) == Side::Baseline {
                let best = reference.best_baseline.unwrap_or(0.0);
                reference.best_baseline = Some(best.max(figures.ops_per_second));
            }
        }
        References {
            base_name: base.map(str::to_string),
            by_repeat,
        }
    }

    /// Returns the ratios of figures to a reference, each within its repeat.
    fn ratios(
        &self,
        figures: &[(usize, &Figures)],
        of: fn(&Figures) -> f64,
        to: fn(&Reference) -> Option<f64>,
    ) -> Option<Spread> {
        let ratios: Vec<f64> = figures
            .iter()
            .filter_map(|(repeat, figures)| {
                let reference = self.by_repeat.get(repeat).and_then(to);
                Some(of(figures) / reference.filter(|&value| value > 0.0)?)
            })
            .collect();
        Spread::of(&ratios)
    }

    /// Returns the figures in which the fastest form of Annulus loses to a variant with these figures.
    fn annulus_loses(&self, name: &str, figures: &[(usize, &Figures)]) -> Vec<Loss> {
        if matches!(side(name), Side::Annulus | Side::Null) {
            return Vec::new();
        }
        let speed = |figures: &Figures| figures.ops_per_second;
        let speed = self.ratios(figures, speed, |reference| reference.annulus);
        let cpu = |figures: &Figures| figures.cpu_us_per_op;
        let cpu = self.ratios(figures, cpu, |reference| reference.annulus_cpu);
        let faster = speed.filter(|ratio| !ratio.is_level() && ratio.median > 1.0);
        let cheaper = cpu.filter(|ratio| !ratio.is_level() && ratio.median < 1.0);
        let speed = faster.map(|_| Loss::OpsPerSecond);
        speed
            .into_iter()
            .chain(cheaper.map(|_| Loss::Cpu))
            .collect()
    }
}

fn medians(
    figures: &[(usize, &Figures)],
    percentiles: &[f64],
    references: &References,
) -> Option<Medians> {
    let of = |value: &dyn Fn(&Figures) -> Option<f64>| {
        let values = figures.iter().filter_map(|(_, figures)| value(figures));
        median(&values.collect::<Vec<f64>>())
    };
    let at = |percentile: f64| of(&|one| Some(one.at(percentile)? as f64 / 1e3));
    let ratio = |to| references.ratios(figures, |one| one.ops_per_second, to);
    let speeds: Vec<f64> = figures.iter().map(|(_, one)| one.ops_per_second).collect();
    Some(Medians {
        ops_per_second: Spread::of(&speeds)?,
        megabytes_per_second: of(&|one| Some(one.megabytes_per_second))?,
        mean_us: of(&|one| Some(one.mean_ns / 1e3))?,
        p50_us: at(50.0),
        p90_us: at(90.0),
        p99_us: at(99.0),
        p99_9_us: at(99.9),
        p99_99_us: at(99.99),
        max_us: of(&|one| Some(one.max_ns as f64 / 1e3))?,
        percentiles_us: (percentiles.iter())
            .filter_map(|&percentile| Some((percentile, at(percentile)?)))
            .collect(),
        cpu_us_per_op: of(&|one| Some(one.cpu_us_per_op))?,
        calls_per_op: of(&|one| one.calls_per_op),
        peak_rss_bytes: of(&|one| Some(one.peak_rss_bytes? as f64)),
        ratio_to_best_baseline: ratio(|reference| reference.best_baseline),
        ratio_to_base: ratio(|reference| reference.base),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::file::json::{Outcome, Sample};

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
