//! The operations of a run: what the command line and a job file both become.
//!
//! A run of a variant has one `Work`, and so has each clone of a job.

use std::time::Duration;

use annulus_baselines::Op;

use super::check::{self, Contents};
use super::order::{Order, Zipf};
use super::verify::{self, Verify, Written};

/// The operations that a variant performs, and the checks of their results.
pub(crate) struct Work {
    /// The share of writes, in percent.
    pub(crate) write_percent: u8,
    /// Lengths of reads and of writes.
    pub(crate) lengths: [Lengths; 2],
    /// The length of the shortest operation. Every offset is a multiple of it in the used part.
    pub(crate) block_bytes: u64,
    /// The length of the longest operation.
    pub(crate) block_bytes_max: u64,
    pub(crate) files: usize,
    /// The start and length of the used part of each file.
    pub(crate) offset_bytes: u64,
    pub(crate) file_bytes: u64,
    pub(crate) pick: Pick,
    /// A worker ends after this number of requested bytes or operations. A work with limits or a rate has one worker.
    pub(crate) bytes_max: u64,
    pub(crate) ops_max: u64,
    /// The time before the measured time.
    pub(crate) ramp: Duration,
    /// The measured time, if it is not the time that the operations take.
    pub(crate) runtime: Option<Duration>,
    /// If no block is left, let operations in flight complete within the measured time.
    pub(crate) once: bool,
    /// Bytes per second of reads and of writes. 0 means no limit.
    pub(crate) rate: [u64; 2],
    pub(crate) seed: u64,
    pub(crate) check: Check,
    /// Record the results over time.
    pub(crate) timeline: bool,
    /// Record the processor time of the workers' threads.
    pub(crate) thread_cpu: bool,
}

/// The choice of blocks.
pub(crate) enum Pick {
    /// Every block once in each pass of an order, which all workers share.
    Order(Order),
    /// Blocks by Zipf's law.
    Zipf(Zipf),
    /// Random offsets, which may repeat and overlap.
    Anywhere,
    /// The files in turn, each from its start, for reads and writes separately.
    InTurn,
    /// Reads of the blocks that a previous work has written.
    Written(Written),
}

/// The check of a completion of the right length.
pub(crate) enum Check {
    /// None.
    Length,
    /// The tags of the tool's files, or a sample that is compared afterwards. Writes carry the number of the run.
    Contents(Contents, u64),
    /// A job's `verify`, with its pattern.
    Verify(Verify, Vec<u8>),
}

/// The lengths of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// The length of all operations.
    Fixed(u64),
    /// Multiples of the first length, up to the second.
    Range(u64, u64),
    /// Lengths with their shares in percent.
    Split(Vec<(u64, u8)>),
}

impl Lengths {
    /// Returns the shortest length. Offsets are multiples of it.
    pub(crate) fn least(&self) -> u64 {
        match self {
            Lengths::Fixed(bytes) | Lengths::Range(bytes, _) => *bytes,
            Lengths::Split(list) => list.iter().map(|(bytes, _)| *bytes).min().unwrap_or(0),
        }
    }

    /// Returns the longest length.
    pub(crate) fn most(&self) -> u64 {
        match self {
            Lengths::Fixed(bytes) | Lengths::Range(_, bytes) => *bytes,
            Lengths::Split(list) => list.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
        }
    }
}

impl Work {
    /// Returns the number of blocks in a file.
    pub(crate) fn blocks_per_file(&self) -> u64 {
        self.file_bytes / self.block_bytes.max(1)
    }

    /// Returns whether a worker must count what it requests.
    pub(crate) fn is_paced(&self) -> bool {
        self.rate != [0; 2] || self.bytes_max != u64::MAX || self.ops_max != u64::MAX
    }

    /// Returns the position of `op` in the data set.
    #[inline]
    pub(crate) fn dataset_offset(&self, op: &Op) -> u64 {
        check::dataset_offset(op.file, self.file_bytes, op.offset)
    }

    /// Turns `bytes` into the data of the write `op`.
    #[inline]
    pub(crate) fn fill(&self, op: &Op, bytes: &mut [u8]) {
        match &self.check {
            Check::Contents(Contents::Tagged { seed, unit_bytes }, stamp) => {
                check::write_tags(bytes, self.dataset_offset(op), *seed, *unit_bytes, *stamp);
            }
            Check::Verify(kind, pattern) => verify::fill(kind, pattern, op.offset, bytes),
            Check::Length | Check::Contents(Contents::Unknown, _) => {}
        }
    }

    /// Returns an empty set for the blocks that are written, if they are read back later.
    pub(crate) fn written(&self) -> Option<Written> {
        let verified = matches!(self.check, Check::Verify(..)) && self.write_percent > 0;
        verified.then(|| Written::new(self.blocks_per_file() * self.files as u64))
    }
}
