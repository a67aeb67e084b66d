//! The options of one job, parsed from its keys, with fio's defaults.

use std::time::Duration;

use super::value::Size;
use crate::bench::file::verify::Verify;
use crate::bench::file::work::Lengths;

/// fio's default percentiles, used if a job lists none.
pub(super) const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];

/// The kind of system call that performs operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// `pread` and `pwrite`; fio's sync, psync, vsync, pvsync and pvsync2.
    Calls,
    /// Linux AIO.
    LinuxAio,
    /// An io_uring ring.
    IoUring,
    /// A shared memory map.
    Mmap,
}

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes.
    Mixed,
}

/// The advice to the kernel about the order of blocks, which controls read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// No advice.
    None,
    /// The order that `rw` specifies.
    AsOrdered,
    /// Random order.
    Random,
    /// Sequential order.
    Sequential,
}

/// The flag for synchronous writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncFlag {
    /// No flag.
    None,
    /// `O_SYNC`.
    Sync,
    /// `O_DSYNC`.
    Dsync,
}

/// One job.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) kind: Kind,
    pub(super) random: bool,
    /// The percentage of reads of a `Mixed` load.
    pub(super) read_percent: u8,
    /// Lengths of reads and of writes.
    pub(super) lengths: [Lengths; 2],
    pub(super) engine: Engine,
    /// The value of `ioengine`, as it was written.
    pub(super) engine_name: String,
    pub(super) direct: bool,
    pub(super) sync: SyncFlag,
    pub(super) invalidate: bool,
    pub(super) hint: Hint,
    pub(super) end_fsync: bool,
    pub(super) directory: Option<String>,
    /// The names in the value of `filename`. Empty if the key is absent.
    pub(super) filenames: Vec<String>,
    pub(super) nrfiles: u32,
    pub(super) size: Option<Size>,
    pub(super) filesize: Option<u64>,
    pub(super) offset: Size,
    pub(super) offset_increment: u64,
    pub(super) io_size: Option<u64>,
    pub(super) loops: u64,
    pub(super) number_ios: Option<u64>,
    pub(super) iodepth: usize,
    pub(super) batch_submit: usize,
    pub(super) batch_min: usize,
    pub(super) batch_max: Option<usize>,
    pub(super) iodepth_low: Option<usize>,
    pub(super) numjobs: usize,
    pub(super) thread: bool,
    pub(super) group_reporting: bool,
    pub(super) new_group: bool,
    pub(super) stonewall: bool,
    pub(super) time_based: bool,
    pub(super) runtime: Option<Duration>,
    pub(super) ramp_time: Duration,
    /// Bytes per second of reads and of writes. 0 means no limit.
    pub(super) rate: [u64; 2],
    /// Operations per second of reads and of writes. 0 means no limit.
    pub(super) rate_iops: [u64; 2],
    pub(super) percentiles: Vec<f64>,
    pub(super) sqthread_poll: bool,
    pub(super) hipri: bool,
    pub(super) fixedbufs: bool,
    pub(super) registerfiles: bool,
    pub(super) verify: Option<Verify>,
    pub(super) do_verify: bool,
    pub(super) pattern: Vec<u8>,
    pub(super) norandommap: bool,
    pub(super) randrepeat: bool,
    pub(super) randseed: Option<u64>,
    pub(super) unlink: bool,
    /// The job's name in results, if it is not that of its section.
    pub(super) name: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            kind: Kind::Read,
            random: false,
            read_percent: 50,
            lengths: [Lengths::Fixed(4096), Lengths::Fixed(4096)],
            engine: Engine::Calls,
            engine_name: "psync".into(),
            direct: false,
            sync: SyncFlag::None,
            invalidate: true,
            hint: Hint::AsOrdered,
            end_fsync: false,
            directory: None,
            filenames: Vec::new(),
            nrfiles: 1,
            size: None,
            filesize: None,
            offset: Size::Bytes(0),
            offset_increment: 0,
            io_size: None,
            loops: 1,
            number_ios: None,
            iodepth: 1,
            batch_submit: 1,
            batch_min: 1,
            batch_max: None,
            iodepth_low: None,
            numjobs: 1,
            thread: false,
            group_reporting: false,
            new_group: false,
            stonewall: false,
            time_based: false,
            runtime: None,
            ramp_time: Duration::ZERO,
            rate: [0; 2],
            rate_iops: [0; 2],
            percentiles: PERCENTILES.to_vec(),
            sqthread_poll: false,
            hipri: false,
            fixedbufs: false,
            registerfiles: false,
            verify: None,
            do_verify: true,
            pattern: Vec::new(),
            norandommap: false,
            randrepeat: true,
            randseed: None,
            unlink: false,
            name: None,
        }
    }
}

impl Options {
    /// Returns whether any operation is a write.
    pub(super) fn writes(&self) -> bool {
        self.kind != Kind::Read
    }

    /// Returns whether any operation is a read.
    pub(super) fn reads(&self) -> bool {
        self.kind != Kind::Write
    }

    /// Returns the length of the longest operation, in bytes.
    pub(super) fn block_most(&self) -> u64 {
        self.used_lengths().map(Lengths::most).max().unwrap_or(0)
    }

    /// Returns the length of the shortest operation, in bytes. Every offset is a multiple of it.
    pub(super) fn block_least(&self) -> u64 {
        self.used_lengths().map(Lengths::least).min().unwrap_or(0)
    }

    /// Returns the length of all operations if it is the same.
    pub(super) fn uniform(&self) -> Option<u64> {
        let same = self.block_least() == self.block_most();
        same.then(|| self.block_least())
    }

    fn used_lengths(&self) -> impl Iterator<Item = &Lengths> {
        let used = [self.reads(), self.writes()];
        self.lengths
            .iter()
            .zip(used)
            .filter_map(|(lengths, used)| used.then_some(lengths))
    }
}
