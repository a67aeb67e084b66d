//! The comparison of two reports: the differences, and whether they exceed chance.
//!
//! There is no test of significance, because repeats are few and disturbances are not normally distributed. A
//! difference counts if all repeats of one run lie beyond all of the other and the medians differ by more than 3 %.

use super::model::{Comparison, VariantRuns};
use crate::bench::numbers::{grouped, short};
use crate::bench::spread::Spread;

/// Differences up to this share count as none.
const LEVEL: f64 = 0.03;
/// The number of repeats below which their spread is meaningless.
const REPEATS_MIN: usize = 3;

/// The significance of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Faster,
    Slower,
    /// The repeats overlap, or the medians are nearly equal.
    Noise,
    TooFewRepeats,
}

impl Judgement {
    pub(super) fn text(self) -> &'static str {
        match self {
            Judgement::Faster => "faster",
            Judgement::Slower => "slower",
            Judgement::Noise => "noise: within the spread of the repeats",
            Judgement::TooFewRepeats => "too few repeats to tell",
        }
    }
}

/// One variant in one group, in both runs.
pub(super) struct Difference {
    pub(super) group: String,
    pub(super) variant: String,
    pub(super) speeds: [Spread; 2],
    pub(super) p99_us: [Option<f64>; 2],
    pub(super) judgement: Judgement,
}

impl Difference {
    /// Returns the relative difference of the second run from the first.
    pub(super) fn change(&self) -> f64 {
        change(self.speeds[0].median, self.speeds[1].median)
    }

    /// Returns the cells of its row.
    pub(super) fn cells(&self) -> Vec<String> {
        let speed = |spread: &Spread| {
            format!(
                "{} ({}–{})",
                grouped(spread.median),
                grouped(spread.min),
                grouped(spread.max)
            )
        };
        let us = |value: Option<f64>| value.map_or("–".into(), short);
        let p99_change = match self.p99_us {
            [Some(before), Some(after)] => signed(change(before, after)),
            _ => "–".into(),
        };
        vec![
            self.variant.clone(),
            self.group.clone(),
            speed(&self.speeds[0]),
            speed(&self.speeds[1]),
            signed(self.change()),
            us(self.p99_us[0]),
            us(self.p99_us[1]),
            p99_change,
            self.judgement.text().into(),
        ]
    }
}

pub(super) const HEADINGS: [(&str, &str); 9] = [
    ("variant", "the variant"),
    ("group", "which table"),
    (
        "A, per second",
        "the first run: median over the repeats, and the extremes",
    ),
    (
        "B, per second",
        "the second run: median over the repeats, and the extremes",
    ),
    ("change", "of the median, from A to B"),
    ("p99 µs, A", "99 of 100 took at most N µs in the first run"),
    ("p99 µs, B", "99 of 100 took at most N µs in the second run"),
    (
        "change",
        "of the 99th percentile, from A to B; it has no verdict",
    ),
    ("verdict", "whether the speeds differ by more than chance"),
];

fn change(before: f64, after: f64) -> f64 {
    match before > 0.0 {
        true => after / before - 1.0,
        false => 0.0,
    }
}

fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

/// Returns the differences of the variants that both runs measured.
pub(super) fn differences(first: &Comparison, second: &Comparison) -> Vec<Difference> {
    let mut list = Vec::new();
    for group in &first.groups {
        let other = second
            .groups
            .iter()
            .find(|other| other.title == group.title);
        for variant in group.variants.iter().filter(|variant| !variant.null) {
            let twin = other.and_then(|other| {
                let mut variants = other.variants.iter();
                variants.find(|twin| twin.name == variant.name)
            });
            let Some((twin, before, after)) =
                twin.and_then(|twin| Some((twin, variant.speed?, twin.speed?)))
            else {
                continue;
            };
            list.push(Difference {
                group: group.title.clone(),
                variant: variant.name.clone(),
                speeds: [before, after],
                p99_us: [variant.p99_us, twin.p99_us],
                judgement: judge(variant, twin, &before, &after),
            });
        }
    }
    list
}

fn judge(first: &VariantRuns, second: &VariantRuns, before: &Spread, after: &Spread) -> Judgement {
    if first.samples.min(second.samples) < REPEATS_MIN {
        return Judgement::TooFewRepeats;
    }
    match change(before.median, after.median) {
        change if change > LEVEL && after.min > before.max => Judgement::Faster,
        change if change < -LEVEL && after.max < before.min => Judgement::Slower,
        _ => Judgement::Noise,
    }
}

/// Returns the differences of load and machine, which may explain the differences of the results.
pub(super) fn unlike(first: &Comparison, second: &Comparison) -> Vec<String> {
    let both = [
        (&first.load, &second.load),
        (&first.machine, &second.machine),
    ];
    let mut list: Vec<String> = Vec::new();
    for (before, after) in both {
        for (name, value) in before.iter().filter(|(name, _)| *name != "Seed") {
            let twin = after.iter().find(|(other, _)| other == name);
            match twin {
                Some((_, other)) if other == value => {}
                Some((_, other)) => list.push(format!("{name}: {value} in A, {other} in B")),
                None => list.push(format!("{name}: {value} in A, unknown in B")),
            }
        }
    }
    if first.header.annulus != second.header.annulus {
        list.push(format!(
            "Annulus {} in A, {} in B",
            first.header.annulus, second.header.annulus
        ));
    }
    list
}

/// Returns the conclusion in a sentence.
pub(super) fn sentence(differences: &[Difference]) -> String {
    let of = |selected: Judgement| {
        let list: Vec<String> = (differences.iter())
            .filter(|one| one.judgement == selected)
            .map(|one| {
                format!(
                    "{} at {} ({})",
                    one.variant,
                    one.group,
                    signed(one.change())
                )
            })
            .collect();
        list
    };
    let (faster, slower) = (of(Judgement::Faster), of(Judgement::Slower));
    let mut parts = Vec::new();
    for (list, word) in [(&faster, "faster"), (&slower, "slower")] {
        if !list.is_empty() {
            parts.push(format!("B is {word} in {}", list.join(", ")));
        }
    }
    let same = of(Judgement::Noise).len();
    let unknown = of(Judgement::TooFewRepeats).len();
    if same > 0 {
        parts.push(format!(
            "{same} of {} rows differ by no more than noise",
            differences.len()
        ));
    }
    if unknown > 0 {
        parts.push(format!(
            "{unknown} of {} rows have too few repeats to tell",
            differences.len()
        ));
    }
    match parts.is_empty() {
        true => "Nothing was measured in both runs.".into(),
        false => format!("{}.", parts.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(speeds: &[f64]) -> VariantRuns {
        VariantRuns {
            name: "annulus".into(),
            null: false,
            speed: Spread::of(speeds),
            samples: speeds.len(),
            p99_us: None,
            repeats: Vec::new(),
        }
    }

    #[test]
    fn a_difference_counts_only_if_the_repeats_do_not_overlap() {
        let judged = |first: &[f64], second: &[f64]| {
            let (first, second) = (variant(first), variant(second));
            judge(
                &first,
                &second,
                &first.speed.unwrap(),
                &second.speed.unwrap(),
            )
        };
        let base = [100.0, 101.0, 102.0];
        assert_eq!(judged(&base, &[110.0, 111.0, 112.0]), Judgement::Faster);
        assert_eq!(judged(&base, &[90.0, 91.0, 99.0]), Judgement::Slower);
        assert_eq!(judged(&base, &[101.5, 120.0, 130.0]), Judgement::Noise);
        assert_eq!(judged(&base, &[102.5, 103.0, 103.1]), Judgement::Noise);
        assert_eq!(judged(&base, &[200.0, 201.0]), Judgement::TooFewRepeats);
    }
}
