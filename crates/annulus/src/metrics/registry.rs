//! All records of this process, and the sums of those that have ended.
//!
//! A record is memory of the process. After `share`, it is a part of an in-memory file, which other processes find
//! among the descriptors of this process.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::counters::{Record, count_error};
use super::layout::{
    FILE_NAME, HEADER_MOVES, HEADER_NAMES, HEADER_PROCESS, HEADER_RECORDS, HEADER_VERSION,
    HEADER_WORDS, MAGIC, RECORDS_MAX, in_order, offset_of,
};
use super::record::{self, Number, PAGE_WORDS, TimePart, WORDS};
use super::snapshot::{Source, SourceKind};
use crate::narrow::to_usize;
use crate::op::OperationNumber;
use crate::sys::counter_storage::{CounterStorage, Lasting, WordFile};
use crate::sys::forked;

/// The first words of the file.
pub(super) type Header = CounterStorage<PAGE_WORDS>;

/// The header of the file, if this process shares its metrics.
pub(super) static SHARED: Lasting<Header> = Lasting::new();

/// The memory for all counters if no other memory is available. It is never read.
static NOWHERE: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

struct Registry {
    /// The process that owns it. A forked child has a copy of its parent's.
    process: u64,
    entries: Vec<RegistryEntry>,
    ended: Option<Arc<Record>>,
    file: Option<Shares>,
}

struct RegistryEntry {
    record: Arc<Record>,
    /// The position in the file, if the record is part of it.
    position: Option<usize>,
}

struct Shares {
    file: WordFile,
    header: &'static Header,
    /// Positions that have been returned.
    free: Vec<usize>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    process: 0,
    entries: Vec::new(),
    ended: None,
    file: None,
});
/// The process that last used the registry.
static USED_BY: AtomicU64 = AtomicU64::new(0);

/// Locks the registry. Returns `None` in a forked child if another thread of the parent held the lock during the fork.
fn lock() -> Option<MutexGuard<'static, Registry>> {
    let process = forked::process();
    if USED_BY.load(Ordering::Acquire) == process {
        return Some(REGISTRY.lock().unwrap_or_else(PoisonError::into_inner));
    }
    // The parent's thread that held the lock does not exist here, so it cannot release it.
    let mut registry = match REGISTRY.try_lock() {
        Ok(registry) => registry,
        Err(TryLockError::Poisoned(registry)) => registry.into_inner(),
        Err(TryLockError::WouldBlock) if USED_BY.load(Ordering::Acquire) == 0 => {
            REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
        }
        Err(TryLockError::WouldBlock) => return None,
    };
    if registry.process != process {
        if registry.process != 0 {
            // The file belongs to the parent. The child must not return or end anything in it, and must not close its
            // descriptor, whose number may name another file by now.
            SHARED.set(None);
            std::mem::forget(registry.file.take());
        }
        *registry = Registry {
            process,
            entries: Vec::new(),
            ended: None,
            file: None,
        };
        USED_BY.store(process, Ordering::Release);
    }
    Some(registry)
}

/// Adds a record for a new source.
pub(super) fn add(kind: SourceKind) -> Arc<Record> {
    let Some(mut registry) = lock() else {
        return Arc::new(Record::own(&NOWHERE));
    };
    let (record, position) = match registry.file.as_mut().and_then(Shares::take) {
        Some((record, position)) => (record, Some(position)),
        None => (Record::own(&NOWHERE), None),
    };
    let record = Arc::new(record);
    record[record::KIND].store(record::kind_number(kind), Ordering::Release);
    registry.entries.push(RegistryEntry {
        record: Arc::clone(&record),
        position,
    });
    record
}

/// Moves the counts of `record` to the ended source.
pub(super) fn end(record: &Arc<Record>) {
    let Some(mut registry) = lock() else { return };
    let is_it = |entry: &RegistryEntry| Arc::ptr_eq(&entry.record, record);
    let Some(nth) = registry.entries.iter().position(is_it) else {
        return;
    };
    let RegistryEntry { position, .. } = registry.entries.swap_remove(nth);
    let Registry { ended, file, .. } = &mut *registry;
    let ended = ended.get_or_insert_with(|| {
        let ended = Arc::new(Record::own(&NOWHERE));
        ended[record::KIND].store(record::kind_number(SourceKind::Ended), Ordering::Relaxed);
        ended
    });
    let Some(file) = file else {
        return fold(record, ended);
    };
    let moves = &file.header[HEADER_MOVES];
    moves.fetch_add(1, Ordering::Relaxed);
    // A reader that sees a moved count also sees the odd number.
    fence(Ordering::Release);
    fold(record, ended);
    record[record::KIND].store(0, Ordering::Release);
    if let Some(position) = position {
        file.give_back(position, record);
    }
    moves.fetch_add(1, Ordering::Release);
}

/// Adds the counts of `from` to `to`.
fn fold(from: &Record, to: &Record) {
    let add = |position: usize| {
        let count = from[position].load(Ordering::Relaxed);
        if count > 0 {
            to[position].fetch_add(count, Ordering::Relaxed);
        }
    };
    let gauges = [Number::flying, Number::pool_held].map(|gauge| record::COUNTERS + gauge as usize);
    let counters = record::COUNTERS..record::COUNTERS + record::COUNTERS_MAX;
    counters
        .filter(|position| !gauges.contains(position))
        .for_each(add);
    for nth in 0..record::ERRORS_MAX {
        let position = record::ERRORS + 2 * nth;
        let count = from[position + 1].load(Ordering::Relaxed);
        if count > 0 {
            let errno = i32::try_from(from[position].load(Ordering::Relaxed));
            count_error(to, errno.unwrap_or(0), count);
        }
    }
    record::preload().for_each(add);
    for operation in OperationNumber::all() {
        add(record::completed(operation));
        add(record::failed(operation));
        if from[record::sum(operation, TimePart::Latency)].load(Ordering::Relaxed) == 0 {
            continue;
        }
        for part in [TimePart::Latency, TimePart::Queue, TimePart::Device] {
            add(record::sum(operation, part));
            record::buckets(operation, part).for_each(add);
        }
    }
}

impl Shares {
    fn new(lowest: RawFd) -> io::Result<Shares> {
        let file = WordFile::new(FILE_NAME, offset_of(RECORDS_MAX), lowest)?;
        let header = Header::of(&file, 0)?;
        for (word, value) in [
            (HEADER_VERSION, record::VERSION),
            (HEADER_WORDS, WORDS as u64),
            (HEADER_RECORDS, 1),
            (HEADER_NAMES, record::names()),
            (HEADER_PROCESS, u64::from(std::process::id())),
        ] {
            header[word].store(value, Ordering::Relaxed);
        }
        header[0].store(MAGIC, Ordering::Release);
        SHARED.set(Some(header));
        let header = SHARED.get().ok_or(io::ErrorKind::NotFound)?;
        Ok(Shares {
            file,
            header,
            free: Vec::new(),
        })
    }

    /// Takes a record of the file, if there is space.
    fn take(&mut self) -> Option<(Record, usize)> {
        let records = to_usize(self.header[HEADER_RECORDS].load(Ordering::Relaxed));
        let position = self
            .free
            .pop()
            .or((records < RECORDS_MAX).then_some(records))?;
        let Ok(record) = Record::of(&self.file, offset_of(position)) else {
            if position < records {
                self.free.push(position);
            }
            return None;
        };
        if position == records {
            self.header[HEADER_RECORDS].store(records as u64 + 1, Ordering::Release);
        }
        Some((record, position))
    }

    fn give_back(&mut self, position: usize, record: &Record) {
        record.clear();
        self.free.push(position);
    }
}

/// Lets other processes of the same user, and of root, read the metrics of this process:
/// `annulus_observe::snapshot_of`, and so `annulus top`.
///
/// Call this at the start of a program: engines and runtimes that already exist are not visible from outside. It costs
/// one descriptor, of an in-memory file named `annulus-metrics`, but no thread and no socket. Nothing remains after the
/// process has ended. A forked child shares nothing until it calls this itself.
///
/// ```
/// annulus::metrics::share()?; // first, because engines that exist already stay hidden
/// annulus::metrics::share()?; // a second call has no effect
/// let engine = annulus::Engine::new()?;
/// println!("annulus top {}", std::process::id());
/// # drop(engine); Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Fails with any error of creating an in-memory file: no descriptor is left, or the file size limit is too small. The
/// file has nearly 1 GiB, but parts that are never written take no memory.
pub fn share() -> io::Result<()> {
    share_above(0).map(|_| ())
}

/// Shares the metrics like [`share`], with a descriptor that is at least `lowest` if the limit on descriptors allows
/// it. For a library within another program that relies on low descriptor numbers. Returns the descriptor. If the
/// program closes it, counting continues, but other processes can no longer read.
///
/// ```
/// use std::os::fd::AsRawFd;
///
/// let descriptor = annulus::metrics::share_above(100)?;
/// assert!(descriptor >= 100);
/// let low = std::fs::File::open("/dev/null")?;
/// assert!(low.as_raw_fd() < 100); // low numbers stay free for the program
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Fails like [`share`].
pub fn share_above(lowest: RawFd) -> io::Result<RawFd> {
    let Some(mut registry) = lock() else {
        return Err(io::Error::other(
            "cannot share metrics in this forked child: another thread of the parent held the metrics lock during \
             the fork; fork again, and call share() first in the child",
        ));
    };
    if let Some(shares) = &registry.file {
        return Ok(shares.file.descriptor());
    }
    let mut shares = Shares::new(lowest)?;
    let descriptor = shares.file.descriptor();
    let ended = Record::of(&shares.file, offset_of(0))?;
    if let Some(before) = &registry.ended {
        fold(before, &ended);
    }
    ended[record::KIND].store(record::kind_number(SourceKind::Ended), Ordering::Release);
    shares.free.clear();
    registry.ended = Some(Arc::new(ended));
    registry.file = Some(shares);
    Ok(descriptor)
}

/// Calls `look` with every record. Returns `false` without a call if that would have to wait.
pub(super) fn each(mut look: impl FnMut(&Record)) -> bool {
    let registry = match REGISTRY.try_lock() {
        Ok(registry) => registry,
        Err(TryLockError::Poisoned(registry)) => registry.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    if registry.process == forked::process() {
        let records = registry.entries.iter().map(|entry| &entry.record);
        records
            .chain(&registry.ended)
            .for_each(|record| look(record));
    }
    true
}

/// Returns the current counters of all sources, the ended ones last.
pub(super) fn sources() -> Vec<Source> {
    let Some(registry) = lock() else {
        return Vec::new();
    };
    let records = registry.entries.iter().map(|entry| &entry.record);
    let records = records.chain(&registry.ended);
    let sources = records.filter_map(|record| {
        let words = |from: usize, count: usize| -> Option<Vec<u64>> {
            let words = record.get(from..from + count)?.iter();
            Some(words.map(|word| word.load(Ordering::Relaxed)).collect())
        };
        record::read(&words(0, record::HEAD_WORDS)?, words)
    });
    in_order(sources.collect())
}
