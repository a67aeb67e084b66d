//! What a simulated kernel is like: its sizes, and how often it does what. Everything that a kernel
//! does rarely is off by default.

use std::time::Duration;

use crate::narrow::to_ns;

/// How a simulated kernel behaves. Chances are given in thousandths.
///
/// [`SimConfig::new`] is a kernel at its best: operations complete immediately, in order, whole.
/// [`SimConfig::chaos`] switches everything on. Between the two, each fault has a method.
///
/// ```
/// use annulus::sim::{Errno, OpKind, SimConfig};
/// let disk = SimConfig::new(42)
///     .delays(std::time::Duration::from_millis(3))
///     .short_transfers(100)
///     .errors(&[OpKind::Read], Errno::Eio, 5);
/// # let _ = disk;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    pub(crate) seed: u64,
    pub(crate) delay_ns_max: u64,
    pub(crate) late_per_mille: u16,
    pub(crate) late_ns_max: u64,
    pub(crate) reorder_per_mille: u16,
    pub(crate) short_per_mille: u16,
    pub(crate) scribble_per_mille: u16,
    pub(crate) uncancellable_per_mille: u16,
    pub(crate) slow_cancels_per_mille: u16,
    pub(crate) refused_enters_per_mille: u16,
    pub(crate) broken_enters_per_mille: u16,
    pub(crate) short_submits_per_mille: u16,
    pub(crate) dies_after_enters: u64,
    pub(crate) write_back_per_mille: u16,
    pub(crate) deferred: bool,
    pub(crate) busy_on_overflow: bool,
    pub(crate) sq_entries: u32,
    pub(crate) cq_entries: u32,
    pub(crate) capacity_bytes: u64,
    pub(crate) file_bytes_max: u64,
    pub(crate) open_files_max: u32,
    /// Chance of each errno for each kind of operation.
    pub(crate) errors: [[u16; Errno::COUNT]; OpKind::COUNT],
}

/// Sizes as `Engine::builder` asks a real kernel for.
const SQ_ENTRIES: u32 = 256;
const CQ_ENTRIES: u32 = 4096;
/// Room for what a test writes; none of it is taken before it is written.
const CAPACITY_BYTES: u64 = 1 << 30;
/// ext4's, with blocks of 4 KiB.
const FILE_BYTES_MAX: u64 = 16 << 40;
/// `RLIMIT_NOFILE` as most shells set it.
const OPEN_FILES_MAX: u32 = 1024;

impl SimConfig {
    /// A kernel without faults, whose remaining choices follow `seed`.
    pub const fn new(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            delay_ns_max: 0,
            late_per_mille: 0,
            late_ns_max: 0,
            reorder_per_mille: 0,
            short_per_mille: 0,
            scribble_per_mille: 0,
            uncancellable_per_mille: 0,
            slow_cancels_per_mille: 0,
            refused_enters_per_mille: 0,
            broken_enters_per_mille: 0,
            short_submits_per_mille: 0,
            dies_after_enters: u64::MAX,
            write_back_per_mille: 0,
            deferred: true,
            busy_on_overflow: false,
            sq_entries: SQ_ENTRIES,
            cq_entries: CQ_ENTRIES,
            capacity_bytes: CAPACITY_BYTES,
            file_bytes_max: FILE_BYTES_MAX,
            open_files_max: OPEN_FILES_MAX,
            errors: [[0; Errno::COUNT]; OpKind::COUNT],
        }
    }

    /// A kernel with everything switched on. The seed also chooses the sizes of the queues (two
    /// entries and four, in a quarter of all cases) and the generation of the kernel.
    ///
    /// Operations fail by chance: code under test must take `EIO`, `ENOSPC` and `ENOMEM` for answers.
    pub fn chaos(seed: u64) -> SimConfig {
        let tiny = seed.is_multiple_of(4);
        let mut config = SimConfig::new(seed)
            .delays(Duration::from_micros(200))
            .late(20, Duration::from_millis(500))
            .reordering(300)
            .short_transfers(150)
            .scribbles(250)
            .uncancellable(300)
            .slow_cancels(300)
            .refused_enters(40)
            .broken_enters(40)
            .short_submits(100)
            .write_back(100)
            .deferred_task_work(!(seed / 4).is_multiple_of(3))
            .busy_on_overflow((seed / 12).is_multiple_of(3))
            .queues(if tiny { 2 } else { 32 }, if tiny { 4 } else { 64 })
            .errors(&OpKind::ALL, Errno::Eio, 5)
            .errors(&OpKind::ALL, Errno::Enomem, 3)
            .errors(&OpKind::ALL, Errno::Eintr, 20)
            .errors(&OpKind::ALL, Errno::Eagain, 20);
        for kind in [OpKind::Write, OpKind::Allocate, OpKind::Open, OpKind::Name] {
            config = config.errors(&[kind], Errno::Enospc, 5);
        }
        config
    }

    /// Each operation takes up to `most`, at random. On [`Sim::run`](crate::sim::Sim::run)'s clock,
    /// which costs no time.
    pub fn delays(mut self, most: Duration) -> Self {
        self.delay_ns_max = to_ns(most);
        self
    }

    /// One operation in `one_in` takes up to `most`, and no cancel stops it: a disk request that the
    /// device already has.
    pub fn late(mut self, per_mille: u16, most: Duration) -> Self {
        self.late_per_mille = per_mille;
        self.late_ns_max = to_ns(most);
        self
    }

    /// Of operations that are due together, the next to complete is chosen at random.
    pub fn reordering(mut self, per_mille: u16) -> Self {
        self.reorder_per_mille = per_mille;
        self
    }

    /// Reads and writes that transfer less than asked, though there is more.
    pub fn short_transfers(mut self, per_mille: u16) -> Self {
        self.short_per_mille = per_mille;
        self
    }

    /// Reads whose buffer is filled with garbage while they are in flight, as a device may: what a
    /// read leaves in a buffer means something only up to its answer.
    pub fn scribbles(mut self, per_mille: u16) -> Self {
        self.scribble_per_mille = per_mille;
        self
    }

    /// Operations that a cancel does not find, though they have not completed.
    pub fn uncancellable(mut self, per_mille: u16) -> Self {
        self.uncancellable_per_mille = per_mille;
        self
    }

    /// Cancels that answer before, or without, having stopped their operation.
    pub fn slow_cancels(mut self, per_mille: u16) -> Self {
        self.slow_cancels_per_mille = per_mille;
        self
    }

    /// Enter calls that fail (`EAGAIN`, `EINTR`, `EBUSY`) with everything still queued.
    pub fn refused_enters(mut self, per_mille: u16) -> Self {
        self.refused_enters_per_mille = per_mille;
        self
    }

    /// Enter calls that fail although they have taken part of the queue.
    pub fn broken_enters(mut self, per_mille: u16) -> Self {
        self.broken_enters_per_mille = per_mille;
        self
    }

    /// Enter calls that take fewer entries than they were asked to, and don't wait.
    pub fn short_submits(mut self, per_mille: u16) -> Self {
        self.short_submits_per_mille = per_mille;
        self
    }

    /// After this many enter calls of a driver each further call fails with `EBADFD`: the ring is gone, and
    /// with it whatever it had not answered.
    pub fn dies_after(mut self, enters: u64) -> Self {
        self.dies_after_enters = enters;
        self
    }

    /// Writes after which the kernel writes something of the file back to the disk on its own, so
    /// that a crash may find an earlier state than the last.
    pub fn write_back(mut self, per_mille: u16) -> Self {
        self.write_back_per_mille = per_mille;
        self
    }

    /// Whether completions appear only in an enter call that asks for them, as on a ring with
    /// `DEFER_TASKRUN`; true by default.
    pub fn deferred_task_work(mut self, deferred: bool) -> Self {
        self.deferred = deferred;
        self
    }

    /// Whether enter fails with `EBUSY` while overflowed completions find no room, as before
    /// Linux 5.19; false by default.
    pub fn busy_on_overflow(mut self, busy: bool) -> Self {
        self.busy_on_overflow = busy;
        self
    }

    /// Entries of the submission queue and of the completion queue, each at least 1; 256 and 4,096
    /// by default.
    pub fn queues(mut self, submission_entries: u32, completion_entries: u32) -> Self {
        self.sq_entries = submission_entries.max(1);
        self.cq_entries = completion_entries.max(1);
        self
    }

    /// Bytes the file system holds, in all; 1 GiB by default. Beyond it, `ENOSPC`.
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// The longest a file may be, bytes; 16 TiB by default. Beyond it, `EFBIG`.
    pub fn file_bytes_max(mut self, bytes: u64) -> Self {
        self.file_bytes_max = bytes;
        self
    }

    /// Descriptors open at a time; 1,024 by default. Beyond it, `EMFILE`.
    pub fn open_files_max(mut self, files: u32) -> Self {
        self.open_files_max = files;
        self
    }

    /// Operations of these kinds that fail with `errno`. They have no effect; but an `fsync` that
    /// fails with `EIO` or `ENOSPC` drops what it should have written, as Linux does, and a failed
    /// `close` has closed.
    pub fn errors(mut self, kinds: &[OpKind], errno: Errno, per_mille: u16) -> Self {
        for &kind in kinds {
            self.errors[kind as usize][errno as usize] = per_mille;
        }
        self
    }
}

/// Operations that fail alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// Round trips that ask nothing.
    Nop,
    /// Opening and making files.
    Open,
    /// Closing them.
    Close,
    /// Reads, vectored ones too.
    Read,
    /// Writes, vectored ones too.
    Write,
    /// `fsync`, `fdatasync`.
    Sync,
    /// `fallocate` and `ftruncate`.
    Allocate,
    /// `fadvise`.
    Advise,
    /// `statx`.
    Stat,
    /// Renames, removals and new directories.
    Name,
    /// Listing a directory.
    List,
}

impl OpKind {
    pub(crate) const COUNT: usize = 11;

    /// Every kind.
    pub const ALL: [OpKind; OpKind::COUNT] = [
        OpKind::Nop,
        OpKind::Open,
        OpKind::Close,
        OpKind::Read,
        OpKind::Write,
        OpKind::Sync,
        OpKind::Allocate,
        OpKind::Advise,
        OpKind::Stat,
        OpKind::Name,
        OpKind::List,
    ];
}

/// Errors that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Errno {
    /// The device failed.
    Eio,
    /// A signal came; operations are asked again by the library.
    Eintr,
    /// The kernel is short of something for a moment; asked again by the library.
    Eagain,
    /// The disk is full.
    Enospc,
    /// The kernel is short of memory.
    Enomem,
}

impl Errno {
    pub(crate) const COUNT: usize = 5;

    /// Every one.
    pub const ALL: [Errno; Errno::COUNT] = [
        Errno::Eio,
        Errno::Eintr,
        Errno::Eagain,
        Errno::Enospc,
        Errno::Enomem,
    ];

    /// Its number, as [`std::io::Error::raw_os_error`] gives it.
    pub fn number(self) -> i32 {
        use super::super::errno;
        match self {
            Errno::Eio => errno::EIO,
            Errno::Eintr => errno::EINTR,
            Errno::Eagain => errno::EAGAIN,
            Errno::Enospc => errno::ENOSPC,
            Errno::Enomem => errno::ENOMEM,
        }
    }
}
