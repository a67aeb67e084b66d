//! Medians over repeats, with their extremes.

use serde::{Deserialize, Serialize};

/// A number that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Two variants are level if their ratio differs from 1 by no more than this.
const LEVEL: f64 = 0.03;

impl Spread {
    /// Returns whether this ratio shows no difference: its extremes lie on both sides of 1, or its median is within 3 %
    /// of 1.
    pub(crate) fn is_level(&self) -> bool {
        let certain = self.min > 1.0 || self.max < 1.0;
        !certain || (self.median - 1.0).abs() <= LEVEL
    }

    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        Some(Spread {
            median: median(values)?,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Returns the distance between the extremes, as a share of the median.
    pub(crate) fn relative(&self) -> f64 {
        if self.median > 0.0 {
            (self.max - self.min) / self.median
        } else {
            0.0
        }
    }
}

/// Returns the middle value, or the mean of the two in the middle.
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

    #[test]
    fn a_ratio_with_1_between_its_extremes_or_near_1_is_level() {
        let level = |values: &[f64]| Spread::of(values).unwrap().is_level();
        assert!(level(&[0.9, 1.2, 1.3]) && level(&[1.01, 1.02, 1.03]));
        assert!(!level(&[1.1, 1.2, 1.3]) && !level(&[0.8, 0.9]));
    }
}
