//! Configuration of a simulated kernel: sizes, and probabilities of faults. All rare behaviour is off by default.

use std::time::Duration;

use crate::narrow::to_ns;

/// The behaviour of a simulated kernel. Probabilities are given in thousandths.
///
/// [`SimConfig::new`] is an ideal kernel: operations complete immediately, in order, and completely.
/// [`SimConfig::chaos`] enables all faults. Each fault also has a method.
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
    /// The probability of each errno for each kind of operation.
    pub(crate) errors: [[u16; Errno::COUNT]; OpKind::COUNT],
}

/// The sizes that `Engine::builder` requests from a real kernel.
const SQ_ENTRIES: u32 = 256;
const CQ_ENTRIES: u32 = 4096;
/// Enough for all tests; memory is only taken for data that is written.
const CAPACITY_BYTES: u64 = 1 << 30;
/// The limit of ext4 with blocks of 4 KiB.
const FILE_BYTES_MAX: u64 = 16 << 40;
/// The usual `RLIMIT_NOFILE` of a shell.
const OPEN_FILES_MAX: u32 = 1024;

impl SimConfig {
    /// Returns a kernel without faults. Its remaining choices follow `seed`.
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

    /// Returns a kernel with all faults enabled. The seed also selects the sizes of the queues (two and four entries in
    /// a quarter of all cases) and the generation of the kernel.
    ///
    /// Operations fail at random: code under test must handle `EIO`, `ENOSPC` and `ENOMEM`.
    ///
    /// A loop over seeds, with code that must survive every fault:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// for seed in 0..20 {
    ///     let sim = Sim::new(SimConfig::chaos(seed));
    ///     let saved = sim.run(async |engine| engine.write("/file", "contents").await);
    ///     if saved.is_ok() {
    ///         assert_eq!(sim.contents("/file").unwrap(), b"contents", "seed {seed}");
    ///     }
    /// }
    /// ```
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

    /// Sets the maximum duration of an operation; each takes a random time up to it. On the virtual clock of
    /// [`Sim::run`](crate::sim::Sim::run) this costs no real time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).delays(Duration::from_secs(100)));
    /// sim.put("/file", "0123")?;
    /// let read = sim.run(async |engine| {
    ///     let file = engine.open("/file").await?;
    ///     file.read_at(vec![0; 4], 0).timeout(Duration::from_millis(1)).await.map_err(std::io::Error::from)
    /// });
    /// assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::TimedOut); // after 1 ms of simulated time
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn delays(mut self, most: Duration) -> Self {
        self.delay_ns_max = to_ns(most);
        self
    }

    /// Makes `per_mille` of the operations take up to `most`, without being cancellable: disk requests that the device
    /// has already accepted.
    pub fn late(mut self, per_mille: u16, most: Duration) -> Self {
        self.late_per_mille = per_mille;
        self.late_ns_max = to_ns(most);
        self
    }

    /// Makes `per_mille` of the completions overtake others: the next one is chosen at random among the operations that
    /// are due.
    pub fn reordering(mut self, per_mille: u16) -> Self {
        self.reorder_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the reads and writes transfer fewer bytes than requested, although more are available.
    ///
    /// A loop that forgets short reads fails here:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).short_transfers(1000));
    /// sim.put("/file", "0123456789")?;
    /// let (bytes, _) = sim.run(async |engine| {
    ///     let file = engine.open("/file").await?;
    ///     file.read_at(vec![0; 10], 0).await.map_err(std::io::Error::from)
    /// })?;
    /// assert!((1..10).contains(&bytes)); // `read_exact_at` would continue
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn short_transfers(mut self, per_mille: u16) -> Self {
        self.short_per_mille = per_mille;
        self
    }

    /// Fills the buffers of `per_mille` of the reads with garbage while they are in flight, as a device may. Only the
    /// bytes that a completion reports are meaningful.
    pub fn scribbles(mut self, per_mille: u16) -> Self {
        self.scribble_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the operations impossible to cancel: a cancel reports `ENOENT` although they have not
    /// completed.
    ///
    /// A timeout of an operation that the device has already: the buffer does not come back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let config = SimConfig::new(1).delays(Duration::from_secs(100)).uncancellable(1000);
    /// let sim = Sim::new(config);
    /// sim.put("/file", "0123")?;
    /// let error = sim.run(async |engine| {
    ///     let file = engine.open("/file").await?;
    ///     let read = file.read_at(vec![0; 4], 0).timeout(Duration::from_millis(1)).await;
    ///     std::io::Result::Ok(read.unwrap_err())
    /// })?;
    /// assert!(error.into_buf().is_none()); // the engine frees it when the kernel has finished
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn uncancellable(mut self, per_mille: u16) -> Self {
        self.uncancellable_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the cancels complete before they have stopped their operation, or without stopping it.
    pub fn slow_cancels(mut self, per_mille: u16) -> Self {
        self.slow_cancels_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the enter calls fail (`EAGAIN`, `EINTR`, `EBUSY`) with all entries still queued.
    pub fn refused_enters(mut self, per_mille: u16) -> Self {
        self.refused_enters_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the enter calls fail after they have taken a part of the queue.
    pub fn broken_enters(mut self, per_mille: u16) -> Self {
        self.broken_enters_per_mille = per_mille;
        self
    }

    /// Makes `per_mille` of the enter calls take fewer entries than requested, and not wait.
    pub fn short_submits(mut self, per_mille: u16) -> Self {
        self.short_submits_per_mille = per_mille;
        self
    }

    /// Makes every enter call after this number of calls per driver fail with `EBADFD`: the ring is gone, and
    /// outstanding completions are lost.
    ///
    /// The ring fails in the middle of a run:
    ///
    /// ```
    /// use annulus::{EngineError, sim::{Sim, SimConfig}};
    ///
    /// let sim = Sim::new(SimConfig::new(1).dies_after(3));
    /// let error = sim.run(async |engine| loop {
    ///     if let Err(error) = engine.nop().await {
    ///         return error;
    ///     }
    /// });
    /// assert!(matches!(EngineError::of(&error), Some(EngineError::RingFailed { .. })));
    /// ```
    pub fn dies_after(mut self, enters: u64) -> Self {
        self.dies_after_enters = enters;
        self
    }

    /// Makes the kernel write a part of a file back to the disk after `per_mille` of the writes, so that a crash may
    /// leave a state before the last.
    ///
    /// Parts of an unsynced file may survive a crash, in any order:
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).write_back(1000));
    /// sim.put("/file", vec![1; 8192])?;
    /// sim.run(async |engine| {
    ///     let mut options = annulus::OpenOptions::new();
    ///     let file = engine.open_with(options.write(true), "/file").await?;
    ///     file.write_all_at(vec![2; 8192], 0).await.map(drop).map_err(std::io::Error::from)
    /// })?;
    /// sim.crash();
    /// let contents = sim.contents("/file")?;
    /// assert!(contents.iter().all(|&byte| byte == 1 || byte == 2)); // old and new sectors, mixed
    /// assert!(sim.counts().written_back > 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn write_back(mut self, per_mille: u16) -> Self {
        self.write_back_per_mille = per_mille;
        self
    }

    /// Sets whether completions appear only in an enter call that requests them, as on a ring with `DEFER_TASKRUN`. The
    /// default is `true`.
    pub fn deferred_task_work(mut self, deferred: bool) -> Self {
        self.deferred = deferred;
        self
    }

    /// Sets whether enter fails with `EBUSY` while overflowed completions do not fit into the queue, as before Linux
    /// 5.19. The default is `false`.
    pub fn busy_on_overflow(mut self, busy: bool) -> Self {
        self.busy_on_overflow = busy;
        self
    }

    /// Sets the entries of the submission queue and of the completion queue, each at least 1. The default is 256 and
    /// 4,096.
    pub fn queues(mut self, submission_entries: u32, completion_entries: u32) -> Self {
        self.sq_entries = submission_entries.max(1);
        self.cq_entries = completion_entries.max(1);
        self
    }

    /// Sets the capacity of the file system in bytes; writes beyond it fail with `ENOSPC`. The default is 1 GiB.
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).capacity_bytes(1 << 20));
    /// let written = sim.run(async |engine| engine.write("/big", vec![0; 2 << 20]).await);
    /// assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    /// ```
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Sets the maximum length of a file in bytes; writes beyond it fail with `EFBIG`. The default is 16 TiB.
    pub fn file_bytes_max(mut self, bytes: u64) -> Self {
        self.file_bytes_max = bytes;
        self
    }

    /// Sets the maximum number of open descriptors; further opens fail with `EMFILE`. The default is 1,024.
    ///
    /// ```
    /// use annulus::sim::{Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).open_files_max(1));
    /// sim.put("/file", "")?;
    /// sim.run(async |engine| {
    ///     let first = engine.open("/file").await?;
    ///     assert_eq!(engine.open("/file").await.unwrap_err().raw_os_error(), Some(24)); // `EMFILE`
    ///     drop(first);
    ///     engine.open("/file").await.map(drop)
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open_files_max(mut self, files: u32) -> Self {
        self.open_files_max = files;
        self
    }

    /// Makes `per_mille` of the operations of these kinds fail with `errno`. They have no effect, with two exceptions:
    /// an `fsync` that fails with `EIO` or `ENOSPC` drops the data that it should have written, as on Linux, and a
    /// failed `close` has closed the descriptor.
    ///
    /// A full disk, and a program that must report it:
    ///
    /// ```
    /// use annulus::sim::{Errno, OpKind, Sim, SimConfig};
    ///
    /// let sim = Sim::new(SimConfig::new(1).errors(&[OpKind::Write], Errno::Enospc, 1000));
    /// let error = sim.run(async |engine| engine.write("/log", "entry").await).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    /// ```
    pub fn errors(mut self, kinds: &[OpKind], errno: Errno, per_mille: u16) -> Self {
        for &kind in kinds {
            self.errors[kind as usize][errno as usize] = per_mille;
        }
        self
    }
}

/// Groups of operations that fail with the same errors.
///
/// Every kind can fail alone. A failed sync loses the data that it should have written:
///
/// ```
/// use annulus::sim::{Errno, OpKind, Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1).errors(&[OpKind::Sync], Errno::Eio, 1000));
/// sim.put("/log", "old")?;
/// let synced = sim.run(async |engine| {
///     engine.write("/log", "new").await?;
///     engine.open("/log").await?.sync_all().await
/// });
/// assert_eq!(synced.unwrap_err().raw_os_error(), Some(Errno::Eio.number()));
/// sim.crash();
/// assert_ne!(sim.contents("/log")?, b"new");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// Operations that do nothing.
    Nop,
    /// Opening and creating files.
    Open,
    /// Closing files.
    Close,
    /// Reads, including vectored ones.
    Read,
    /// Writes, including vectored ones.
    Write,
    /// `fsync`, `fdatasync`.
    Sync,
    /// `fallocate` and `ftruncate`.
    Allocate,
    /// `fadvise`.
    Advise,
    /// `statx`, the target of a symbolic link, and reads of extended attributes.
    Stat,
    /// Renames, removals, links, creation of directories, and changes of permissions, times and extended attributes.
    Name,
    /// Listing a directory.
    List,
}

impl OpKind {
    pub(crate) const COUNT: usize = 11;

    /// All kinds.
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
///
/// ```
/// use annulus::sim::{Errno, OpKind, Sim, SimConfig};
///
/// // `EINTR` and `EAGAIN` are repeated by the library, so a program never sees them.
/// let config = SimConfig::new(1).errors(&OpKind::ALL, Errno::Eintr, 300);
/// Sim::new(config).run(async |engine| engine.write("/file", "contents").await)?;
/// assert_eq!(std::io::Error::from_raw_os_error(Errno::Enospc.number()).kind(), std::io::ErrorKind::StorageFull);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Errno {
    /// The device failed.
    Eio,
    /// A signal arrived; the library repeats the operation.
    Eintr,
    /// The kernel is temporarily short of a resource; the library repeats the operation.
    Eagain,
    /// The disk is full.
    Enospc,
    /// The kernel is short of memory.
    Enomem,
}

impl Errno {
    pub(crate) const COUNT: usize = 5;

    /// All errors.
    pub const ALL: [Errno; Errno::COUNT] = [
        Errno::Eio,
        Errno::Eintr,
        Errno::Eagain,
        Errno::Enospc,
        Errno::Enomem,
    ];

    /// Returns the number, as [`std::io::Error::raw_os_error`] returns it.
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
