//! The types that variants and the tool share: a job, its operations, and the workers that hand them out.
//!
//! One [`Job`] per run, one [`Worker`] per thread or task of a variant. The tool implements [`Bench`] and
//! [`Worker`]; variants are generic over them so that the calls in the hot loop are inlined.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::Failure;

/// More threads than this are no way to read files: a variant that needs one per operation is unfit.
const THREADS_MAX: usize = 4096;

/// What one run does, apart from which block comes when (that is the worker's).
#[derive(Clone, Debug)]
pub struct Job {
    /// Opened as the job says: with `O_DIRECT` if `direct`, for writing if `writes`. Never empty; an
    /// operation names one by its index here.
    pub files: Arc<[File]>,
    /// Where the part of each file begins that the job touches.
    pub offset_bytes: u64,
    /// How long that part of each file is; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// The length of every operation, or of the longest.
    pub block_bytes: usize,
    /// How many operations are outstanding at any moment.
    pub depth: usize,
    /// Threads that ask, for variants that have a choice; `None` leaves it to them.
    pub threads: Option<usize>,
    /// Threads of Annulus's engine, apart from those that ask; `None` leaves it to the variant.
    pub drivers: Option<usize>,
    /// Whether the files bypass the page cache.
    pub direct: bool,
    /// Whether blocks come in random order; some variants give the kernel a hint.
    pub random: bool,
    /// Whether any operation is a write.
    pub writes: bool,
    /// Whether a write is answered only when its bytes are on stable storage.
    pub durable: bool,
}

impl Job {
    /// The file that `op` is about.
    #[inline]
    pub fn file(&self, op: &Op) -> &File {
        &self.files[op.file as usize]
    }

    /// For a variant that blocks a thread per operation: how many threads it gets, and what its row
    /// must say if those are fewer than the depth.
    pub fn blocking_threads(&self) -> (usize, Option<String>) {
        let depth = self.depth.max(1);
        let threads = self.threads.map_or(depth, |most| most.clamp(1, depth));
        let note = (threads < depth).then(|| {
            format!("a thread per operation, but --threads {threads}: {threads} outstanding instead of {depth}")
        });
        (threads, note)
    }

    /// Why this job needs more blocking threads than make sense, if it does.
    pub fn too_many_threads(&self) -> Option<String> {
        let (threads, _) = self.blocking_threads();
        (threads > THREADS_MAX).then(|| {
            format!(
                "a thread per operation would be {threads} threads, at most {THREADS_MAX} make sense; \
                 see it with --threads"
            )
        })
    }

    /// How the depth is split among `threads` threads: as evenly as it goes, none left without work.
    pub fn split_depth(&self, threads: usize) -> Vec<usize> {
        let threads = threads.clamp(1, self.depth.max(1));
        (0..threads)
            .map(|index| self.depth / threads + usize::from(index < self.depth % threads))
            .collect()
    }
}

/// One operation: a block to read or to write, and when it was handed out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Op {
    /// Which of the job's files.
    pub file: u32,
    /// How many bytes; at most the job's block.
    pub bytes: u32,
    /// Where in the file; a multiple of the block size from the start of the job's part.
    pub offset: u64,
    /// A write if true, else a read.
    pub write: bool,
    /// When it was handed out, by the clock of the worker, in nanoseconds.
    pub started_ns: u64,
}

/// One submitter's share of the work: says what comes next, checks the answers, keeps the times.
///
/// A worker belongs to one thread or task at a time and allocates nothing while it is measured.
pub trait Worker: Send + 'static {
    /// The next operation, or `None` when the run is over. The time of submission is that of the last
    /// `finish`, so the answer's bookkeeping is paid once per operation.
    fn next(&mut self) -> Option<Op>;

    /// When `next` gave nothing although the run is not over: after how long to ask again. Asked only with
    /// nothing outstanding, so it costs a run that is never paced nothing.
    fn later(&self) -> Option<Duration> {
        None
    }

    /// Puts into `bytes` what a write of `op` must carry.
    fn fill(&self, op: &Op, bytes: &mut [u8]);

    /// Takes the answer: how many bytes, or which error, and the bytes themselves.
    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, answer: &A);

    /// An answer to `op` as it ought to be, for the variant that does no I/O.
    fn ideal_result(&self, op: &Op) -> impl Completed + use<Self>;

    /// The variant has made a call that submits or waits. One that is told of none has no calls over time.
    #[inline]
    fn called(&mut self) {}
}

/// The bytes of an answer, wherever they are.
pub trait Completed {
    /// The eight bytes at `at`, little endian.
    fn word(&self, at: usize) -> u64;
    /// All the bytes, for the few answers that are kept or hashed; `false` if there are none to give.
    fn copy_to(&self, into: &mut Vec<u8>) -> bool;
}

impl Completed for [u8] {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self.get(at..at + 8).and_then(|word| word.try_into().ok()) {
            Some(word) => u64::from_le_bytes(word),
            // A buffer too short to hold the word cannot hold the right one.
            None => !0,
        }
    }

    fn copy_to(&self, into: &mut Vec<u8>) -> bool {
        into.clear();
        into.extend_from_slice(self);
        true
    }
}

/// The tool's side of one run.
pub trait Bench: Send + Sync + 'static {
    /// The kind of worker it hands out.
    type Worker: Worker;

    /// Returns a new worker. All workers must exist before `go`.
    fn worker(&self) -> Self::Worker;

    /// Everything is set up: the clock starts. Workers give operations from now on.
    fn go(&self);

    /// Takes a worker back, with its counts, when its last operation has been answered.
    fn done(&self, worker: Self::Worker);

    /// Before `go`: where the number of calls so far can be read at any time, by any thread, for variants whose
    /// calls are not made by the threads of the workers.
    fn counts_calls(&self, read: Box<dyn Fn() -> u64 + Send + Sync>) {
        drop(read);
    }
}

/// What a variant can say about a run beyond what the workers saw.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Calls into the kernel that submitted or waited, over the whole run.
    pub calls: Option<u64>,
    /// Something a reader of the row should know.
    pub note: Option<String>,
}

/// A way to do file I/O that can be measured.
pub trait Variant<B: Bench>: Send + Sync {
    /// The name by which it is chosen.
    fn name(&self) -> &str;

    /// What it is, in one line.
    fn about(&self) -> &str;

    /// Why this job makes no sense for it, if it makes none.
    fn unfit(&self, job: &Job) -> Option<String> {
        let _ = job;
        None
    }

    /// Keeps `job.depth` operations outstanding until the workers give no more, then returns with none
    /// outstanding. An error of a single operation goes to its worker, not here.
    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            files: Arc::new([File::open("/dev/null").unwrap()]),
            offset_bytes: 0,
            size_bytes: 0,
            block_bytes: 4096,
            depth: 7,
            threads: None,
            drivers: None,
            direct: false,
            random: true,
            writes: false,
            durable: false,
        }
    }

    #[test]
    fn a_depth_is_split_evenly_and_no_thread_is_left_idle() {
        let mut job = job();
        assert_eq!(job.split_depth(3), [3, 2, 2]);
        job.depth = 2;
        assert_eq!(job.split_depth(8), [1, 1]);
    }

    #[test]
    fn a_thread_per_operation_is_capped_and_says_so() {
        let mut job = job();
        assert_eq!(job.blocking_threads(), (7, None));
        job.threads = Some(3);
        let (threads, note) = job.blocking_threads();
        assert_eq!(threads, 3);
        assert!(note.unwrap().contains("3 outstanding instead of 7"));
        job.depth = 20_000;
        assert_eq!(job.too_many_threads(), None);
        job.threads = None;
        assert!(job.too_many_threads().unwrap().contains("20000 threads"));
    }

    #[test]
    fn a_word_beyond_the_result_is_never_right() {
        let bytes = [1u8, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(bytes[..].word(0), 1);
        assert_eq!(bytes[..].word(8), !0);
    }
}
