//! The layout of the counters that a process shares, for readers in other processes: `annulus-observe`,
//! `annulus-preload` and the tool. Has no stable interface.
//!
//! The in-memory file begins with a header of one page: words that describe the counters, then those of the switch
//! (`switch.rs`). The records follow (`record.rs`).

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use super::record::{self, PAGE_WORDS};
use super::snapshot::{Source, SourceKind};
use crate::sys::call;
use crate::sys::counter_storage::{self, CounterStorage, FILED_MAX};

pub mod pool;
pub mod preload;
pub mod switch;

pub use super::record::{HEAD_WORDS, VERSION, WORDS, names, read};

/// The names of all operations, as in docs/reference/kernels.md.
pub const OPERATION_NAMES: &[&str] = crate::op::NAMES;

/// The name of the file: `/proc/PID/fd/N` links to `/memfd:annulus-metrics`.
pub const FILE_NAME: &str = "annulus-metrics";
/// The first word of the file: "annulus\0", as bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"annulus\0");

/// Word of the header: [`VERSION`] of the process that shares.
pub const HEADER_VERSION: usize = 1;
/// Word of the header: the number of words of a record.
pub const HEADER_WORDS: usize = 2;
/// Word of the header: the highest number of records so far. The first record has the ended sources.
pub const HEADER_RECORDS: usize = 3;
/// Word of the header: the process ID, in the namespace of the process that shares.
pub const HEADER_PROCESS: usize = 4;
/// Word of the header: odd while counts move from a record to the ended source.
pub const HEADER_MOVES: usize = 5;
/// Word of the header: the time until which latencies are recorded for other processes, in ns of the monotonic clock.
pub const HEADER_LEASE: usize = 6;
/// Word of the header: [`names`] of the process that shares.
pub const HEADER_NAMES: usize = 7;
/// The number of words in the header that describe the counters.
pub const HEADER_SAYS: usize = 8;

/// The fields of [`Counts`](super::Counts) that are current values. The others only grow.
pub const GAUGES: [&str; 2] = ["in_flight", "pool_held"];

/// The maximum number of records in the file. The header is mapped as well.
pub const RECORDS_MAX: usize = FILED_MAX - 16;

/// Returns the offset of a record in the file, in bytes.
pub fn offset_of(position: usize) -> u64 {
    ((PAGE_WORDS + position * WORDS) * size_of::<u64>()) as u64
}

/// Sorts sources by owner, the ended ones last.
pub fn in_order(mut sources: Vec<Source>) -> Vec<Source> {
    sources.sort_by_key(|source| {
        let key = (source.owner, record::kind_number(source.kind), source.index);
        (source.kind == SourceKind::Ended, key)
    });
    sources
}

/// Counts the threads in the folder `threads` that the kernel created for a ring.
pub fn kernel_workers(threads: &str) -> u64 {
    let Ok(threads) = std::fs::read_dir(threads) else {
        return 0;
    };
    let named = threads.flatten().filter(|thread| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|name| name.starts_with(b"iou-wrk-"))
    });
    named.count() as u64
}

/// Returns the time of the monotonic clock, in ns.
pub fn now_ns() -> u64 {
    call::now_ns()
}

/// The header of another process's file, mapped for reading and writing.
pub struct MappedHeader(CounterStorage<PAGE_WORDS>);

impl MappedHeader {
    /// Maps the header of `file`.
    ///
    /// # Errors
    ///
    /// Fails with `InvalidData` if the file is too short or its owner could shrink it, and with any error of `mmap(2)`.
    pub fn of(file: &File) -> io::Result<MappedHeader> {
        CounterStorage::of_other(file).map(MappedHeader)
    }
}

impl Deref for MappedHeader {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &*self.0
    }
}

/// Wakes all threads that sleep on a word, in any process.
pub fn wake_all(word: &AtomicU64) {
    counter_storage::wake_all(word);
}
