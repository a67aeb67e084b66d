//! The worker: issues operations, checks results and measures latencies. This is the hot loop of the harness.
//!
//! The run creates one for each thread or task of a variant, and takes it back. Per operation, a worker reads the clock
//! once (the time of a completion is the time of the next submission) and records into a histogram and a row of
//! buckets. It allocates only when the row's counts are moved to a list. `null` in the table shows this cost.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use annulus_baselines::{Completed, Op, Worker};
use fastrand::Rng;

use super::check::{self, Contents, SAMPLE_EVERY, SAMPLES_MAX, Sample, SampleKind};
use super::order::Lease;
use super::shared::Shared;
use super::tally::Tally;
use super::verify;
use super::work::{Check, Lengths, Pick};
use crate::bench::machine::thread_cpu_ns;

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
    /// The length of all operations, if they are blocks of an order without limits and rates.
    plain_bytes: Option<u64>,
    /// The contents to check, if a job does not verify them.
    contents: Option<Contents>,
    pace: Option<Pace>,
    /// The position of the next operation in each file, for reads and for writes.
    next_at: [Vec<u64>; 2],
    next_file: usize,
    next_written: u64,
    /// The processor time of the thread at the start.
    cpu_ns: u64,
    tally: Tally,
    scratch: Vec<u8>,
    /// The difference that a job's `verify` has found in the last completion.
    difference: Option<String>,
}

/// The bytes and operations requested since the start, for the limits and the rates of the work.
#[derive(Default)]
struct Pace {
    bytes: [u64; 2],
    ops: u64,
    begin_ns: u64,
    /// The direction that its rate delays, and the time until then.
    chosen: Option<(usize, u64)>,
}

impl BenchWorker {
    pub(crate) fn new(shared: Arc<Shared>, index: u64) -> BenchWorker {
        let work = &shared.work;
        let mut tally = Tally::of_worker(work.write_percent);
        tally.written = match work.pick {
            Pick::Written(_) => None,
            _ => work.written(),
        };
        if let Check::Contents(..) = work.check {
            tally.samples.reserve_exact(SAMPLES_MAX);
        }
        let mut scratch = Vec::new();
        let bytes = match work.check {
            Check::Length => 0,
            _ => work.block_bytes_max,
        };
        if let Err(error) = scratch.try_reserve_exact(bytes as usize) {
            tally.errors = 1;
            tally.first_failure = Some(format!("check blocks of {bytes} bytes: {error}"));
        }
        let at = match work.pick {
            Pick::InTurn => vec![0; work.files],
            _ => Vec::new(),
        };
        let is_plain = !work.is_paced() && tally.written.is_none();
        BenchWorker {
            plain_bytes: match (&work.pick, &work.lengths) {
                (Pick::Order(_), [Lengths::Fixed(reads), Lengths::Fixed(writes)])
                    if is_plain && reads == writes && *reads == work.block_bytes =>
                {
                    Some(*reads)
                }
                _ => None,
            },
            contents: match work.check {
                Check::Contents(contents, _) => Some(contents),
                Check::Length | Check::Verify(..) => None,
            },
            difference: None,
            lease: Lease::default(),
            rng: Rng::with_seed(work.seed ^ index),
            now_ns: 0,
            measured_from_ns: 0,
            pace: work.is_paced().then(Pace::default),
            next_at: [at.clone(), at],
            next_file: 0,
            next_written: 0,
            cpu_ns: 0,
            scratch,
            tally,
            shared,
        }
    }

    /// Returns the counts. Must be called on the worker's thread, whose usage it records.
    pub(crate) fn into_tally(mut self) -> Tally {
        if self.shared.work.thread_cpu {
            self.tally.cpu_ns = thread_cpu_ns().saturating_sub(self.cpu_ns);
        }
        self.tally
    }

    /// Reads the start of the measured time. Returns `false` if the run has not been started.
    #[cold]
    fn begin(&mut self) -> bool {
        let from_ns = self.shared.measured_from_ns.load(Acquire);
        let work = &self.shared.work;
        self.measured_from_ns = from_ns;
        self.now_ns = self.shared.now_ns();
        if let Some(pace) = &mut self.pace {
            pace.begin_ns = from_ns.saturating_sub(work.ramp.as_nanos() as u64);
        }
        if let Some(runtime_ns) = self.shared.runtime_ns().filter(|_| work.timeline) {
            self.tally.recorder.begin(from_ns, runtime_ns);
        }
        if work.thread_cpu {
            self.cpu_ns = thread_cpu_ns();
        }
        from_ns != 0
    }

    #[inline]
    fn is_measured(&self, now_ns: u64) -> bool {
        now_ns >= self.measured_from_ns && now_ns < self.shared.end_ns.load(Relaxed)
    }

    /// Returns the direction of the next operation: 0 for a read, 1 for a write.
    #[inline]
    fn direction(&mut self) -> usize {
        match self.shared.work.write_percent {
            0 => 0,
            100 => 1,
            percent => usize::from(self.rng.u8(..100) < percent),
        }
    }

    /// Returns the direction of the next operation, or `None` if the limits or the rate allow none now. As in fio, if
    /// one direction of a mixed load has to wait, the other may run first.
    fn allowed(&mut self) -> Option<usize> {
        let drawn = self.direction();
        let (work, pace) = (&self.shared.work, self.pace.as_mut()?);
        if pace.bytes[0] + pace.bytes[1] >= work.bytes_max || pace.ops >= work.ops_max {
            return None;
        }
        let preferred = pace.chosen.take().map_or(drawn, |(direction, _)| direction);
        let mut due = (pace.due_ns(work.rate, preferred), preferred);
        if due.0 > self.now_ns {
            // The time of the last completion may be out of date.
            self.now_ns = self.shared.now_ns();
        }
        if due.0 > self.now_ns && (1..100).contains(&work.write_percent) {
            due = due.min((pace.due_ns(work.rate, 1 - preferred), 1 - preferred));
        }
        let (due_ns, direction) = due;
        if due_ns > self.now_ns {
            pace.chosen = Some((direction, due_ns));
            return None;
        }
        Some(direction)
    }

    #[inline]
    fn length(&mut self, direction: usize) -> u64 {
        match &self.shared.work.lengths[direction] {
            Lengths::Fixed(bytes) => *bytes,
            Lengths::Range(least, most) => least * self.rng.u64(1..=most / least),
            Lengths::Split(list) => {
                let mut drawn = self.rng.u8(..100);
                let fits = list.iter().find(|(_, share)| {
                    let fits = drawn < *share;
                    drawn = drawn.saturating_sub(*share);
                    fits
                });
                fits.or(list.last()).map_or(0, |(bytes, _)| *bytes)
            }
        }
    }

    /// Chooses a file, and an offset within its used part.
    fn place(&mut self, direction: usize, bytes: u64) -> Option<(usize, u64)> {
        match &self.shared.work.pick {
            Pick::Order(_) => self.next_block().map(|block| self.place_of(block)),
            Pick::Zipf(zipf) => {
                let block = zipf.block(&mut self.rng);
                Some(self.place_of(block))
            }
            Pick::Written(written) => {
                let block = written.next_from(self.next_written)?;
                self.next_written = block + 1;
                Some(self.place_of(block))
            }
            Pick::Anywhere | Pick::InTurn => Some(self.place_anywhere(direction, bytes)),
        }
    }

    #[inline]
    fn place_of(&self, block: u64) -> (usize, u64) {
        let work = &self.shared.work;
        match work.files {
            1 => (0, block * work.block_bytes),
            _ => {
                let per_file = self.shared.blocks_per_file;
                let file = (block / per_file) as usize;
                (file, block % per_file * work.block_bytes)
            }
        }
    }

    fn place_anywhere(&mut self, direction: usize, bytes: u64) -> (usize, u64) {
        let work = &self.shared.work;
        self.next_file = (self.next_file + 1) % work.files;
        let file = self.next_file;
        if let Pick::Anywhere = work.pick {
            let positions = (work.file_bytes - bytes) / work.block_bytes + 1;
            return (file, self.rng.u64(..positions) * work.block_bytes);
        }
        let at = &mut self.next_at[direction][file];
        if *at + bytes > work.file_bytes {
            *at = 0;
        }
        *at += bytes;
        (file, *at - bytes)
    }

    fn next_block(&mut self) -> Option<u64> {
        loop {
            if let Some(block) = self.lease.next() {
                return Some(block);
            }
            let Pick::Order(order) = &self.shared.work.pick else {
                return None;
            };
            match order.lease() {
                Some(lease) => self.lease = lease,
                None => {
                    self.shared.ran_out(self.now_ns);
                    return None;
                }
            }
        }
    }

    /// Chooses an operation by the rules of a job, and counts it for its limits and for reading it back.
    #[cold]
    fn next_of_job(&mut self) -> Option<Op> {
        let direction = match self.pace.is_some() {
            false => self.direction(),
            true => self.allowed()?,
        };
        let bytes = self.length(direction);
        let (file, at) = self.place(direction, bytes)?;
        if let Some(pace) = &mut self.pace {
            pace.bytes[direction] += bytes;
            pace.ops += 1;
        }
        if let Some(written) = self.tally.written.as_mut().filter(|_| direction == 1) {
            let block = at / self.shared.work.block_bytes;
            written.add(file as u64 * self.shared.blocks_per_file + block);
        }
        Some(self.op(direction, bytes, (file, at)))
    }

    #[inline]
    fn op(&self, direction: usize, bytes: u64, (file, at): (usize, u64)) -> Op {
        Op {
            file: file as u32,
            bytes: bytes as u32,
            offset: self.shared.work.offset_bytes + at,
            write: direction == 1,
            started_ns: self.now_ns,
        }
    }

    /// Checks the content of a completion of the right length, or keeps a sample for later. Returns `false` if it is
    /// wrong.
    #[inline]
    fn content_matches<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) -> bool {
        match self.contents {
            Some(Contents::Tagged { seed, unit_bytes }) if !op.write => {
                let bytes = u64::from(op.bytes);
                let at = self.shared.work.dataset_offset(op);
                let matches = check::tags_match(data, at, bytes, seed, unit_bytes);
                if bytes >= UNITS_RECLOCK * unit_bytes {
                    self.now_ns = self.shared.now_ns();
                }
                matches
            }
            Some(_) => {
                if self.tally.completions % SAMPLE_EVERY == 1 {
                    self.sample(op, data);
                }
                true
            }
            None => op.write || self.verifies(op, data),
        }
    }

    /// Checks the content of a read as the job requests it.
    #[cold]
    fn verifies<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) -> bool {
        let Check::Verify(kind, pattern) = &self.shared.work.check else {
            return true;
        };
        self.difference = match data.copy_to(&mut self.scratch) {
            true => verify::check(kind, pattern, op.offset, &self.scratch).err(),
            false => Some("the engine has no bytes to show".into()),
        };
        self.tally.verified += 1;
        self.now_ns = self.shared.now_ns();
        self.difference.is_none()
    }

    #[cold]
    fn sample<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) {
        // Without memory for a block, the run has failed already.
        let has_memory = self.scratch.capacity() >= op.bytes as usize;
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
        let file = match self.shared.work.files {
            1 => String::new(),
            _ => format!(" of file {}", op.file),
        };
        let text = match (result, self.difference.take()) {
            (Err(error), _) => error.to_string(),
            (Ok(_), Some(difference)) => difference,
            (Ok(count), None) if *count != op.bytes as usize => {
                format!("{count} bytes instead of {}", op.bytes)
            }
            (Ok(_), None) => "the bytes are not those of this offset".into(),
        };
        if self.shared.work.timeline && self.is_measured(self.now_ns) {
            self.tally.recorder.error(self.now_ns);
        }
        match result {
            Err(_) => self.tally.errors += 1,
            Ok(_) => self.tally.wrong += 1,
        }
        (self.tally.first_failure)
            .get_or_insert_with(|| format!("{verb} at offset {}{file}: {text}", op.offset));
    }
}

impl Pace {
    /// Returns the time at which the rate of a direction allows its next operation.
    fn due_ns(&self, rate: [u64; 2], direction: usize) -> u64 {
        match rate[direction] {
            0 => 0,
            rate => {
                let after = u128::from(self.bytes[direction]) * 1_000_000_000 / u128::from(rate);
                self.begin_ns.saturating_add(after as u64)
            }
        }
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
        let Some(bytes) = self.plain_bytes else {
            return self.next_of_job();
        };
        let block = self.next_block()?;
        let direction = self.direction();
        Some(self.op(direction, bytes, self.place_of(block)))
    }

    fn later(&self) -> Option<Duration> {
        let (_, due_ns) = self.pace.as_ref()?.chosen?;
        let (now_ns, end_ns) = (self.shared.now_ns(), self.shared.end_ns.load(Relaxed));
        // After the end of the run, the next call of `next` returns `None`.
        (now_ns < end_ns).then(|| Duration::from_nanos(due_ns.min(end_ns).saturating_sub(now_ns)))
    }

    #[inline]
    fn fill(&self, op: &Op, bytes: &mut [u8]) {
        self.shared.work.fill(op, bytes);
    }

    #[inline]
    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, data: &A) {
        let now = self.shared.now_ns();
        self.now_ns = now;
        self.tally.completions += 1;
        let complete = matches!(result, Ok(count) if count == op.bytes as usize);
        if !(complete && self.content_matches(&op, data)) {
            return self.record_failure(&op, &result);
        }
        self.tally.checked += 1;
        if self.is_measured(now) {
            let latency_ns = now - op.started_ns;
            self.tally
                .record(op.write, now, latency_ns, u64::from(op.bytes));
            if self.shared.work.timeline && self.tally.recorder.record(now, latency_ns) {
                self.shared.calls.enter_slice(self.tally.recorder.slice());
            }
        }
    }

    #[inline]
    fn called(&mut self) {
        if self.shared.work.timeline && self.is_measured(self.now_ns) {
            self.tally.recorder.call();
        }
    }

    fn ideal_result(&self, op: &Op) -> impl Completed + use<> {
        Ideal {
            contents: self.contents.unwrap_or(Contents::Unknown),
            dataset_offset: self.shared.work.dataset_offset(op),
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

#[cfg(test)]
mod tests;
