//! How answers are spread over the time of a run: counts by slice of time and by latency.
//!
//! A [`Recorder`] belongs to one thread or worker. Its slice at hand is a plain row of buckets, so that a record costs
//! a few instructions and no allocation; when another slice begins, what the row holds goes to a list, and the row is
//! used again. Lists of all workers are put together at the end. Buckets are those of `annulus::metrics::Histogram`:
//! exact below 16 ns, then to a sixteenth.

/// Buckets of each power of two.
const PARTS: usize = 16;
const EXACT_BITS: u32 = PARTS.ilog2();
/// Durations from 2 to this power of nanoseconds on (137 s) are counted in the last bucket.
const BITS_MAX: u32 = 37;
/// How many buckets there are.
pub const BUCKETS: usize = (BITS_MAX - EXACT_BITS) as usize * PARTS + PARTS;
/// Where the row counts what went wrong.
const ERRORS: usize = BUCKETS;
const ROW: usize = BUCKETS + 1;
/// What an entry of the list says instead of a bucket if it counts calls.
const CALLS: usize = ROW;

/// The largest number of slices, however long the run is.
pub const SLICES_MAX: u64 = 240;
/// No slice is shorter: there would be nothing in it.
const SLICE_NS_MIN: u64 = 10_000_000;

/// The bucket that counts durations of `ns`.
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

/// The first and the last duration that `bucket` counts, ns.
pub fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < PARTS {
        return (bucket as u64, bucket as u64);
    }
    let power = bucket / PARTS - 1;
    let first = ((PARTS + bucket % PARTS) as u64) << power;
    (first, first + (1 << power) - 1)
}

/// How a measured time is cut: the length of a slice, and how many there are. The last may be a shorter one.
pub fn cut(runtime_ns: u64) -> (u64, usize) {
    let slice_ns = runtime_ns.div_ceil(SLICES_MAX).max(SLICE_NS_MIN);
    (slice_ns, runtime_ns.div_ceil(slice_ns).max(1) as usize)
}

/// N of a bucket in a slice.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slice: u16,
    bucket: u16,
    count: u32,
}

/// What one thread or worker has seen.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    from_ns: u64,
    slice_ns: u64,
    slices: usize,
    /// The slice at hand, and when it begins.
    slice: usize,
    slice_from_ns: u64,
    /// Empty until something is recorded: a run may have thousands of workers that never do.
    row: Vec<u32>,
    /// What of the row is in use.
    low: usize,
    high: usize,
    calls: u32,
    entries: Vec<Entry>,
}

impl Recorder {
    /// Begins: the measured time is known now.
    pub fn begin(&mut self, from_ns: u64, runtime_ns: u64) {
        let (slice_ns, slices) = cut(runtime_ns);
        *self = Recorder {
            from_ns,
            slice_ns,
            slices,
            // The first record starts its own slice, and makes the row.
            slice_from_ns: from_ns.wrapping_add(1 << 63),
            low: ROW,
            ..Recorder::default()
        };
    }

    /// A right answer at `at_ns`, not before the measured time. True if it is the first of its slice.
    #[inline]
    pub fn record(&mut self, at_ns: u64, latency_ns: u64) -> bool {
        self.count(at_ns, bucket(latency_ns))
    }

    /// A wrong answer or an error.
    pub fn error(&mut self, at_ns: u64) -> bool {
        self.count(at_ns, ERRORS)
    }

    /// A call that submits or waits, in the slice at hand.
    #[inline]
    pub fn call(&mut self) {
        self.calls += 1;
    }

    /// Which slice is at hand.
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

    /// Takes what the row holds to the list.
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

    /// Adds what another worker of the same run has seen.
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

    /// All of it by slice; `None` if it never began.
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

/// What was seen in one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Wrong answers and errors.
    pub errors: u64,
    /// Calls that submit or wait, as far as workers were told.
    pub calls: u64,
    /// Right answers: buckets in rising order, and how many are in each.
    pub latency: Vec<(usize, u64)>,
}

/// A run cut into slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// How long each is.
    pub slice_ns: u64,
    /// From the beginning of the measured time on.
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
