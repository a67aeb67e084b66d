//! The worker of a clone. It chooses operations by the rules of the job and records their results.
//!
//! It resembles the worker of `bench file`, but the job sets its lengths, directions, rates and end. A clone submits
//! from one thread, so all state belongs to that thread. Only the clock is shared by the clones of a stage.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use annulus_baselines::{Completed, Op, Worker};
use fastrand::Rng;

use super::options::{Kind, Verify};
use super::tally::{Side, Tally};
use super::value::Lengths;
use super::verify::{self, Written};
use crate::bench::file::order::{Lease, Order, OrderSpec};
use crate::bench::machine::thread_cpu_ns;

/// The clock of a stage, shared by all its clones.
pub(super) struct Clock {
    epoch: Instant,
    go_ns: AtomicU64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock {
            epoch: Instant::now(),
            go_ns: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Starts the stage. Only the first call has an effect.
    pub(super) fn go(&self) {
        let _ = self
            .go_ns
            .compare_exchange(0, self.now_ns().max(1), Relaxed, Relaxed);
    }
}

/// The operations that a clone performs.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    pub(super) random: bool,
    pub(super) read_percent: u8,
    pub(super) lengths: [Lengths; 2],
    /// The shortest length of an operation.
    pub(super) block_least: u64,
    pub(super) block_most: u64,
    pub(super) uniform: bool,
    pub(super) files: usize,
    /// The start and length of the part of each file that is used.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) repeats_blocks: bool,
    /// The clone ends after this number of requested bytes or operations.
    pub(super) bytes_most: u64,
    pub(super) ios_most: u64,
    pub(super) ramp: Duration,
    pub(super) runtime: Option<Duration>,
    /// Bytes per second of reads and of writes. 0 means no limit.
    pub(super) rate: [u64; 2],
    pub(super) seed: u64,
    pub(super) verify: Option<(Verify, Vec<u8>)>,
    /// If set, the clone only reads back these blocks.
    pub(super) read_back: Option<Arc<Written>>,
}

/// The load thread of a clone.
pub(super) struct JobWorker {
    clock: Arc<Clock>,
    work: Arc<Work>,
    rng: Rng,
    order: Order,
    lease: Lease,
    /// The position of the next sequential operation in each file, for reads and for writes.
    next_at: [Vec<u64>; 2],
    next_file: usize,
    read_back_at: u64,
    now_ns: u64,
    begin_ns: u64,
    measured_from_ns: u64,
    end_ns: u64,
    handed_out: HandedOut,
    /// The chosen direction, while its rate delays the next operation.
    chosen: Option<usize>,
    wait_until_ns: u64,
    written: Option<Written>,
    /// The processor time of the thread at the start.
    cpu_ns: u64,
    tally: Tally,
    scratch: Vec<u8>,
}

/// The bytes and operations requested since the start.
#[derive(Default)]
struct HandedOut {
    bytes: [u64; 2],
    ios: [u64; 2],
}

impl JobWorker {
    pub(super) fn new(clock: Arc<Clock>, work: Arc<Work>) -> JobWorker {
        let blocks = work.bytes / work.block_least.max(1);
        let writes = work.kind != Kind::Read && work.read_back.is_none();
        let written =
            (writes && work.verify.is_some()).then(|| Written::new(blocks * work.files as u64));
        let mut scratch = Vec::new();
        // A check needs it, and reports a failure.
        let _ = scratch.try_reserve_exact(work.block_most as usize);
        JobWorker {
            rng: Rng::with_seed(work.seed),
            order: Order::new(OrderSpec {
                blocks: (blocks * work.files as u64).max(1),
                seed: work.seed,
                random: true,
                endless: true,
                workers: 1,
            }),
            lease: Lease::default(),
            next_at: [vec![0; work.files], vec![0; work.files]],
            next_file: 0,
            read_back_at: 0,
            now_ns: 0,
            begin_ns: 0,
            measured_from_ns: 0,
            end_ns: 0,
            handed_out: HandedOut::default(),
            chosen: None,
            wait_until_ns: 0,
            written,
            cpu_ns: 0,
            tally: Tally::new(),
            scratch,
            clock,
            work,
        }
    }

    /// Returns the counts and the set of written blocks. Must be called on the clone's thread, whose usage it records.
    pub(super) fn into_parts(mut self) -> (Tally, Option<Written>) {
        self.tally.cpu_ns = thread_cpu_ns().saturating_sub(self.cpu_ns);
        let by_time = self.clock.now_ns() >= self.end_ns;
        self.tally
            .close(self.measured_from_ns, by_time.then_some(self.end_ns));
        (self.tally, self.written)
    }

    /// Reads the start time from the clock. Returns false if the clock has not started.
    #[cold]
    fn begin(&mut self) -> bool {
        self.begin_ns = self.clock.go_ns.load(Relaxed);
        if self.begin_ns == 0 {
            return false;
        }
        self.now_ns = self.clock.now_ns();
        self.cpu_ns = thread_cpu_ns();
        if self.work.read_back.is_some() {
            // Reading back is a separate phase, without the job's time limits.
            self.begin_ns = self.now_ns.max(1);
            self.measured_from_ns = self.begin_ns;
            self.end_ns = u64::MAX;
            return true;
        }
        self.measured_from_ns = self.begin_ns + self.work.ramp.as_nanos() as u64;
        self.end_ns = match self.work.runtime {
            Some(time) => self.measured_from_ns.saturating_add(time.as_nanos() as u64),
            None => u64::MAX,
        };
        true
    }

    /// Ends the worker's time.
    #[cfg(test)]
    pub(super) fn run_out(&mut self) {
        self.end_ns = self.begin_ns;
    }

    fn over(&self) -> bool {
        let handed_out = &self.handed_out;
        self.now_ns >= self.end_ns
            || handed_out.bytes[0] + handed_out.bytes[1] >= self.work.bytes_most
            || handed_out.ios[0] + handed_out.ios[1] >= self.work.ios_most
    }

    /// Returns the direction of the next operation: 0 for a read, 1 for a write.
    #[inline]
    fn direction(&mut self) -> usize {
        match self.work.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Mixed => usize::from(self.rng.u8(..100) >= self.work.read_percent),
        }
    }

    /// Returns the time at which the rate of a direction allows its next operation.
    #[inline]
    fn due_ns(&self, direction: usize) -> u64 {
        match self.work.rate[direction] {
            0 => 0,
            rate => {
                let after =
                    u128::from(self.handed_out.bytes[direction]) * 1_000_000_000 / u128::from(rate);
                self.begin_ns.saturating_add(after as u64)
            }
        }
    }

    /// Returns the direction of the next operation, or `None` if the rate allows none now. As in fio, if one direction
    /// of a mixed load has to wait, the other may run first.
    fn allowed(&mut self) -> Option<usize> {
        let preferred = self.chosen.take().unwrap_or_else(|| self.direction());
        let mut due = (self.due_ns(preferred), preferred);
        if due.0 <= self.now_ns {
            return Some(preferred);
        }
        // The time of the last completion may be out of date.
        self.now_ns = self.clock.now_ns();
        if self.work.kind == Kind::Mixed && due.0 > self.now_ns {
            due = due.min((self.due_ns(1 - preferred), 1 - preferred));
        }
        if due.0 <= self.now_ns {
            return Some(due.1);
        }
        self.chosen = Some(due.1);
        self.wait_until_ns = due.0;
        None
    }

    #[inline]
    fn length(&mut self, direction: usize) -> u64 {
        match &self.work.lengths[direction] {
            Lengths::Fixed(bytes) => *bytes,
            Lengths::Range(least, most) => least * self.rng.u64(1..=most / least),
            Lengths::Split(list) => {
                let mut drawn = self.rng.u8(..100);
                for (bytes, share) in list {
                    if drawn < *share {
                        return *bytes;
                    }
                    drawn -= share;
                }
                list.last()
                    .map_or(self.work.block_least, |(bytes, _)| *bytes)
            }
        }
    }

    /// Chooses a file, and an offset within its used part.
    #[inline]
    fn choose_block(&mut self, direction: usize, bytes: u64) -> (usize, u64) {
        let least = self.work.block_least;
        let per_file = self.work.bytes / least;
        if self.work.random && self.work.uniform && !self.work.repeats_blocks {
            let block = self.next_block();
            return ((block / per_file) as usize, block % per_file * least);
        }
        let file = match self.work.files {
            1 => 0,
            files => {
                self.next_file = (self.next_file + 1) % files;
                self.next_file
            }
        };
        if self.work.random {
            let positions = (self.work.bytes - bytes) / least + 1;
            return (file, self.rng.u64(..positions) * least);
        }
        let at = &mut self.next_at[direction][file];
        if *at + bytes > self.work.bytes {
            *at = 0;
        }
        let offset = *at;
        *at += bytes;
        (file, offset)
    }

    fn next_block(&mut self) -> u64 {
        loop {
            if let Some(block) = self.lease.next() {
                return block;
            }
            // The order is endless, so another lease is always available.
            self.lease = self.order.lease().unwrap_or_default();
        }
    }

    /// Returns a read of the next block to read back.
    fn next_read_back(&mut self) -> Option<Op> {
        let work = Arc::clone(&self.work);
        let block = work.read_back.as_ref()?.next_from(self.read_back_at)?;
        self.read_back_at = block + 1;
        let per_file = work.bytes / work.block_least;
        Some(Op {
            file: (block / per_file) as u32,
            bytes: work.block_least as u32,
            offset: work.offset + block % per_file * work.block_least,
            write: false,
            started_ns: self.now_ns,
        })
    }

    /// Checks the content of a read. Returns a description of the first mismatch.
    #[cold]
    fn check<A: Completed + ?Sized>(&mut self, op: &Op, data: &A) -> Option<String> {
        let (kind, pattern) = self.work.verify.as_ref()?;
        let missing = (op.bytes as usize).saturating_sub(self.scratch.len());
        if let Err(error) = self.scratch.try_reserve_exact(missing) {
            return Some(format!("check a block of {} bytes: {error}", op.bytes));
        }
        if !data.copy_to(&mut self.scratch) {
            return Some("the engine has no bytes to show".into());
        }
        self.tally.verified += 1;
        verify::check(kind, pattern, op.offset, &self.scratch).err()
    }
}

impl Worker for JobWorker {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        if self.begin_ns == 0 && !self.begin() {
            return None;
        }
        if self.work.read_back.is_some() {
            return self.next_read_back();
        }
        if self.over() {
            return None;
        }
        let direction = self.allowed()?;
        let bytes = self.length(direction);
        let (file, at) = self.choose_block(direction, bytes);
        self.handed_out.bytes[direction] += bytes;
        self.handed_out.ios[direction] += 1;
        if let Some(written) = self.written.as_mut().filter(|_| direction == 1) {
            let per_file = self.work.bytes / self.work.block_least;
            written.add(file as u64 * per_file + at / self.work.block_least);
        }
        Some(Op {
            file: file as u32,
            bytes: bytes as u32,
            offset: self.work.offset + at,
            write: direction == 1,
            started_ns: self.now_ns,
        })
    }

    fn later(&self) -> Option<Duration> {
        self.chosen?;
        let until = self.wait_until_ns.min(self.end_ns);
        let now_ns = self.clock.now_ns();
        // After the end of the run, the next call of `next` returns `None`.
        (now_ns < self.end_ns).then(|| Duration::from_nanos(until.saturating_sub(now_ns)))
    }

    #[inline]
    fn fill(&self, op: &Op, bytes: &mut [u8]) {
        if let Some((kind, pattern)) = &self.work.verify {
            verify::fill(kind, pattern, op.offset, bytes);
        }
    }

    #[inline]
    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, data: &A) {
        let now = self.clock.now_ns();
        self.now_ns = now;
        self.tally.completions += 1;
        let side = if op.write { Side::Write } else { Side::Read };
        match result {
            Ok(count) if count == op.bytes as usize => {}
            wrong => return self.tally.record_failure(&op, &wrong),
        }
        if !op.write && self.work.verify.is_some() {
            if let Some(text) = self.check(&op, data) {
                return self.tally.wrong(&op, text);
            }
            self.now_ns = self.clock.now_ns();
        }
        if now >= self.measured_from_ns && now < self.end_ns {
            self.tally
                .record(side, now, now - op.started_ns, u64::from(op.bytes));
        }
    }

    fn ideal_result(&self, _op: &Op) -> impl Completed + use<> {
        Nothing
    }
}

/// An empty result. Job files do not use the variant without I/O.
struct Nothing;

impl Completed for Nothing {
    fn word(&self, _at: usize) -> u64 {
        0
    }

    fn copy_to(&self, _into: &mut Vec<u8>) -> bool {
        false
    }
}
