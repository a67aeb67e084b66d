//! The atomics of std, or those of the model checker under `--cfg annulus_loom` (`ci/loom`).

#[cfg(not(annulus_loom))]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(annulus_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[cfg(annulus_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[cfg(not(annulus_loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is complete before something can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
