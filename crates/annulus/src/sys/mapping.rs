//! # Safety
//!
//! Large ranges of memory of our own: what an arena is made of, and what files are loaded into. One
//! value per range, which unmaps it (Owned); its address never changes (Still).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{forked, probe};

/// Every range starts at a multiple of this: what no device's direct I/O exceeds.
pub(crate) const PAGE_BYTES: usize = 4096;
/// A huge page, on the architectures that have them of this size; the others get no more than
/// alignment from it.
const HUGE_BYTES: usize = 2 << 20;

/// Which pages a large range of memory is to be made of.
///
/// Large pages make a transfer cheaper: the kernel describes 64 KiB in one piece, not in sixteen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HugePages {
    /// The system's default (`/sys/kernel/mm/transparent_hugepage/enabled`).
    SystemDefault,
    /// Transparent huge pages (`MADV_HUGEPAGE`) for ranges of 2 MiB and more: what the kernel finds
    /// at the first touch.
    #[default]
    Transparent,
    /// Of the pool that an administrator set aside (`MAP_HUGETLB`, `vm.nr_hugepages`); where it does
    /// not hold the range, as `Transparent`.
    Reserved,
}

/// Which pages a range of memory got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PagesInUse {
    /// As the machine is set: 4 KiB, as a rule.
    Ordinary,
    /// Huge pages as far as the kernel finds any.
    Transparent,
    /// Huge pages of 2 MiB, all of them.
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

/// Zeroed memory, page by page at the first touch.
pub(crate) struct Mapping {
    /// The mapping: its length in bytes, from here on.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// The used part: its length in bytes, from an aligned address on.
    base: NonNull<u8>,
    bytes: usize,
    pages: PagesInUse,
    /// The process whose children do not get it; 0: they do.
    kept_in: AtomicU64,
}

// SAFETY: Owned: a range of memory like a Box's; who may touch it is its holders' affair.
unsafe impl Send for Mapping {}
// SAFETY: Owned: a range of memory like a Box's; who may touch it is its holders' affair: a shared
// `Mapping` gives out addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: no such range of addresses is free, or the machine does not overcommit.
    pub(crate) fn new(bytes: usize, pages: HugePages) -> io::Result<Mapping> {
        if pages == HugePages::SystemDefault || bytes < HUGE_BYTES {
            let bytes = round_up(bytes.max(1), PAGE_BYTES)?;
            let mapped = map(bytes, MapFlags::PRIVATE)?;
            return Ok(Mapping::at(mapped, bytes, bytes, PagesInUse::Ordinary));
        }
        let bytes = round_up(bytes, HUGE_BYTES)?;
        if pages == HugePages::Reserved {
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            // The kernel reserves the pages now: their touch does not fail.
            if let Ok(mapped) = map(bytes, flags) {
                return Ok(Mapping::at(mapped, bytes, bytes, PagesInUse::Reserved));
            }
        }
        // Addresses for one huge page more, so that an aligned one is among them.
        let mapped_bytes = round_up(bytes + 1, HUGE_BYTES)?;
        let mapped = map(mapped_bytes, MapFlags::PRIVATE)?;
        let mut mapping = Mapping::at(mapped, mapped_bytes, bytes, PagesInUse::Ordinary);
        // SAFETY: Owned: our own mapping, whose contents this does not change.
        let advised = unsafe { madvise(mapping.base().cast(), bytes, Advice::LinuxHugepage) };
        if advised.is_ok() && probe::has_transparent_huge_pages() {
            mapping.pages = PagesInUse::Transparent;
        }
        Ok(mapping)
    }

    fn at(mapped: NonNull<u8>, mapped_bytes: usize, bytes: usize, pages: PagesInUse) -> Mapping {
        let align = if mapped_bytes > bytes { HUGE_BYTES } else { 1 };
        let skip = mapped.as_ptr().align_offset(align);
        // SAFETY: Owned: where more was mapped than is used, it was by a huge page, which `skip` is less than.
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

    /// Where the bytes are; aligned to `PAGE_BYTES`. Valid for reads and writes as long as the value
    /// lives, and all of them initialised.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn pages(&self) -> PagesInUse {
        self.pages
    }

    /// Keeps the range out of children that are forked from now on, or lets them have a copy again.
    ///
    /// A fork makes private pages copy-on-write. Those that a ring has registered are copied for the
    /// child immediately, all of them, at each fork. Of those that a direct read fills meanwhile, the process that
    /// writes first gets a copy, and the device keeps the old page: what it reads may arrive in the
    /// child, and nowhere else (trap 59; open(2) has the warning).
    pub(crate) fn keep_from_children(&self, keep: bool) {
        let (advice, kept_in) = match keep {
            true => (Advice::LinuxDontFork, forked::process()),
            false => (Advice::LinuxDoFork, 0),
        };
        self.kept_in.store(kept_in, Ordering::Relaxed);
        // SAFETY: Owned: our own mapping, whose contents this does not change.
        let _ = unsafe { madvise(self.base().cast(), self.bytes, advice) };
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
        let kept_in = *self.kept_in.get_mut();
        if kept_in != 0 && kept_in != forked::process() {
            // A child of a fork does not have it, and may have mapped something else there.
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
                // SAFETY: Owned: the mapping is alive, and nobody else has its address.
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
