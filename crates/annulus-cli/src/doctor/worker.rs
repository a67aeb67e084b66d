//! Random reads of 4 KiB for a short time, for the variants of `bench file`. The content is not checked.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use annulus_baselines::{Bench, Completed, Failure, Job, Op, Worker};

pub(crate) const BLOCK_BYTES: usize = 4096;

/// Returns the job of a variant.
pub(crate) fn job(file: File, bytes: u64, depth: usize, direct: bool) -> Job {
    Job {
        files: Arc::new([file]),
        size_bytes: bytes - bytes % BLOCK_BYTES as u64,
        block_bytes: BLOCK_BYTES,
        depth,
        threads: Some(1),
        direct,
        random: true,
        ..Job::default()
    }
}

/// The bench of one sample.
pub(crate) struct Timed {
    blocks: u64,
    window: Duration,
    began: Arc<OnceLock<Instant>>,
    counted: Mutex<Counted>,
}

#[derive(Default)]
struct Counted {
    reads: u64,
    ns: f64,
    wrong: Option<String>,
}

impl Timed {
    pub(crate) fn new(job: &Job, window: Duration) -> Timed {
        Timed {
            blocks: job.size_bytes / BLOCK_BYTES as u64,
            window,
            began: Arc::default(),
            counted: Mutex::default(),
        }
    }

    /// Returns the time per read. Fails if a read failed.
    pub(crate) fn ns_per_op(self) -> Result<f64, Failure> {
        let counted = self.counted.into_inner();
        let counted = counted.unwrap_or_else(PoisonError::into_inner);
        match counted.wrong {
            Some(wrong) => Err(Failure::Failed(wrong)),
            None if counted.reads == 0 => Err(Failure::Failed(
                "no read completed in time; run the command again when the machine is idle".into(),
            )),
            None => Ok(counted.ns / counted.reads as f64),
        }
    }
}

impl Bench for Timed {
    type Worker = TimedWorker;

    fn worker(&self) -> TimedWorker {
        TimedWorker {
            blocks: self.blocks,
            window: self.window,
            began: Arc::clone(&self.began),
            random: fastrand::Rng::new(),
            reads: 0,
            wrong: None,
        }
    }

    fn go(&self) {
        let _ = self.began.set(Instant::now());
    }

    fn done(&self, worker: TimedWorker) {
        let elapsed = worker.elapsed().as_nanos() as f64;
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.reads += worker.reads;
        counted.ns = counted.ns.max(elapsed);
        counted.wrong = counted.wrong.take().or(worker.wrong);
    }
}

/// Reads random blocks until the time is over.
pub(crate) struct TimedWorker {
    blocks: u64,
    window: Duration,
    began: Arc<OnceLock<Instant>>,
    random: fastrand::Rng,
    reads: u64,
    wrong: Option<String>,
}

impl TimedWorker {
    fn elapsed(&self) -> Duration {
        self.began.get().map_or(Duration::ZERO, Instant::elapsed)
    }
}

impl Worker for TimedWorker {
    fn next(&mut self) -> Option<Op> {
        // At least one read, even if the time is over.
        if self.wrong.is_some() || (self.reads > 0 && self.elapsed() >= self.window) {
            return None;
        }
        Some(Op {
            offset: self.random.u64(..self.blocks) * BLOCK_BYTES as u64,
            bytes: BLOCK_BYTES as u32,
            ..Op::default()
        })
    }

    fn fill(&self, _op: &Op, _bytes: &mut [u8]) {}

    fn finish<A: Completed + ?Sized>(&mut self, _op: Op, result: io::Result<usize>, _data: &A) {
        match result {
            Ok(BLOCK_BYTES) => self.reads += 1,
            Ok(count) => self.wrong = Some(format!("a read of 4096 bytes returned {count}")),
            Err(error) => self.wrong = Some(format!("a read of 4096 bytes failed: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use annulus_baselines::{Pread, Variant};

    #[test]
    fn reads_are_counted_and_a_short_one_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * BLOCK_BYTES as u64).unwrap();
        let whole = job(file.try_clone().unwrap(), 8 * BLOCK_BYTES as u64, 1, false);
        let bench = Timed::new(&whole, Duration::from_millis(2));
        Pread.run(&whole, &bench).unwrap();
        assert!(bench.ns_per_op().unwrap() > 0.0);
        // The file is now shorter than the job.
        file.set_len(100).unwrap();
        let bench = Timed::new(&whole, Duration::from_millis(2));
        Pread.run(&whole, &bench).unwrap();
        let error = bench.ns_per_op().unwrap_err().to_string();
        assert!(
            error.starts_with("a read of 4096 bytes returned "),
            "{error}"
        );
    }
}
