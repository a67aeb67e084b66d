//! # Safety
//!
//! Detection of forks: a page that the kernel clears in a child (`MADV_WIPEONFORK`). A child has no frames, because
//! registered memory is not mapped there. Invariant: Owned.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The page with this process's number; a 0 before the first pool.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NONE).cast_mut());
static NONE: AtomicU32 = AtomicU32::new(0);

const PAGE_BYTES: usize = 4096;

/// Returns where [`process`] looks. To be called after [`prepare`].
#[inline(always)]
pub(crate) fn page() -> &'static AtomicU32 {
    // SAFETY: Owned: a static, or a page that is never unmapped.
    unsafe { &*PAGE.load(Ordering::Relaxed) }
}

/// Returns a number for the calling process that its children do not share; 0 in a child that has made no pool.
/// Before Linux 4.14 parent and children have the same number.
#[inline(always)]
pub(crate) fn process() -> u32 {
    page().load(Ordering::Relaxed)
}

/// Gives this process a number if it has none. Each pool calls it before anything else.
pub(crate) fn prepare() -> u32 {
    static ONCE: OnceLock<()> = OnceLock::new();
    /// A child continues from its parent's.
    static LAST: AtomicU32 = AtomicU32::new(0);
    ONCE.get_or_init(|| PAGE.store(new_page(), Ordering::Relaxed));
    let known = process();
    if known != 0 {
        return known;
    }
    let mine = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match page().compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(theirs) => theirs,
    }
}

fn new_page() -> *mut AtomicU32 {
    static WITHOUT: AtomicU32 = AtomicU32::new(0);
    let without = (&raw const WITHOUT).cast_mut();
    // Miri has neither the calls nor forks.
    if cfg!(miri) {
        return without;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: Owned: a new mapping, at an address of the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return without;
    }
    // SAFETY: Owned: the whole page created above, and nothing of it is in use.
    if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return without;
    }
    page.cast()
}

#[cold]
pub(crate) fn elsewhere() -> io::Error {
    io::Error::other(
        "annulus-pool: this process is a forked child, and the pool's memory is not mapped here; create the pool after \
         the fork, or exec",
    )
}
