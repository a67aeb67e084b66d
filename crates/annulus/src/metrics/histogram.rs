//! Histograms of durations, in buckets that are exact to a sixteenth.

use std::fmt;

/// The number of buckets for each power of two.
const PARTS: usize = 16;
/// Durations below 2 to this power have one bucket per nanosecond.
const EXACT_BITS: u32 = PARTS.ilog2();
/// Durations of at least 2 to this power, in ns (137 s), are counted in the last bucket.
const BITS_MAX: u32 = 37;
/// The number of buckets.
pub(crate) const BUCKETS: usize = (BITS_MAX - EXACT_BITS) as usize * PARTS + PARTS;

/// Returns the bucket for durations of `ns`.
#[inline]
pub(crate) fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << BITS_MAX) - 1);
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - EXACT_BITS)) as usize - PARTS;
    (power - EXACT_BITS + 1) as usize * PARTS + part
}

/// Returns the shortest and the longest duration of `bucket`, in ns.
pub(crate) fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < PARTS {
        return (bucket as u64, bucket as u64);
    }
    let power = bucket / PARTS - 1;
    let first = ((PARTS + bucket % PARTS) as u64) << power;
    (first, first + (1 << power) - 1)
}

/// A histogram of durations. Each duration is exact to a sixteenth (6.25 %). Durations of 137 s and more are counted as
/// 137 s.
///
/// ```
/// use annulus::metrics::Histogram;
///
/// let mut latencies = Histogram::new();
/// assert_eq!(latencies.quantile(0.5), None); // empty
/// latencies.record_many(1_000, 99); // ns
/// latencies.record(1_000_000);
/// let median = latencies.quantile(0.5).unwrap();
/// assert!((1_000..1_063).contains(&median)); // up to 6.25 % too long, never too short
/// assert!(latencies.max_ns() >= 1_000_000);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Empty until a duration is recorded.
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
}

/// A range of durations, and the number of durations in it.
///
/// The lines of a chart:
///
/// ```
/// # let mut latencies = annulus::metrics::Histogram::new();
/// latencies.record_many(1_000, 3);
/// latencies.record(20_000);
/// let lines: Vec<_> = latencies.buckets().map(|bucket| "#".repeat(bucket.count as usize)).collect();
/// assert_eq!(lines, ["###", "#"]); // empty buckets are left out
/// let bucket = latencies.buckets().next().unwrap();
/// assert!((bucket.first_ns..=bucket.last_ns).contains(&1_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// The shortest duration, in ns.
    pub first_ns: u64,
    /// The longest duration, in ns.
    pub last_ns: u64,
    /// The number of durations.
    pub count: u64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Histogram {
        Histogram::default()
    }

    pub(crate) fn of(counts: impl Iterator<Item = u64>, sum_ns: u64) -> Histogram {
        let counts: Vec<u64> = counts.collect();
        // Another process may have written any numbers.
        let count = counts.iter().copied().fold(0, u64::saturating_add);
        match count {
            0 => Histogram::new(),
            _ => Histogram {
                counts,
                count,
                sum_ns,
            },
        }
    }

    /// Records a duration.
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Records `count` equal durations.
    pub fn record_many(&mut self, ns: u64, count: u64) {
        if count == 0 {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        let counted = &mut self.counts[bucket(ns)];
        *counted = counted.saturating_add(count);
        self.count = self.count.saturating_add(count);
        self.sum_ns = (self.sum_ns).saturating_add(ns.saturating_mul(count));
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of all durations, in ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the mean duration in ns, or 0 if the histogram is empty.
    ///
    /// A few slow operations move the mean, not the median:
    ///
    /// ```
    /// # let mut latencies = annulus::metrics::Histogram::new();
    /// latencies.record_many(1_000, 99);
    /// latencies.record(10_000_000);
    /// assert!(latencies.mean_ns() > 100_000.0);
    /// assert!(latencies.quantile(0.5).unwrap() < 1_100);
    /// ```
    pub fn mean_ns(&self) -> f64 {
        match self.count {
            0 => 0.0,
            count => self.sum_ns as f64 / count as f64,
        }
    }

    /// Returns the duration in ns that a share `quantile` of all durations did not exceed (0.99 for the 99th
    /// percentile), rounded up to the end of its bucket. Returns `None` if the histogram is empty.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the count, and whole; floats saturate"
    )]
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let rank = (quantile.clamp(0.0, 1.0) * self.count as f64)
            .ceil()
            .max(1.0) as u64;
        // A count beyond 2^53 is rounded, perhaps upwards.
        let rank = rank.min(self.count.max(1));
        let mut cumulative: u64 = 0;
        let bucket = self.counts.iter().position(|count| {
            cumulative = cumulative.saturating_add(*count);
            cumulative >= rank
        })?;
        Some(bounds(bucket).1)
    }

    /// Returns the longest duration in ns, rounded like [`quantile`](Histogram::quantile), or 0 if the histogram is
    /// empty.
    pub fn max_ns(&self) -> u64 {
        self.quantile(1.0).unwrap_or(0)
    }

    /// Returns the non-empty buckets, from the shortest duration to the longest.
    ///
    /// ```
    /// # let mut latencies = annulus::metrics::Histogram::new(); latencies.record(1_000); latencies.record(9_000);
    /// let slow: u64 = latencies
    ///     .buckets()
    ///     .filter(|bucket| bucket.first_ns >= 5_000)
    ///     .map(|bucket| bucket.count)
    ///     .sum();
    /// assert_eq!(slow, 1);
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let counted = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        counted.map(|(index, count)| {
            let (first_ns, last_ns) = bounds(index);
            Bucket {
                first_ns,
                last_ns,
                count: *count,
            }
        })
    }

    /// Adds the durations of `other`.
    pub fn add(&mut self, other: &Histogram) {
        if other.counts.is_empty() {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS];
        }
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.saturating_add(*other);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the durations recorded since `earlier`, an earlier state of this histogram.
    ///
    /// Quantiles of the last interval, not of the whole run:
    ///
    /// ```
    /// # let mut latencies = annulus::metrics::Histogram::new();
    /// latencies.record_many(1_000, 1_000_000);
    /// let earlier = latencies.clone();
    /// latencies.record_many(50_000, 10); // something became slow
    /// assert!(latencies.quantile(0.99).unwrap() < 2_000); // hidden by the past
    /// assert!(latencies.since(&earlier).quantile(0.5).unwrap() >= 50_000);
    /// ```
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        if earlier.counts.is_empty() {
            return self.clone();
        }
        let both = self.counts.iter().zip(&earlier.counts);
        Histogram::of(
            both.map(|(now, then)| now.saturating_sub(*then)),
            self.sum_ns.saturating_sub(earlier.sum_ns),
        )
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Histogram");
        debug.field("count", &self.count);
        for (name, quantile) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("max_ns", 1.0)] {
            if let Some(ns) = self.quantile(quantile) {
                debug.field(name, &ns);
            }
        }
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_within_its_bucket_and_buckets_are_contiguous() {
        for index in 1..BUCKETS {
            assert_eq!(bounds(index).0, bounds(index - 1).1 + 1, "bucket {index}");
        }
        let mut rng = 1u64;
        for round in 0..100_000 {
            rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1);
            let ns = rng >> (27 + round % 37);
            let (first, last) = bounds(bucket(ns));
            assert!(
                (first..=last).contains(&ns),
                "{ns} is not in {first}..={last}"
            );
            assert!(last - first <= ns / 16, "{first}..={last} is wide");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bounds(BUCKETS - 1).1, (1 << BITS_MAX) - 1);
    }

    #[test]
    fn counts_of_another_process_saturate() {
        let mut counts = vec![u64::MAX; BUCKETS];
        counts[0] = (1 << 63) + 1;
        let mut all = Histogram::of(counts.clone().into_iter(), u64::MAX);
        all.add(&Histogram::of(counts.into_iter(), 1));
        assert_eq!(all.count(), u64::MAX);
        assert!(all.quantile(0.5) <= all.quantile(1.0) && all.quantile(1.0).is_some());
        let odd = Histogram::of([(1 << 63) + 1].into_iter(), 0);
        assert_eq!(
            odd.quantile(1.0),
            Some(0),
            "the rank is not rounded beyond the count"
        );
    }

    #[test]
    fn quantiles_are_bucket_ends_and_differences_have_the_later_durations() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.max_ns()), (None, 0));
        for ns in 1..=10 {
            histogram.record(ns);
        }
        assert_eq!(histogram.quantile(0.5), Some(5));
        assert_eq!(histogram.quantile(0.0), Some(1));
        assert_eq!(histogram.quantile(1.0), Some(10));
        let earlier = histogram.clone();
        histogram.record(1_000_000);
        let between = histogram.since(&earlier);
        assert_eq!(between.count(), 1);
        assert_eq!(between.sum_ns(), 1_000_000);
        assert!((1_000_000..1_062_500).contains(&between.max_ns()));
        let mut both = earlier.clone();
        both.add(&between);
        assert_eq!(both, histogram);
    }
}
