//! The counts of a worker, and their addition. Each direction has a latency histogram.

use annulus_baselines::slices::Recorder;
use hdrhistogram::Histogram;

use super::check::Sample;
use super::verify::Written;

/// The longest recorded latency. Longer ones are recorded as this value.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// The precision of percentiles, in digits. With a third one the histogram of a worker would have 216 KiB in place of
/// 28: too much beside a memory limit, or a processor's cache, with 512 of them.
const LATENCY_DIGITS: u8 = 2;

/// Correct completions of one direction within the measured time.
pub(crate) struct Direction {
    pub(crate) bytes: u64,
    pub(crate) latency: Histogram<u64>,
    /// The sum of latencies, which gives the mean without rounding to buckets.
    latency_sum_ns: u64,
}

impl Direction {
    pub(crate) fn new() -> Direction {
        Direction::with(LATENCY_NS_MAX, LATENCY_DIGITS)
    }

    /// Returns an unused direction, which takes little memory. A run may have thousands of workers.
    fn unused() -> Direction {
        Direction::with(2, 0)
    }

    fn with(longest_ns: u64, digits: u8) -> Direction {
        let latency = match Histogram::new_with_bounds(1, longest_ns, digits) {
            Ok(histogram) => histogram,
            Err(error) => {
                unreachable!("the bounds are constants that the library accepts: {error}")
            }
        };
        Direction {
            bytes: 0,
            latency,
            latency_sum_ns: 0,
        }
    }

    /// Returns the number of completions.
    pub(crate) fn ops(&self) -> u64 {
        self.latency.len()
    }

    /// Returns the mean latency.
    pub(crate) fn mean_ns(&self) -> f64 {
        self.latency_sum_ns as f64 / self.ops().max(1) as f64
    }

    pub(crate) fn add(&mut self, other: &Direction) {
        self.bytes += other.bytes;
        self.latency_sum_ns += other.latency_sum_ns;
        if !other.latency.is_empty() {
            // All used histograms have the same bounds, so adding cannot fail.
            let _ = self.latency.add(&other.latency);
        }
    }
}

/// The counts of a worker, or the sum of several.
pub(crate) struct Tally {
    /// Reads and writes.
    pub(crate) directions: [Direction; 2],
    /// All completions, including those outside of the measured time.
    pub(crate) completions: u64,
    /// Completions with the right length and, if it is known, the right content.
    pub(crate) checked: u64,
    /// Completions whose content a job's `verify` has checked.
    pub(crate) verified: u64,
    /// Completions with the wrong length or the wrong content.
    pub(crate) wrong: u64,
    pub(crate) errors: u64,
    /// The first wrong result or error, as text.
    pub(crate) first_failure: Option<String>,
    /// The latencies, errors and calls over time.
    pub(crate) recorder: Recorder,
    pub(crate) samples: Vec<Sample>,
    pub(crate) written: Option<Written>,
    /// The processor time of the thread, if the work records it.
    pub(crate) cpu_ns: u64,
    /// The time of the last measured completion.
    pub(crate) last_ns: u64,
}

impl Tally {
    /// Returns the tally of a worker that writes this share of its operations.
    pub(crate) fn of_worker(write_percent: u8) -> Tally {
        let mut tally = Tally::of([Direction::unused(), Direction::unused()]);
        if write_percent < 100 {
            tally.directions[0] = Direction::new();
        }
        if write_percent > 0 {
            tally.directions[1] = Direction::new();
        }
        tally
    }

    /// Returns an empty sum.
    pub(crate) fn new() -> Tally {
        Tally::of([Direction::new(), Direction::new()])
    }

    fn of(directions: [Direction; 2]) -> Tally {
        Tally {
            directions,
            completions: 0,
            checked: 0,
            verified: 0,
            wrong: 0,
            errors: 0,
            first_failure: None,
            recorder: Recorder::default(),
            samples: Vec::new(),
            written: None,
            cpu_ns: 0,
            last_ns: 0,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, write: bool, now_ns: u64, latency_ns: u64, bytes: u64) {
        self.last_ns = now_ns;
        let direction = &mut self.directions[usize::from(write)];
        direction.bytes += bytes;
        direction.latency_sum_ns += latency_ns;
        direction.latency.saturating_record(latency_ns);
    }

    /// Returns the number of correct completions within the measured time.
    pub(crate) fn measured(&self) -> u64 {
        self.directions.iter().map(Direction::ops).sum()
    }

    pub(crate) fn add(&mut self, other: Tally) {
        for (own, more) in self.directions.iter_mut().zip(&other.directions) {
            own.add(more);
        }
        self.completions += other.completions;
        self.checked += other.checked;
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.recorder.add(other.recorder);
        self.samples.extend(other.samples);
        self.written = self.written.take().or(other.written);
        self.cpu_ns += other.cpu_ns;
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}
