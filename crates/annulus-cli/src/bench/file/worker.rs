//! The worker: issues operations, checks results and measures latencies. This is the hot loop of the harness.
//!
//! The run creates one for each thread or task of a variant, and takes it back. Per operation, a worker reads the clock
//! once (the time of a completion is the time of the next submission) and records into a histogram and a row of
//! buckets. It allocates only when the row's counts are moved to a list. `null` in the table shows this cost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use annulus_baselines::slices::Recorder;
use annulus_baselines::{Completed, Op, Worker};
use fastrand::Rng;
use hdrhistogram::Histogram;

use super::check::{self, Contents, SAMPLE_EVERY, SAMPLES_MAX, Sample, SampleKind};
use super::order::Lease;
use super::run::Shared;

/// The longest recorded latency. Longer ones are recorded as this value.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// The precision of percentiles, in digits.
const LATENCY_DIGITS: u8 = 3;
/// The number of checked units from which the time of a check is kept out of the next operation's latency.
const UNITS_RECLOCK: u64 = 8;

/// A worker of a run.
pub(crate) struct BenchWorker {
    shared: Arc<Shared>,
    lease: Lease,
    rng: Rng,
    now_ns: u64,
    /// The start of the measured time; zero until this worker has read it.
    measured_from_ns: u64,
    block_bytes: usize,
    tally: Tally,
    scratch: Vec<u8>,
}

/// The counts of a worker.
pub(crate) struct Tally {
    /// Correct completions within the measured time.
    pub(crate) measured: u64,
    /// All completions.
    pub(crate) completions: u64,
    /// Completions with the right length and, if it is known, the right content.
    pub(crate) checked: u64,
    /// Completions with the wrong length or the wrong content.
    pub(crate) wrong: u64,
    pub(crate) errors: u64,
    /// The first wrong result or error, as text.
    pub(crate) first_failure: Option<String>,
    pub(crate) latency: Histogram<u64>,
    /// The latencies, errors and calls over time.
    pub(crate) recorder: Recorder,
    pub(crate) samples: Vec<Sample>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            measured: 0,
            completions: 0,
            checked: 0,
            wrong: 0,
            errors: 0,
            first_failure: None,
            latency: histogram(),
            recorder: Recorder::default(),
            samples: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.measured += other.measured;
        self.completions += other.completions;
        self.checked += other.checked;
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        // All histograms have the same bounds, so adding cannot fail.
        let _ = self.latency.add(&other.latency);
        self.recorder.add(other.recorder);
        self.samples.extend(other.samples);
    }
}

fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("the bounds are constants that the library accepts: {error}"),
    }
}

impl BenchWorker {
    pub(crate) fn new(shared: Arc<Shared>, index: u64) -> BenchWorker {
        let mut tally = Tally::new();
        tally.samples.reserve_exact(SAMPLES_MAX);
        let mut scratch = Vec::new();
        if let Err(error) = scratch.try_reserve_exact(shared.block_bytes) {
            let bytes = shared.block_bytes;
            tally.errors = 1;
            tally.first_failure = Some(format!("check blocks of {bytes} bytes: {error}"));
        }
        BenchWorker {
            lease: Lease::default(),
            rng: Rng::with_seed(shared.seed ^ index),
            now_ns: 0,
            measured_from_ns: 0,
            block_bytes: shared.block_bytes,
            scratch,
            tally,
            shared,
        }
    }

    pub(crate) fn into_tally(self) -> Tally {
        self.tally
    }

    /// Returns the time of the last completion.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Reads the start of the measured time. Returns `false` if the run has not been started.
    #[cold]
    fn begin(&mut self) -> bool {
        self.measured_from_ns = self.shared.measured_from_ns.load(Acquire);
        self.now_ns = self.shared.now_ns();
        let (from_ns, runtime_ns) = (self.measured_from_ns, self.shared.runtime_ns());
        self.tally.recorder.begin(from_ns, runtime_ns);
        self.measured_from_ns != 0
    }

    /// Returns the position of the block of `op` in the data set.
    #[inline]
    fn dataset_offset(&self, op: &Op) -> u64 {
        check::dataset_offset(op.file, self.shared.file_bytes, op.offset)
    }

    #[inline]
    fn is_measured(&self, now_ns: u64) -> bool {
        now_ns >= self.measured_from_ns && now_ns < self.shared.end_ns.load(Relaxed)
    }

    fn next_block(&mut self) -> Option<u64> {
        loop {
            if let Some(block) = self.lease.next() {
                return Some(block);
            }
            match self.shared.order.lease() {
                Some(lease) => self.lease = lease,
                None => {
                    self.shared.ran_out(self.now_ns);
                    return None;
                }
            }
        }
    }

    /// Checks the content of a completion of the right length, or keeps a sample for later. Returns `false` if it is
    /// wrong.
    #[inline]
    fn content_matches<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) -> bool {
        match self.shared.contents {
            Contents::Tagged { seed, unit_bytes } if !op.write => {
                let units = self.block_bytes as u64 / unit_bytes;
                let (dataset_offset, bytes) = (self.dataset_offset(op), self.block_bytes as u64);
                let matches = check::tags_match(data, dataset_offset, bytes, seed, unit_bytes);
                if units >= UNITS_RECLOCK {
                    self.now_ns = self.shared.now_ns();
                }
                matches
            }
            _ => {
                if self.tally.completions % SAMPLE_EVERY == 1 {
                    self.sample(op, data);
                }
                true
            }
        }
    }

    #[cold]
    fn sample<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) {
        // Without memory for a block, the run has failed already.
        let has_memory = self.scratch.capacity() >= self.block_bytes;
        if self.tally.samples.len() >= SAMPLES_MAX || !has_memory {
            return;
        }
        if !data.copy_to(&mut self.scratch) {
            // The null variant has no data.
            return;
        }
        let kind = match op.write {
            true => SampleKind::Written,
            false => SampleKind::Read {
                hash: check::hash(&self.scratch),
            },
        };
        self.tally.samples.push(Sample {
            file: op.file,
            offset: op.offset,
            kind,
        });
        self.now_ns = self.shared.now_ns();
    }

    #[cold]
    fn record_failure(&mut self, op: &Op, result: &io::Result<usize>) {
        let verb = if op.write { "write" } else { "read" };
        let block = self.block_bytes;
        let file = match self.shared.files {
            1 => String::new(),
            _ => format!(" of file {}", op.file),
        };
        let what = format!("{verb} at offset {}{file}", op.offset);
        let text = match result {
            Err(error) => format!("{what}: {error}"),
            Ok(count) if *count != block => format!("{what}: {count} bytes instead of {block}"),
            Ok(_) => format!("{what}: the bytes are not those of this offset"),
        };
        if self.is_measured(self.now_ns) {
            self.tally.recorder.error(self.now_ns);
        }
        match result {
            Err(_) => self.tally.errors += 1,
            Ok(_) => self.tally.wrong += 1,
        }
        self.tally.first_failure.get_or_insert(text);
    }
}

impl Worker for BenchWorker {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        if self.measured_from_ns == 0 && !self.begin() {
            return None;
        }
        if self.now_ns >= self.shared.end_ns.load(Relaxed) {
            self.shared.calls.ended();
            return None;
        }
        let block = self.next_block()?;
        let write = match self.shared.write_percent {
            0 => false,
            100 => true,
            percent => self.rng.u8(..100) < percent,
        };
        let (file, block) = match self.shared.files {
            1 => (0, block),
            _ => {
                let per_file = self.shared.blocks_per_file;
                ((block / per_file) as u32, block % per_file)
            }
        };
        let offset = self.shared.offset_bytes + block * self.block_bytes as u64;
        Some(Op {
            file,
            bytes: self.block_bytes as u32,
            offset,
            write,
            started_ns: self.now_ns,
        })
    }

    #[inline]
    fn fill(&self, op: &Op, bytes: &mut [u8]) {
        if let Contents::Tagged { seed, unit_bytes } = self.shared.contents {
            check::write_tags(
                bytes,
                self.dataset_offset(op),
                seed,
                unit_bytes,
                self.shared.stamp,
            );
        }
    }

    #[inline]
    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, data: &A) {
        let now = self.shared.now_ns();
        self.now_ns = now;
        self.tally.completions += 1;
        let complete = matches!(result, Ok(count) if count == self.block_bytes);
        if !(complete && self.content_matches(&op, data)) {
            self.record_failure(&op, &result);
            return;
        }
        self.tally.checked += 1;
        if self.is_measured(now) {
            let latency_ns = now - op.started_ns;
            self.tally.measured += 1;
            self.tally.latency.saturating_record(latency_ns);
            if self.tally.recorder.record(now, latency_ns) {
                self.shared.calls.enter_slice(self.tally.recorder.slice());
            }
        }
    }

    #[inline]
    fn called(&mut self) {
        if self.is_measured(self.now_ns) {
            self.tally.recorder.call();
        }
    }

    fn ideal_result(&self, op: &Op) -> impl Completed + use<> {
        Ideal {
            contents: self.shared.contents,
            dataset_offset: self.dataset_offset(op),
        }
    }
}

/// The correct data of a file of known content; no data for an unknown file.
struct Ideal {
    contents: Contents,
    dataset_offset: u64,
}

impl Completed for Ideal {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self.contents {
            Contents::Tagged { seed, unit_bytes } => {
                check::tag(seed, (self.dataset_offset + at as u64) / unit_bytes)
            }
            Contents::Unknown => 0,
        }
    }

    fn copy_to(&self, _into: &mut Vec<u8>) -> bool {
        false
    }
}
