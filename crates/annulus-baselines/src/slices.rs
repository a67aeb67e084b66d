//! The distribution of results over the time of a run: counts by slice of time and by latency.
//!
//! A [`Recorder`] belongs to one thread or worker. Its current slice is a plain row of buckets, so a record costs a few
//! instructions and no allocation. At the start of another slice, the counts of the row move to a list, and the row is
//! reused. The lists of all workers are merged at the end. The buckets are those of `annulus::metrics::Histogram`:
//! exact below 16 ns, and with a resolution of one sixteenth above.

/// The number of buckets per power of two.
const PARTS: usize = 16;
const EXACT_BITS: u32 = PARTS.ilog2();
/// Durations of 2^37 ns (137 s) or more are counted in the last bucket.
const BITS_MAX: u32 = 37;
/// The number of buckets.
pub const BUCKETS: usize = (BITS_MAX - EXACT_BITS) as usize * PARTS + PARTS;
/// The index of the row's error count.
const ERRORS: usize = BUCKETS;
const ROW: usize = BUCKETS + 1;
/// The bucket number of an entry that counts calls.
const CALLS: usize = ROW;

/// The largest number of slices, for runs of any length.
pub const SLICES_MAX: u64 = 240;
/// The shortest slice. A shorter one would contain too few results.
const SLICE_NS_MIN: u64 = 10_000_000;

/// Returns the bucket of a duration.
#[inline]
pub fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << BITS_MAX) - 1);
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - EXACT_BITS)) as usize - PARTS;
    (power - EXACT_BITS + 1) as usize * PARTS + part
}

/// Returns the shortest and the longest duration that `bucket` counts, in nanoseconds.
pub fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < PARTS {
        return (bucket as u64, bucket as u64);
    }
    let power = bucket / PARTS - 1;
    let first = ((PARTS + bucket % PARTS) as u64) << power;
    (first, first + (1 << power) - 1)
}

/// Divides a measured time into slices. Returns the length of a slice and the number of slices. The last slice may be
/// shorter.
pub fn cut(runtime_ns: u64) -> (u64, usize) {
    let slice_ns = runtime_ns.div_ceil(SLICES_MAX).max(SLICE_NS_MIN);
    (slice_ns, runtime_ns.div_ceil(slice_ns).max(1) as usize)
}

/// The count of one bucket in one slice.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slice: u16,
    bucket: u16,
    count: u32,
}

/// The counts of one thread or worker.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    from_ns: u64,
    slice_ns: u64,
    slices: usize,
    /// The current slice, and its start.
    slice: usize,
    slice_from_ns: u64,
    /// Empty until the first record: a run may have thousands of workers that record nothing.
    row: Vec<u32>,
    /// The range of the row that is in use.
    low: usize,
    high: usize,
    calls: u32,
    entries: Vec<Entry>,
}

impl Recorder {
    /// Starts recording, with the start and the length of the measured time.
    pub fn begin(&mut self, from_ns: u64, runtime_ns: u64) {
        let (slice_ns, slices) = cut(runtime_ns);
        *self = Recorder {
            from_ns,
            slice_ns,
            slices,
            // The first record starts a slice and allocates the row.
            slice_from_ns: from_ns.wrapping_add(1 << 63),
            low: ROW,
            ..Recorder::default()
        };
    }

    /// Counts a correct result at `at_ns`, which is not before the measured time. Returns `true` if it starts a slice.
    #[inline]
    pub fn record(&mut self, at_ns: u64, latency_ns: u64) -> bool {
        self.count(at_ns, bucket(latency_ns))
    }

    /// Counts a wrong result or an error. Returns `true` if it starts a slice.
    pub fn error(&mut self, at_ns: u64) -> bool {
        self.count(at_ns, ERRORS)
    }

    /// Counts a call that submits or waits, in the current slice.
    #[inline]
    pub fn call(&mut self) {
        self.calls += 1;
    }

    /// Returns the index of the current slice.
    pub fn slice(&self) -> usize {
        self.slice
    }

    #[inline]
    fn count(&mut self, at_ns: u64, bucket: usize) -> bool {
        let entered_slice = at_ns.wrapping_sub(self.slice_from_ns) >= self.slice_ns;
        if entered_slice {
            self.enter_slice(at_ns);
        }
        self.row[bucket] += 1;
        self.low = self.low.min(bucket);
        self.high = self.high.max(bucket);
        entered_slice
    }

    #[cold]
    fn enter_slice(&mut self, at_ns: u64) {
        self.flush_row();
        if self.row.is_empty() {
            self.row = vec![0; ROW];
        }
        let nth = at_ns.saturating_sub(self.from_ns) / self.slice_ns.max(1);
        self.slice = (nth as usize).min(self.slices.saturating_sub(1));
        self.slice_from_ns = self.from_ns + self.slice as u64 * self.slice_ns;
    }

    /// Moves the counts of the row to the list.
    fn flush_row(&mut self) {
        let slice = self.slice.min(self.slices.saturating_sub(1)) as u16;
        let calls = std::mem::take(&mut self.calls);
        if calls > 0 {
            self.entries.push(Entry {
                slice,
                bucket: CALLS as u16,
                count: calls,
            });
        }
        for bucket in self.low..(self.high + 1).min(self.row.len()) {
            let count = std::mem::take(&mut self.row[bucket]);
            if count > 0 {
                self.entries.push(Entry {
                    slice,
                    bucket: bucket as u16,
                    count,
                });
            }
        }
        (self.low, self.high) = (ROW, 0);
    }

    /// Adds the counts of another worker of the same run.
    pub fn add(&mut self, mut other: Recorder) {
        other.flush_row();
        self.flush_row();
        (self.from_ns, self.slice_ns, self.slices) = match self.slices.max(other.slices) {
            0 => return,
            _ if other.slices > 0 => (other.from_ns, other.slice_ns, other.slices),
            slices => (self.from_ns, self.slice_ns, slices),
        };
        self.entries.append(&mut other.entries);
    }

    /// Returns the counts by slice. `None` if recording never started.
    pub fn slices(mut self) -> Option<Slices> {
        self.flush_row();
        if self.slices == 0 {
            return None;
        }
        self.entries
            .sort_unstable_by_key(|entry| (entry.slice, entry.bucket));
        let mut slices = vec![Slice::default(); self.slices];
        for entry in &self.entries {
            let slice = &mut slices[usize::from(entry.slice)];
            let count = u64::from(entry.count);
            match (usize::from(entry.bucket), slice.latency.last_mut()) {
                (ERRORS, _) => slice.errors += count,
                (CALLS, _) => slice.calls += count,
                (bucket, Some((last, sum))) if *last == bucket => *sum += count,
                (bucket, _) => slice.latency.push((bucket, count)),
            }
        }
        Some(Slices {
            slice_ns: self.slice_ns,
            slices,
        })
    }
}

/// The counts of one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Wrong results and errors.
    pub errors: u64,
    /// Calls that submit or wait, as reported to the workers.
    pub calls: u64,
    /// Correct results: buckets in ascending order, with their counts.
    pub latency: Vec<(usize, u64)>,
}

/// A run divided into slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// The length of each slice.
    pub slice_ns: u64,
    /// The slices, from the start of the measured time.
    pub slices: Vec<Slice>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_within_the_bounds_of_its_bucket() {
        for index in 1..BUCKETS {
            assert_eq!(bounds(index).0, bounds(index - 1).1 + 1, "bucket {index}");
        }
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..10_000 {
            let ns = rng.u64(..) >> (27 + round % 37);
            let (first, last) = bounds(bucket(ns));
            assert!((first..=last).contains(&ns), "{ns} not in {first}..={last}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_hour_has_as_many_slices_as_a_minute_and_a_short_run_has_few() {
        assert_eq!(cut(60_000_000_000), (250_000_000, 240));
        assert_eq!(cut(3_600_000_000_000), (15_000_000_000, 240));
        assert_eq!(cut(95_000_000), (10_000_000, 10));
        assert_eq!(cut(0).1, 1);
    }

    #[test]
    fn slices_of_workers_add_up_in_any_order() {
        let runtime_ns = 100_000_000;
        let worker = || {
            let mut worker = Recorder::default();
            worker.begin(1_000, runtime_ns);
            worker
        };
        let (mut one, mut two) = (worker(), worker());
        assert!(one.record(1_000, 5));
        assert!(!one.record(10_000_999, 5));
        assert!(one.record(10_001_000, 100));
        one.call();
        assert!(one.record(1_500, 5), "an earlier slice once more");
        two.record(100_001_000, 7);
        two.error(10_001_001);
        let mut sum = Recorder::default();
        for part in [one, worker(), two, Recorder::default()] {
            sum.add(part);
        }
        let Slices { slice_ns, slices } = sum.slices().unwrap();
        assert_eq!((slice_ns, slices.len()), (10_000_000, 10));
        assert_eq!(slices[0].latency, [(5, 3)]);
        assert_eq!(slices[1].latency, [(bucket(100), 1)]);
        assert_eq!((slices[1].errors, slices[1].calls), (1, 1));
        assert_eq!(slices[9].latency, [(7, 1)], "what is late is in the last");
        assert_eq!(Recorder::default().slices(), None);
    }
}
