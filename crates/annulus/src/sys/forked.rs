//! # Safety
//!
//! Detection of forks. A child of a fork has copies of everything except the rings' memory, which it must not touch
//! (trap 54). Each program has one page that the kernel clears in a child (`MADV_WIPEONFORK`). Checking it costs a
//! load; `getpid` would cost a system call. Invariant: Owned.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::IoUring;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use super::mapping::PAGE_BYTES;

/// The page with this process's number, which a child does not inherit.
static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
/// The last number given out. A child continues from its parent's.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns a number for the calling process that its children do not share. Before Linux 4.14, without
/// `MADV_WIPEONFORK`, parent and children have the same number.
#[inline]
pub(crate) fn process() -> u64 {
    let page = PAGE.get_or_init(page);
    match page.load(Ordering::Relaxed) {
        0 => number(page),
        number => number,
    }
}

/// Returns whether this process was created by a fork and has not called `exec(2)` since. `false` without `/proc`.
#[cfg(feature = "tokio")]
pub(crate) fn is_child() -> bool {
    /// The process that this was last found out for, doubled, plus 1 for a child.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let process = process();
    let known = KNOWN.load(Ordering::Relaxed);
    if known / 2 == process && process != 0 {
        return known % 2 == 1;
    }
    let stat = std::fs::read_to_string("/proc/self/stat");
    let is_child = stat.is_ok_and(|stat| has_not_executed(&stat));
    KNOWN.store(process * 2 + u64::from(is_child), Ordering::Relaxed);
    is_child
}

/// Returns whether the flags in `stat` say so; see proc_pid_stat(5).
#[cfg(feature = "tokio")]
fn has_not_executed(stat: &str) -> bool {
    /// `PF_FORKNOEXEC`.
    const FORKED_WITHOUT_EXEC: u64 = 0x40;
    // The name of the program is between parentheses and may contain anything. The flags are the ninth field.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let flags = fields.and_then(|fields| fields.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & FORKED_WITHOUT_EXEC != 0)
}

/// The queues of a ring, which are not mapped in children of a fork. A child that drops them closes its copy of the
/// ring's descriptor and unmaps nothing, because other memory of the child may be mapped at those addresses.
pub(crate) struct Queues {
    ring: ManuallyDrop<IoUring>,
    process: u64,
}

impl Queues {
    pub(crate) fn new(ring: IoUring) -> Queues {
        Queues {
            ring: ManuallyDrop::new(ring),
            process: process(),
        }
    }

    /// Returns whether this process is a child of the one that created the ring, and must not touch it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.process != process()
    }
}

impl Deref for Queues {
    type Target = IoUring;

    #[inline]
    fn deref(&self) -> &IoUring {
        &self.ring
    }
}

impl DerefMut for Queues {
    #[inline]
    fn deref_mut(&mut self) -> &mut IoUring {
        &mut self.ring
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            // SAFETY: Open: the descriptor belongs to the ring, which is never used or dropped after this.
            let _ = unsafe { super::call::close(self.ring.as_raw_fd()) };
        } else {
            // SAFETY: Owned: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

#[cold]
fn number(page: &AtomicU64) -> u64 {
    let mine = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match page.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(theirs) => theirs,
    }
}

#[cold]
fn page() -> &'static AtomicU64 {
    static WITHOUT: AtomicU64 = AtomicU64::new(0);
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
    let Ok(page) = (unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, protection, flags) })
    else {
        return &WITHOUT;
    };
    // Miri has neither the call nor forks.
    // SAFETY: Owned: the whole page created above.
    if cfg!(miri) || unsafe { madvise(page, PAGE_BYTES, Advice::LinuxWipeOnFork) }.is_err() {
        return &WITHOUT;
    }
    // SAFETY: Owned: zeroed, aligned, and never unmapped.
    unsafe { AtomicU64::from_ptr(page.cast()) }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_read_after_any_name() {
        let stat = |flags: u64| format!("12 (a) b ( 9) R 1 12 12 0 -1 {flags} 90 0 0 0");
        assert!(has_not_executed(&stat(0x40_0040)));
        assert!(!has_not_executed(&stat(0x40_0000)));
        assert!(!has_not_executed(""));
    }
}
