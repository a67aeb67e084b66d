//! # Safety
//!
//! Which thread and which process this is (Typed: the C library's own functions).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// A number for the calling thread that no other one has while it lives; never 0.
#[inline]
pub(crate) fn me() -> usize {
    // SAFETY: Typed: it can't fail; in glibc it is a load.
    unsafe { libc::pthread_self() as usize }
}

/// How many forks lie between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(1);

/// What is not of this number was made by a parent: this process must not use it.
#[inline]
pub(crate) fn process() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// In a child of a fork, before anything else.
pub(crate) fn is_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// What the C library says of the process: not 0 as long as it has made no thread (since glibc 2.32).
static SINGLE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// When the library is loaded.
pub(crate) fn find_out() {
    // SAFETY: Typed: a name that ends; a byte that the C library writes, or null.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(found.cast(), Ordering::Relaxed);
}

/// Whether the calling thread is the only one, and always was.
pub(crate) fn is_alone() -> bool {
    // SAFETY: Typed: null, or that byte, which is there for good.
    unsafe { SINGLE.load(Ordering::Relaxed).as_ref() }
        .is_some_and(|single| single.load(Ordering::Relaxed) != 0)
}
