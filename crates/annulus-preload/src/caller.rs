//! # Safety
//!
//! Which thread and which process this is (Typed: the C library's own functions).
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

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
