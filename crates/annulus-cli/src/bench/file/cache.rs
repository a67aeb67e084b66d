//! Page cache state: evicts or warms the files before every run, and checks the result.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use annulus_baselines::resident_bytes;
use rustix::fs::{Access, Advice, access, fadvise, fdatasync};
use rustix::io::Errno;

use super::check::Contents;
use super::limit::Limit;
use super::plan::Plan;
use super::testfile::TestFile;
use crate::args::Cache;
use crate::bench::machine::{memory_available_bytes, own_memory_bytes};
use crate::fault::Fault;
use crate::signals;

/// The share of a cold file that may be in the page cache: read-ahead of other files brings in a few pages.
const COLD_RESIDENT_MAX: f64 = 0.01;
/// The share of a hot file that must be in the page cache.
const HOT_RESIDENT_MIN: f64 = 0.99;
/// The share of the available memory that a run may use.
const MEMORY_SHARE: f64 = 0.8;
/// The most memory that an operation in flight uses besides its buffer: a thread's stacks, a histogram.
const BESIDE_BUFFER_BYTES: u64 = 64 << 10;
/// The reason given if the kernel does not report residency.
const NOT_KNOWN: &str = "cold or hot is not known: the kernel shows what is cached only to the owner of the \
                         file and to users with write permission; run as such a user, or use --direct";
/// The reason given if the file system does not support `mincore`.
const NOT_MAPPED: &str = "cold or hot is not known: this file system does not allow mapping the file, which \
                          shows what is cached; use --direct";
/// The reasons given if the memory limit has no effect.
const NO_LIMIT: &str = "it shows nothing without a memory limit: use --memory";
pub(super) const NOT_FULL: &str = "it shows nothing, because the memory limit was not reached: use less --memory, a larger --size or a longer --runtime";
/// The part of the memory that a variant with its own cache leaves free beside its operations, and the least of it.
const OWN_SHARE: u64 = 16;
const OWN_MIN: u64 = 32 << 20;
/// The part of a hot file by which such a variant's memory is larger than the file.
const HOT_SHARE: u64 = 8;
/// The number of bytes per read when warming up.
const WARM_BYTES: usize = 1 << 20;

/// The state of the page cache before a run, or the reason why the run would not measure what was requested.
pub(crate) enum Readiness {
    Ready { resident: f64 },
    NotReady(String),
}

/// Brings the file into the page cache state of the plan.
pub(crate) fn prepare(file: &TestFile, cache: Cache) -> Result<Readiness, Fault> {
    match cache {
        Cache::Direct => {
            // Cached pages would cost the variant time: the kernel keeps them coherent with direct I/O.
            evict(file)?;
            // A file that cannot be mapped counts as not cached.
            let resident = resident(file)?.unwrap_or(0.0);
            Ok(Readiness::Ready { resident })
        }
        Cache::Cold => cool(file),
        Cache::Hot => warm(file),
        Cache::Full => fill_memory(file),
    }
}

/// Reads the data until the memory limit has made the kernel reclaim memory. A run may find the memory full, or free
/// after a variant with its own cache.
fn fill_memory(file: &TestFile) -> Result<Readiness, Fault> {
    let hits = || file.limit.as_ref().and_then(Limit::hits);
    let Some(before) = hits() else {
        return Ok(Readiness::NotReady(NO_LIMIT.into()));
    };
    for one in file.buffered.iter() {
        read_through(one, file.offset_bytes, file.file_bytes)?;
        if hits() > Some(before) {
            let resident = resident(file)?.unwrap_or(0.0);
            return Ok(Readiness::Ready { resident });
        }
    }
    Ok(Readiness::NotReady(NOT_FULL.into()))
}

/// Reads the first file twice, so that the kernel counts its pages as used again.
pub(super) fn keep_first(file: &TestFile) -> Result<(), Fault> {
    for _ in 0..2 {
        read_through(&file.buffered[0], file.offset_bytes, file.file_bytes)?;
    }
    Ok(())
}

/// Returns the memory for a variant that keeps pages itself: the limit, without a part for its buffers and threads, or
/// enough for the whole file. A cold run uses no block twice.
pub(super) fn own_bytes(plan: &Plan, file: &TestFile) -> usize {
    let in_flight = (plan.depth_max() as u64 + 1) * (plan.block_bytes + BESIDE_BUFFER_BYTES);
    let bytes = match (plan.memory_bytes, file.cache) {
        (Some(limit), _) => {
            // Grows with the number of runs whose results are kept.
            let own = own_memory_bytes().unwrap_or(0);
            limit.saturating_sub((limit / OWN_SHARE).max(OWN_MIN) + in_flight + own)
        }
        (None, Cache::Hot) => file.total_bytes() + file.total_bytes() / HOT_SHARE,
        (None, _) => 0,
    };
    let least = (plan.depth_max() as u64 + 1) * plan.block_bytes;
    usize::try_from(bytes.max(least)).unwrap_or(usize::MAX)
}

/// Refuses a load that does not fit into memory: its buffers, and the file if it is hot.
pub(crate) fn check_fits(plan: &Plan, file: &TestFile) -> Result<(), Fault> {
    let Some(available) = memory_available_bytes() else {
        return Ok(());
    };
    let most = (available as f64 * MEMORY_SHARE) as u64;
    let buffers = plan.block_bytes * plan.depth_max() as u64;
    if buffers > most {
        return Err(usage!(
            "--depth {} of --bs {} needs {buffers} bytes of buffers; {available} bytes of memory are available",
            plan.depth_max(),
            plan.block_bytes
        ));
    }
    let (most, of) = match plan.memory_bytes {
        None => (most - buffers, available),
        Some(limit) => (within_limit(plan, limit)?.min(most - buffers), limit),
    };
    if file.cache == Cache::Hot && file.total_bytes() > most {
        return Err(usage!(
            "--hot: {} bytes do not fit into the page cache; {of} bytes of memory are available; try --size {}M",
            file.total_bytes(),
            most >> 20
        ));
    }
    Ok(())
}

/// Returns the part of `--memory` that is left for the page cache. The buffers must be well below the limit, because
/// the kernel kills a process whose buffers exceed it.
fn within_limit(plan: &Plan, limit: u64) -> Result<u64, Fault> {
    let own = plan.depth_max() as u64 * (plan.block_bytes + BESIDE_BUFFER_BYTES);
    if own > limit / 2 {
        return Err(usage!(
            "--memory {limit}: the buffers and threads of --depth {} may take {own} bytes, which must be less than \
             half of it; try --memory {}M",
            plan.depth_max(),
            (2 * own).div_ceil(1 << 20)
        ));
    }
    Ok(limit - own)
}

fn cool(file: &TestFile) -> Result<Readiness, Fault> {
    evict(file)?;
    if !may_query_residency(&file.buffered[0]) {
        return Ok(Readiness::NotReady(NOT_KNOWN.into()));
    }
    let Some(mut now) = resident(file)? else {
        return Ok(Readiness::NotReady(NOT_MAPPED.into()));
    };
    if now > COLD_RESIDENT_MAX {
        // As root, drop the whole machine's cache, but only if evicting the file was not enough.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
        now = resident(file)?.unwrap_or(now);
    }
    if file.count() > file.buffered.len() {
        // As root, make directory entries and inodes of small files cold as well.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "2");
    }
    if now <= COLD_RESIDENT_MAX {
        return Ok(Readiness::Ready { resident: now });
    }
    Ok(Readiness::NotReady(format!(
        "not cold: {:.0} % resident",
        now * 100.0
    )))
}

fn warm(file: &TestFile) -> Result<Readiness, Fault> {
    if !may_query_residency(&file.buffered[0]) {
        return Ok(Readiness::NotReady(NOT_KNOWN.into()));
    }
    let Some(mut now) = resident(file)? else {
        return Ok(Readiness::NotReady(NOT_MAPPED.into()));
    };
    // A second pass, because the first may have evicted its own beginning.
    for _ in 0..2 {
        if now >= HOT_RESIDENT_MIN {
            break;
        }
        file.each(|one| read_through(one, file.offset_bytes, file.file_bytes))?;
        now = resident(file)?.unwrap_or(now);
    }
    if now >= HOT_RESIDENT_MIN {
        return Ok(Readiness::Ready { resident: now });
    }
    Ok(Readiness::NotReady(format!(
        "not hot: {:.0} % resident",
        now * 100.0
    )))
}

fn evict(file: &TestFile) -> Result<(), Fault> {
    file.each(|one| {
        // Dirty pages would stay, so write them first. An error on the user's file is ignored: the residency check
        // follows.
        if let Err(error) = fdatasync(one)
            && file.contents != Contents::Unknown
        {
            return Err(failed!("flushing the file: {error}"));
        }
        let part = NonZeroU64::new(file.file_bytes);
        fadvise(one, file.offset_bytes, part, Advice::DontNeed)
            .map_err(|error| failed!("dropping the file's pages from the cache: {error}"))
    })
}

/// Returns whether `mincore` is reliable: for a user other than the owner or a writer it reports every page as cached.
fn may_query_residency(file: &File) -> bool {
    let user = rustix::process::geteuid();
    let owns = file
        .metadata()
        .is_ok_and(|meta| meta.uid() == user.as_raw());
    let writes = || {
        access(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            Access::WRITE_OK,
        )
        .is_ok()
    };
    user.is_root() || owns || writes()
}

/// Returns the share of the file that is in the page cache, or `None` if the file cannot be mapped.
fn resident(file: &TestFile) -> Result<Option<f64>, Fault> {
    let mut bytes = 0;
    let mut mappable = true;
    file.each(|one| {
        match resident_bytes(one, file.offset_bytes, file.file_bytes) {
            Ok(more) => bytes += more,
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                mappable = false;
            }
            Err(error) => {
                return Err(failed!(
                    "reading which pages of the file are in memory (mincore): {error}"
                ));
            }
        }
        Ok(())
    })?;
    Ok(mappable.then(|| bytes as f64 / file.total_bytes().max(1) as f64))
}

fn read_through(file: &File, offset: u64, size: u64) -> Result<(), Fault> {
    let mut buffer = vec![0; WARM_BYTES];
    let (mut at, end) = (offset, offset + size);
    while at < end {
        signals::check("the file was being read into the page cache")?;
        let length = (end - at).min(WARM_BYTES as u64) as usize;
        match file.read_at(&mut buffer[..length], at) {
            Ok(0) => {
                return Err(failed!("the file ends at {at}; it was longer at the start"));
            }
            Ok(count) => at += count as u64,
            Err(error) => {
                return Err(failed!("reading the file at offset {at}: {error}"));
            }
        }
    }
    Ok(())
}
