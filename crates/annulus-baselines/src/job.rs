//! The types that variants and the tool share: a job, its operations, and the workers that issue them.
//!
//! A run has one [`Job`], and one [`Worker`] per thread or task of a variant. The tool implements [`Bench`] and
//! [`Worker`]; variants are generic over them, so that the calls in the hot loop are inlined.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Failure;

/// The largest number of blocking threads. A variant that needs more for one thread per operation is unfit.
const THREADS_MAX: usize = 4096;

/// The parameters of one run. The order of the blocks is the worker's choice.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The files, opened as the job requires: with `O_DIRECT` if `direct`, for writing if `writes`. Never empty. An
    /// operation refers to a file by its index.
    pub files: Arc<[File]>,
    /// Handles with `O_DIRECT` of the same files, if the file system supports that for blocks of this length.
    pub direct_files: Option<Arc<[File]>>,
    /// If not empty, the files of a load of small files, which are not open. Each operation opens the file with its
    /// index, queries the metadata, reads the whole file and closes it.
    pub paths: Arc<[PathBuf]>,
    /// Each operation on `paths` instead calls the function that reads a whole file into new memory, such as
    /// `std::fs::read`.
    pub whole: bool,
    /// The offset of the part of each file that the job uses.
    pub offset_bytes: u64,
    /// The length of that part; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// The length of every operation, or of the longest.
    pub block_bytes: usize,
    /// The number of operations in flight at any moment.
    pub depth: usize,
    /// The number of submitting threads, for variants that have a choice. `None` leaves it to the variant.
    pub threads: Option<usize>,
    /// The number of threads of Annulus's engine, not counting submitting threads. `None` leaves it to the variant.
    pub drivers: Option<usize>,
    /// Bypass the page cache.
    pub direct: bool,
    /// The blocks are in random order. Some variants pass this to the kernel as advice.
    pub random: bool,
    /// At least one operation is a write.
    pub writes: bool,
    /// A write completes only when its bytes are on stable storage.
    pub durable: bool,
    /// The memory that a variant may take to keep pages itself, in place of the page cache.
    pub cache_bytes: usize,
    /// The cache has as much of the files as it can hold before the clock starts.
    pub warm: bool,
    /// An operation reads many pages, all of which are in memory. For variants that
    /// [`reads_resident`](Variant::reads_resident) only.
    pub resident: bool,
    /// Operations read the first file; a variant that [`scans`](Variant::scans) also reads the others.
    pub scan: bool,
}

impl Job {
    /// Returns the file of `op`.
    #[inline]
    pub fn file(&self, op: &Op) -> &File {
        &self.files[op.file as usize]
    }

    /// Returns the number of threads for a variant that blocks one per operation, and the note for its row if that is
    /// fewer than the depth.
    pub fn blocking_threads(&self) -> (usize, Option<String>) {
        let depth = self.depth.max(1);
        let threads = self.threads.map_or(depth, |most| most.clamp(1, depth));
        let note = (threads < depth).then(|| {
            format!("a thread per operation, but --threads {threads}: {threads} outstanding instead of {depth}")
        });
        (threads, note)
    }

    /// Returns the reason to skip a variant that would need more than 4096 blocking threads.
    pub fn too_many_threads(&self) -> Option<String> {
        let (threads, _) = self.blocking_threads();
        (threads > THREADS_MAX).then(|| {
            format!(
                "a thread per operation would need {threads} threads, more than the limit of {THREADS_MAX}; \
                 use --threads"
            )
        })
    }

    /// Splits the depth among at most `threads` threads as evenly as possible. Each thread gets at least one operation.
    pub fn split_depth(&self, threads: usize) -> Vec<usize> {
        let threads = threads.clamp(1, self.depth.max(1));
        (0..threads)
            .map(|index| self.depth / threads + usize::from(index < self.depth % threads))
            .collect()
    }
}

/// A block to read or to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Op {
    /// The index of the file in [`Job::files`].
    pub file: u32,
    /// The length; at most the job's block size.
    pub bytes: u32,
    /// The offset in the file; a multiple of the block size from the start of the job's part.
    pub offset: u64,
    /// `true` for a write, `false` for a read.
    pub write: bool,
    /// The time at which it was issued, by the worker's clock, in nanoseconds.
    pub started_ns: u64,
}

/// The source of operations for one submitter. It also checks the results and records the latencies.
///
/// A worker belongs to one thread or task at a time, and allocates nothing while it is measured.
pub trait Worker: Send + 'static {
    /// Returns the next operation, or `None` if there is none now or the run is over. An operation starts at the time
    /// of the last `finish`, so the clock is read once per operation.
    fn next(&mut self) -> Option<Op>;

    /// Returns the pause before the next call of `next`, if `next` has returned `None` and the run is not over.
    /// Variants call it only with nothing in flight, so runs without a fixed rate pay nothing for it.
    fn later(&self) -> Option<Duration> {
        None
    }

    /// Fills `bytes` with the data of the write `op`.
    fn fill(&self, op: &Op, bytes: &mut [u8]);

    /// Takes the result of `op` (a number of bytes, or an error) and the bytes.
    fn finish<A: Completed + ?Sized>(&mut self, op: Op, result: io::Result<usize>, data: &A);

    /// Returns the bytes that a correct response to `op` has, for the variant that does no I/O. A worker that does not
    /// run this variant has none.
    fn ideal_result(&self, op: &Op) -> impl Completed + use<Self> {
        let _ = op;
    }

    /// Reports that the variant has made a call that submits or waits. Without these reports, the timeline of the row
    /// has no number of calls.
    #[inline]
    fn called(&mut self) {}
}

/// Access to the bytes of a completed operation.
pub trait Completed {
    /// Returns the eight bytes at `at`, little endian.
    fn word(&self, at: usize) -> u64;
    /// Copies all bytes to `into`. Used for the few results that are kept or hashed. Returns `false` if the bytes are
    /// not available.
    fn copy_to(&self, into: &mut Vec<u8>) -> bool;
}

impl Completed for [u8] {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self.get(at..at + 8).and_then(|word| word.try_into().ok()) {
            Some(word) => u64::from_le_bytes(word),
            // A buffer that is too short to hold the word is wrong.
            None => !0,
        }
    }

    fn copy_to(&self, into: &mut Vec<u8>) -> bool {
        into.clear();
        into.extend_from_slice(self);
        true
    }
}

/// No bytes.
impl Completed for () {
    fn word(&self, _at: usize) -> u64 {
        0
    }

    fn copy_to(&self, _into: &mut Vec<u8>) -> bool {
        false
    }
}

/// The tool's part in one run.
pub trait Bench: Send + Sync + 'static {
    /// The type of its workers.
    type Worker: Worker;

    /// Returns a new worker. All workers must exist before `go`.
    fn worker(&self) -> Self::Worker;

    /// Starts the clock. All threads and tasks are set up, and workers return operations from now on.
    fn go(&self);

    /// Takes a worker back with its counts, after its last operation has completed.
    fn done(&self, worker: Self::Worker);

    /// Registers a function that returns the number of calls so far. Called before `go`, by variants whose workers'
    /// threads do not make the calls. Any thread may call the function at any time.
    fn counts_calls(&self, read: Box<dyn Fn() -> u64 + Send + Sync>) {
        drop(read);
    }
}

/// The findings of a variant about a run, in addition to the workers' counts.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// The number of system calls that submitted or waited, over the whole run.
    pub calls: Option<u64>,
    /// A note for the reader of the row.
    pub note: Option<String>,
}

/// A way to do file I/O that can be measured.
pub trait Variant<B: Bench>: Send + Sync {
    /// Returns the name by which the user selects the variant.
    fn name(&self) -> &str;

    /// Returns a description of one line.
    fn about(&self) -> &str;

    /// Returns whether the variant can run a job with [`paths`](Job::paths).
    fn opens_files(&self) -> bool {
        false
    }

    /// Returns whether the variant is for a job of [`resident`](Job::resident) pages, and for no other.
    fn reads_resident(&self) -> bool {
        false
    }

    /// Returns whether the variant is for a job with a [`scan`](Job::scan), and for no other.
    fn scans(&self) -> bool {
        false
    }

    /// Returns whether the variant has its own memory in place of the page cache.
    fn has_own_cache(&self) -> bool {
        false
    }

    /// Returns the reason for which the variant cannot run this job, if there is one.
    fn unfit(&self, job: &Job) -> Option<String> {
        let _ = job;
        None
    }

    /// Keeps `job.depth` operations in flight until the workers return no more, and returns with none in flight. An
    /// error of a single operation goes to its worker and is no error of the run.
    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            depth: 7,
            ..Job::default()
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
