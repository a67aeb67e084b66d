//! # Safety
//!
//! Large ranges of memory, for arenas and for loading files. One value owns each range and unmaps it (Owned); its
//! address never changes (Still).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{forked, probe};

/// The alignment of every range. No device requires a larger one for direct I/O.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The size of a huge page. On architectures with other huge pages it only serves as an alignment.
const HUGE_BYTES: usize = 2 << 20;

/// The kind of pages that a large range of memory uses.
///
/// Large pages make a transfer cheaper: the kernel describes 64 KiB in one piece instead of sixteen.
///
/// ```
/// use annulus::buf::{HugePages, PagesInUse, Region};
///
/// // A small range gets ordinary pages, whatever was requested.
/// let small = Region::new(4096, HugePages::Transparent)?;
/// assert_eq!(small.pages(), PagesInUse::Ordinary);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// The system's default (`/sys/kernel/mm/transparent_hugepage/enabled`).
    SystemDefault,
    /// Transparent huge pages (`MADV_HUGEPAGE`) for ranges of 2 MiB and more, as far as the kernel has any at the first
    /// access.
    #[default]
    Transparent,
    /// Huge pages from the reserved pool (`MAP_HUGETLB`, `vm.nr_hugepages`). If the pool cannot provide the range, as
    /// `Transparent`.
    Reserved,
}

/// The kind of pages that a range of memory got.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::buf::{BufferLayout, HugePages};
///
/// let engine = annulus::Engine::new()?;
/// let layout = BufferLayout::new(1, 4 << 20).huge_pages(HugePages::Reserved);
/// let arena = engine.register_buffers(layout)?;
/// println!("{}", arena.pages()); // "reserved huge pages", if the pool has two of them
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PagesInUse {
    /// The system's default, usually pages of 4 KiB.
    Ordinary,
    /// Transparent huge pages, as far as the kernel has any.
    Transparent,
    /// Reserved huge pages of 2 MiB for the whole range.
    Reserved,
}

impl fmt::Display for PagesInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PagesInUse::Ordinary => "ordinary pages",
            PagesInUse::Transparent => "transparent huge pages",
            PagesInUse::Reserved => "reserved huge pages",
        })
    }
}

/// A range of zeroed memory. Pages are allocated at the first access.
pub(crate) struct Mapping {
    /// The start of the mapping, which has `mapped_bytes` bytes.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// The aligned start of the used part, which has `bytes` bytes.
    base: NonNull<u8>,
    bytes: usize,
    pages: PagesInUse,
    /// The process whose children do not get a copy; 0 if they do.
    kept_in: AtomicU64,
}

// SAFETY: Owned: a range of memory like a Box's; its holders decide which thread may access it.
unsafe impl Send for Mapping {}
// SAFETY: Owned: a range of memory like a Box's; its holders decide which thread may access it. A shared `Mapping` only
// gives out addresses.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes` bytes.
    ///
    /// # Errors
    ///
    /// Fails with `ENOMEM` if no such range of addresses is free, or if the machine does not overcommit.
    pub(crate) fn new(bytes: usize, pages: HugePages) -> io::Result<Mapping> {
        if pages == HugePages::SystemDefault || bytes < HUGE_BYTES {
            let bytes = round_up(bytes.max(1), PAGE_BYTES)?;
            let mapped = map(bytes, MapFlags::PRIVATE)?;
            return Ok(Mapping::at(mapped, bytes, bytes, PagesInUse::Ordinary));
        }
        let bytes = round_up(bytes, HUGE_BYTES)?;
        if pages == HugePages::Reserved {
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            // The kernel reserves the pages now, so a later access does not fail.
            if let Ok(mapped) = map(bytes, flags) {
                return Ok(Mapping::at(mapped, bytes, bytes, PagesInUse::Reserved));
            }
        }
        // The range of addresses is one huge page larger, so that it contains an aligned start.
        let mapped_bytes = round_up(bytes + 1, HUGE_BYTES)?;
        let mapped = map(mapped_bytes, MapFlags::PRIVATE)?;
        let mut mapping = Mapping::at(mapped, mapped_bytes, bytes, PagesInUse::Ordinary);
        if cfg!(miri) {
            return Ok(mapping); // It does not have the call.
        }
        // SAFETY: Owned: this value's mapping; the call does not change its contents.
        let advised = unsafe { madvise(mapping.base().cast(), bytes, Advice::LinuxHugepage) };
        if advised.is_ok() && probe::has_transparent_huge_pages() {
            mapping.pages = PagesInUse::Transparent;
        }
        Ok(mapping)
    }

    fn at(mapped: NonNull<u8>, mapped_bytes: usize, bytes: usize, pages: PagesInUse) -> Mapping {
        let align = if mapped_bytes > bytes { HUGE_BYTES } else { 1 };
        let skip = mapped.as_ptr().align_offset(align);
        // SAFETY: Owned: if the mapping is larger than the used part, then by a huge page, and `skip` is less than
        // that.
        let base = unsafe { mapped.add(skip) };
        Mapping {
            mapped,
            mapped_bytes,
            base,
            bytes,
            pages,
            kept_in: AtomicU64::new(0),
        }
    }

    /// Returns the address of the bytes, aligned to `PAGE_BYTES`. It is valid for reads and writes as long as the value
    /// lives, and all bytes are initialised.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn pages(&self) -> PagesInUse {
        self.pages
    }

    /// Excludes the range from children that are forked from now on, or lets them have a copy again.
    ///
    /// A fork makes private pages copy-on-write. Pages that a ring has registered are copied for the child immediately,
    /// all of them, at each fork. While a direct read fills such pages, the process that writes first gets a copy, and
    /// the device keeps the old page: the data may then arrive only in the child (trap 59; open(2) has the warning).
    pub(crate) fn keep_from_children(&self, keep: bool) {
        let (advice, kept_in) = match keep {
            true => (Advice::LinuxDontFork, forked::process()),
            false => (Advice::LinuxDoFork, 0),
        };
        self.kept_in.store(kept_in, Ordering::Relaxed);
        if cfg!(miri) {
            return; // It has neither the call nor forks.
        }
        // SAFETY: Owned: this value's mapping; the call does not change its contents.
        let _ = unsafe { madvise(self.base().cast(), self.bytes, advice) };
    }

    /// Returns whether this process is a child of a fork that does not have the range.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let kept_in = self.kept_in.load(Ordering::Relaxed);
        kept_in != 0 && kept_in != forked::process()
    }
}

fn round_up(bytes: usize, to: usize) -> io::Result<usize> {
    bytes
        .checked_next_multiple_of(to)
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn map(bytes: usize, flags: MapFlags) -> io::Result<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags)? };
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            // The child may have mapped something else at its address.
            return;
        }
        // SAFETY: Owned: mapped in `new`, and unmapped here only.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes, {})", self.bytes, self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_as_large_as_requested_with_any_pages() {
        for pages in [
            HugePages::SystemDefault,
            HugePages::Transparent,
            HugePages::Reserved,
        ] {
            for bytes in [
                0,
                1,
                4096,
                4097,
                HUGE_BYTES - 1,
                HUGE_BYTES,
                5 * HUGE_BYTES + 1,
            ] {
                let mapping = Mapping::new(bytes, pages).unwrap();
                assert!(mapping.bytes() >= bytes);
                assert_eq!(mapping.base().addr() % PAGE_BYTES, 0);
                if bytes >= HUGE_BYTES && pages != HugePages::SystemDefault {
                    assert_eq!(mapping.base().addr() % HUGE_BYTES, 0);
                }
                // SAFETY: Owned: the mapping is alive, and its address is not used elsewhere.
                let all =
                    unsafe { std::slice::from_raw_parts_mut(mapping.base(), mapping.bytes()) };
                assert!(all.iter().all(|&byte| byte == 0));
                all.fill(1);
            }
        }
        assert!(Mapping::new(usize::MAX, HugePages::Transparent).is_err());
        assert!(Mapping::new(isize::MAX as usize, HugePages::SystemDefault).is_err());
    }
}
