//! A run over time: completions, errors, calls and latencies in slices of equal length, as the JSON stores them.
//!
//! Workers and client threads record with [`annulus_baselines::slices::Recorder`], whose result becomes a
//! [`Timeline`]. A slice lasts 10 ms or a 240th of the run, whichever is longer, so the size does not grow with the
//! run. The ramp is not included.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use annulus::metrics::Histogram;
use annulus_baselines::slices::{BUCKETS, Recorder, SLICES_MAX, bounds};
use serde::{Deserialize, Serialize};

use crate::watching::Interval;

/// The number of the slice that begins at the end of the measured time.
const END: usize = SLICES_MAX as usize;

/// A run over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Timeline {
    /// The length of each slice, in ns; the last may be shorter.
    pub(crate) slice_ns: u64,
    /// The measured time, in ns.
    pub(crate) length_ns: u64,
    /// Correct completions in each slice.
    pub(crate) completions: Vec<u64>,
    /// Wrong results and errors in each slice; empty if there are none.
    pub(crate) errors: Vec<u64>,
    /// Calls that submit or wait in each slice; absent if the variant does not report their time.
    pub(crate) calls: Option<Vec<u64>>,
    /// Latencies of the correct completions of each slice, as pairs of numbers: the distance of a bucket from the
    /// previous one (from bucket 0 for the first), and its count. Bucket b below 16 is b ns. Above, it begins at (16 +
    /// b mod 16) · 2^(b div 16 − 1) ns and ends where the next begins.
    pub(crate) latency: Vec<Vec<u64>>,
}

/// One slice of a timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    pub(crate) from_ns: u64,
    pub(crate) length_ns: u64,
    pub(crate) completions: u64,
    pub(crate) errors: u64,
    pub(crate) calls: Option<u64>,
    pub(crate) latency: LatencyCounts,
}

/// Latencies: buckets in rising order, each with its count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LatencyCounts(pub(crate) Vec<(usize, u64)>);

impl Timeline {
    /// Converts the records of all workers. `calls` replaces theirs if the calls were counted elsewhere.
    pub(crate) fn of(
        recorder: Recorder,
        length_ns: u64,
        calls: Option<Vec<u64>>,
    ) -> Option<Timeline> {
        let cut = recorder.slices()?;
        let used = length_ns.div_ceil(cut.slice_ns.max(1)) as usize;
        let mut slices = cut.slices;
        slices.truncate(used.max(1));
        let recorded: Vec<u64> = slices.iter().map(|slice| slice.calls).collect();
        let recorded = recorded.iter().any(|calls| *calls > 0).then_some(recorded);
        let mut errors: Vec<u64> = slices.iter().map(|slice| slice.errors).collect();
        if errors.iter().all(|count| *count == 0) {
            errors.clear();
        }
        let calls = calls.map(|mut calls| {
            calls.resize(slices.len(), 0);
            calls
        });
        let latencies = slices.into_iter().map(|slice| {
            let counts = LatencyCounts(slice.latency);
            (counts.count(), counts.encoded())
        });
        let (completions, latency) = latencies.unzip();
        Some(Timeline {
            slice_ns: cut.slice_ns,
            length_ns,
            completions,
            errors,
            calls: calls.or(recorded),
            latency,
        })
    }

    /// Returns the slices in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = Slice> + '_ {
        self.completions
            .iter()
            .enumerate()
            .map(|(nth, &completions)| {
                let from_ns = nth as u64 * self.slice_ns;
                Slice {
                    from_ns,
                    length_ns: self.length_ns.saturating_sub(from_ns).min(self.slice_ns),
                    completions,
                    errors: self.errors.get(nth).copied().unwrap_or(0),
                    calls: (self.calls.as_ref()).and_then(|calls| calls.get(nth).copied()),
                    latency: self
                        .latency
                        .get(nth)
                        .map(|row| LatencyCounts::decoded(row))
                        .unwrap_or_default(),
                }
            })
    }

    /// Returns the latencies of the whole run.
    pub(crate) fn latency_counts(&self) -> LatencyCounts {
        let mut counts = vec![0; BUCKETS];
        for (bucket, count) in self
            .latency
            .iter()
            .flat_map(|row| LatencyCounts::decoded(row).0)
        {
            counts[bucket] += count;
        }
        let bucket = counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0);
        LatencyCounts(bucket.collect())
    }

    /// Merges neighbouring slices until there are at most `slices_max`.
    pub(crate) fn coarser(&self, slices_max: usize) -> Timeline {
        let mut timeline = self.clone();
        while timeline.completions.len() > slices_max.max(1) {
            timeline = timeline.halved();
        }
        timeline
    }

    fn halved(&self) -> Timeline {
        let pairs = |list: &[u64]| list.chunks(2).map(|pair| pair.iter().sum()).collect();
        let latency = self.latency.chunks(2).map(|pair| {
            let sum = pair.iter().fold(LatencyCounts::default(), |sum, row| {
                sum.plus(&LatencyCounts::decoded(row))
            });
            sum.encoded()
        });
        Timeline {
            slice_ns: self.slice_ns * 2,
            length_ns: self.length_ns,
            completions: pairs(&self.completions),
            errors: pairs(&self.errors),
            calls: self.calls.as_deref().map(pairs),
            latency: latency.collect(),
        }
    }
}

impl LatencyCounts {
    /// Returns the total count.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Returns the latency that a share `quantile` did not exceed, in ns, rounded up to the end of its bucket.
    pub(crate) fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let threshold = (quantile.clamp(0.0, 1.0) * self.count() as f64)
            .ceil()
            .max(1.0) as u64;
        let mut cumulative = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            cumulative += count;
            cumulative >= threshold
        })?;
        Some(bounds(bucket.0).1)
    }

    fn plus(&self, other: &LatencyCounts) -> LatencyCounts {
        let mut sum = self.0.clone();
        sum.extend(&other.0);
        sum.sort_unstable();
        sum.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        LatencyCounts(sum)
    }

    fn encoded(&self) -> Vec<u64> {
        let mut last = 0;
        let mut row = Vec::with_capacity(2 * self.0.len());
        for &(bucket, count) in &self.0 {
            let further = bucket - std::mem::replace(&mut last, bucket);
            row.extend([further as u64, count]);
        }
        row
    }

    /// Ignores buckets that this tool does not write, because other programs write such files, too.
    fn decoded(row: &[u64]) -> LatencyCounts {
        let mut bucket = 0u64;
        let pairs = row.chunks_exact(2).map_while(|pair| {
            bucket = bucket.checked_add(pair[0])?;
            let index = usize::try_from(bucket).ok()?;
            (index < BUCKETS).then_some((index, pair[1]))
        });
        LatencyCounts(pairs.collect())
    }
}

/// Call counts of a variant that makes calls outside the workers' threads. The first worker that enters a slice reads
/// the count.
#[derive(Default)]
pub(crate) struct CallSamples {
    /// The count has been read for all slices before this one.
    next: AtomicUsize,
    state: Mutex<CallState>,
}

#[derive(Default)]
struct CallState {
    read: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
    /// Slices, each with the count at its start.
    samples: Vec<(usize, u64)>,
}

impl CallSamples {
    fn lock(&self) -> MutexGuard<'_, CallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the function that returns the number of calls so far.
    pub(crate) fn read_from(&self, read: Box<dyn Fn() -> u64 + Send + Sync>) {
        self.lock().read = Some(read);
    }

    /// Reads the count if this worker is the first in the slice.
    #[cold]
    pub(crate) fn enter_slice(&self, slice: usize) {
        if self.next.load(Relaxed) > slice || self.next.fetch_max(slice + 1, Relaxed) > slice {
            return;
        }
        let mut state = self.lock();
        if let Some(read) = &state.read {
            let calls = read();
            state.samples.push((slice, calls));
        }
    }

    /// Reads the count at the end of the measured time.
    #[cold]
    pub(crate) fn ended(&self) {
        self.enter_slice(END);
    }

    /// Drops the function, which would otherwise live as long as the harness.
    pub(crate) fn close(&self) {
        let read = self.lock().read.take();
        drop(read);
    }

    /// Returns the number of calls in each slice; the calls of a gap are spread evenly over it.
    pub(crate) fn by_slice(&self) -> Option<Vec<u64>> {
        let mut samples = std::mem::take(&mut self.lock().samples);
        samples.sort_unstable();
        let mut calls = Vec::new();
        for pair in samples.windows(2) {
            let ((from, before), (to, after)) = (pair[0], pair[1]);
            calls.resize(from, 0);
            // The last slice of the run ends at `END`, whatever its number.
            let slices = if to == END { 1 } else { to - from };
            let more = after.saturating_sub(before);
            let each = more / slices as u64;
            calls.push(more - each * (slices as u64 - 1));
            calls.resize(from + slices, each);
        }
        (!calls.is_empty()).then_some(calls)
    }
}

/// Returns the slices as alert rules take them.
pub(crate) fn intervals(timeline: Option<&Timeline>) -> Vec<Interval> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Recorder {
        let mut recorder = Recorder::default();
        recorder.begin(0, 50_000_000);
        for nth in 0..400u64 {
            recorder.record(nth * 100_000, 1_000 + nth);
        }
        recorder.error(12_000_000);
        recorder
    }

    /// The baselines do not depend on the library that they are compared with, so both define the layout.
    #[test]
    fn the_harness_and_the_library_have_the_same_buckets() {
        for index in 0..BUCKETS {
            let (first, last) = bounds(index);
            for ns in [first, last] {
                let mut histogram = annulus::metrics::Histogram::new();
                histogram.record(ns);
                let buckets = histogram
                    .buckets()
                    .map(|one| (one.first_ns, one.last_ns, one.count));
                assert!(buckets.eq([(first, last, 1)]), "{ns} ns");
            }
        }
        let mut longest = annulus::metrics::Histogram::new();
        longest.record(u64::MAX);
        assert_eq!(longest.max_ns(), bounds(BUCKETS - 1).1);
    }

    #[test]
    fn a_timeline_reads_back_from_one_line_of_json() {
        let timeline = Timeline::of(recorded(), 45_000_000, None).unwrap();
        assert_eq!(timeline.completions, [100, 100, 100, 100, 0]);
        assert_eq!(timeline.errors, [0, 1, 0, 0, 0]);
        assert_eq!(timeline.calls, None);
        let slices: Vec<Slice> = timeline.slices().collect();
        assert_eq!(
            (slices[4].from_ns, slices[4].length_ns),
            (40_000_000, 5_000_000)
        );
        assert_eq!(timeline.latency_counts().count(), 400);
        let p50 = timeline.latency_counts().quantile_ns(0.5).unwrap();
        assert!((1_200..1_300).contains(&p50), "{p50}");
        let text = serde_json::to_string(&timeline).unwrap();
        let back: Timeline = serde_json::from_str(&text).unwrap();
        assert_eq!(back, timeline);
    }

    #[test]
    fn a_coarser_timeline_has_the_same_results_in_fewer_slices() {
        let fine = Timeline::of(recorded(), 50_000_000, Some(vec![9, 8, 7])).unwrap();
        let coarse = fine.coarser(2);
        assert_eq!(coarse.completions, [400, 0]);
        assert_eq!(
            (coarse.slice_ns, coarse.errors.as_slice()),
            (40_000_000, &[1, 0][..])
        );
        assert_eq!(coarse.calls, Some(vec![24, 0]));
        assert_eq!(coarse.latency_counts(), fine.latency_counts());
    }

    #[test]
    fn unknown_buckets_are_ignored() {
        assert_eq!(LatencyCounts::decoded(&[5, 1, u64::MAX, 1]).0, [(5, 1)]);
        assert_eq!(LatencyCounts::decoded(&[543, 2, 1, 3, 7]).0, [(543, 2)]);
    }

    #[test]
    fn calls_are_read_once_per_slice_and_a_gap_is_spread_evenly() {
        let samples = CallSamples::default();
        let now = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(100));
        let read = std::sync::Arc::clone(&now);
        samples.read_from(Box::new(move || read.load(Relaxed)));
        for (slice, calls) in [(0, 100), (0, 105), (1, 110), (4, 120), (5, 125)] {
            now.store(calls, Relaxed);
            samples.enter_slice(slice);
        }
        now.store(133, Relaxed);
        samples.ended();
        assert_eq!(samples.by_slice(), Some(vec![10, 4, 3, 3, 5, 8]));
        assert_eq!(CallSamples::default().by_slice(), None);
    }
}
