//! The counts of a clone, and their addition. Each direction has a latency histogram and samples of the rate.

use std::io;

use annulus_baselines::Op;
use hdrhistogram::Histogram;

/// The largest recorded latency, in nanoseconds. Longer latencies are recorded as this value.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// The number of significant digits of percentiles.
const LATENCY_DIGITS: u8 = 3;

/// The direction of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

/// The counts of one direction.
#[derive(Clone)]
pub(super) struct Direction {
    pub(super) ios: u64,
    pub(super) bytes: u64,
    pub(super) latency: Histogram<u64>,
    /// The sum of latencies, which gives the mean without rounding to buckets.
    latency_sum: f64,
}

impl Direction {
    fn new() -> Direction {
        let latency = match Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS) {
            Ok(histogram) => histogram,
            Err(error) => {
                unreachable!("the bounds are constants that the library accepts: {error}")
            }
        };
        Direction {
            ios: 0,
            bytes: 0,
            latency,
            latency_sum: 0.0,
        }
    }

    fn add(&mut self, other: &Direction) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        // All histograms have the same bounds, so adding cannot fail.
        let _ = self.latency.add(&other.latency);
        self.latency_sum += other.latency_sum;
    }

    /// Returns the mean latency, in nanoseconds.
    pub(super) fn mean(&self) -> f64 {
        match self.ios {
            0 => 0.0,
            ios => self.latency_sum / ios as f64,
        }
    }
}

/// The counts of one clone, or the sum of several.
#[derive(Clone)]
pub(super) struct Tally {
    pub(super) read: Direction,
    pub(super) write: Direction,
    /// Blocks whose content was checked.
    pub(super) verified: u64,
    /// Completions with the wrong content or the wrong length.
    pub(super) wrong: u64,
    pub(super) errors: u64,
    /// A description of the first failure.
    pub(super) first_failure: Option<String>,
    /// The processor time of the thread.
    pub(super) cpu_ns: u64,
    /// All completions, including those before the measured part.
    pub(super) completions: u64,
    /// The measured time. For a sum, the longest of the clones.
    pub(super) seconds: f64,
    last_ns: u64,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            read: Direction::new(),
            write: Direction::new(),
            verified: 0,
            wrong: 0,
            errors: 0,
            first_failure: None,
            cpu_ns: 0,
            completions: 0,
            seconds: 0.0,
            last_ns: 0,
        }
    }

    #[inline]
    pub(super) fn record(&mut self, side: Side, now_ns: u64, took_ns: u64, bytes: u64) {
        self.last_ns = now_ns;
        let direction = match side {
            Side::Read => &mut self.read,
            Side::Write => &mut self.write,
        };
        direction.ios += 1;
        direction.bytes += bytes;
        direction.latency_sum += took_ns as f64;
        direction.latency.saturating_record(took_ns);
    }

    /// Ends the run and computes the measured time.
    pub(super) fn close(&mut self, from_ns: u64, end_ns: Option<u64>) {
        // A run that ends by its size ends at its last completion.
        let end_ns = end_ns.unwrap_or(self.last_ns);
        self.seconds = end_ns.saturating_sub(from_ns) as f64 / 1e9;
    }

    /// Records a completion with the wrong length or an error.
    #[cold]
    pub(super) fn record_failure(&mut self, op: &Op, result: &io::Result<usize>) {
        let text = match result {
            Err(error) => {
                self.errors += 1;
                error.to_string()
            }
            Ok(count) => {
                self.wrong += 1;
                format!("{count} bytes instead of {}", op.bytes)
            }
        };
        self.first_complaint(op, text);
    }

    /// Records a completion with the wrong content.
    #[cold]
    pub(super) fn wrong(&mut self, op: &Op, text: String) {
        self.wrong += 1;
        self.first_complaint(op, text);
    }

    fn first_complaint(&mut self, op: &Op, text: String) {
        let verb = if op.write { "writing" } else { "reading" };
        self.first_failure.get_or_insert_with(|| {
            format!("{verb} {} bytes at offset {}: {text}", op.bytes, op.offset)
        });
    }

    pub(super) fn add(&mut self, other: &Tally) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.first_failure = self
            .first_failure
            .take()
            .or_else(|| other.first_failure.clone());
        self.cpu_ns += other.cpu_ns;
        self.completions += other.completions;
        self.seconds = self.seconds.max(other.seconds);
    }
}
