//! The atomics of std, or those of the model checker under `--cfg annulus_loom` (`ci/loom`).

#[cfg(not(annulus_loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(not(annulus_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(annulus_loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
#[cfg(annulus_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

#[cfg(not(annulus_loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is complete before something can panic.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
