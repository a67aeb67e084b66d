//! Primitives that threads share: the atomics, locks and cells of std, or those of the model checker under
//! `--cfg annulus_loom` (`ci/loom`). The cross-thread parts of `driver` use only these.

mod mutation;

#[cfg(all(test, annulus_loom))]
pub(crate) use mutation::MUTATIONS;
pub(crate) use mutation::{Mutation, broken};

#[cfg(not(annulus_loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(annulus_loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// The model checker's threads share one thread of the system.
#[cfg(annulus_loom)]
macro_rules! per_thread {
    ($($(#[$about:meta])* static $name:ident: $of:ty = const { $value:expr };)*) => {
        loom::thread_local! { $($(#[$about])* static $name: $of = $value;)* }
    };
}
#[cfg(annulus_loom)]
pub(crate) use per_thread as thread_local;
#[cfg(not(annulus_loom))]
pub(crate) use std::thread_local;

#[cfg(not(annulus_loom))]
pub(crate) use atomic_waker::AtomicWaker;

/// The model checker's stand-in for `AtomicWaker`: the same guarantee, implemented with a lock.
#[cfg(annulus_loom)]
#[derive(Debug)]
pub(crate) struct AtomicWaker(Mutex<Option<std::task::Waker>>);

#[cfg(annulus_loom)]
impl AtomicWaker {
    pub(crate) fn new() -> AtomicWaker {
        AtomicWaker(Mutex::new(None))
    }

    pub(crate) fn register(&self, waker: &std::task::Waker) {
        let _left = self.0.lock().map(|mut guard| guard.replace(waker.clone()));
    }

    pub(crate) fn wake(&self) {
        let guard = self.0.lock().ok().and_then(|mut guard| guard.take());
        guard.into_iter().for_each(std::task::Waker::wake);
    }
}

/// A cell that only one thread at a time may access; each user argues why. The model checker fails if two threads
/// access the cell without synchronisation between them.
#[derive(Debug)]
pub(crate) struct ExclusiveCell<T> {
    #[cfg(not(annulus_loom))]
    cell: std::cell::UnsafeCell<T>,
    #[cfg(annulus_loom)]
    cell: loom::cell::UnsafeCell<T>,
}

impl<T> ExclusiveCell<T> {
    pub(crate) fn new(value: T) -> ExclusiveCell<T> {
        #[cfg(not(annulus_loom))]
        return ExclusiveCell {
            cell: std::cell::UnsafeCell::new(value),
        };
        #[cfg(annulus_loom)]
        return ExclusiveCell {
            cell: loom::cell::UnsafeCell::new(value),
        };
    }

    /// Calls `f` with a pointer for reading and writing.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(not(annulus_loom))]
        return f(self.cell.get());
        #[cfg(annulus_loom)]
        return self.cell.with_mut(f);
    }

    /// Calls `f` with a pointer for reading.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(not(annulus_loom))]
        return f(self.cell.get());
        #[cfg(annulus_loom)]
        return self.cell.with(f);
    }
}
