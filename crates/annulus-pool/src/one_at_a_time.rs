//! A value that one thread at a time works on, while the others do not wait for it.

use crate::mutation::{Mutation, broken};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};

pub(crate) struct OneAtATime<T> {
    value: Mutex<T>,
    /// True if a thread could not work, because another one did.
    missed: AtomicBool,
}

impl<T> OneAtATime<T> {
    pub(crate) fn new(value: T) -> OneAtATime<T> {
        OneAtATime {
            value: Mutex::new(value),
            missed: AtomicBool::new(false),
        }
    }

    /// Works on the value, unless another thread does. Calls `again` if the work has no result, and another thread
    /// could not work in the meantime: whatever woke that one has been used up.
    pub(crate) fn work<R>(
        &self,
        work: impl FnOnce(&mut T) -> Option<R>,
        again: impl FnOnce(),
    ) -> Option<R> {
        let mut value = match self.try_lock() {
            Some(value) => value,
            None => {
                if !broken(Mutation::MissForgotten) {
                    self.missed.store(true, Ordering::SeqCst);
                }
                fence(Ordering::SeqCst);
                // The other one may have finished before it could see this.
                if broken(Mutation::MissWithoutSecondTry) {
                    return None;
                }
                self.try_lock()?
            }
        };
        let result = work(&mut value);
        drop(value);
        if result.is_none() {
            fence(Ordering::SeqCst);
            if !broken(Mutation::MissUnseen) && self.missed.swap(false, Ordering::SeqCst) {
                again();
            }
        }
        result
    }

    /// Waits for the one who works.
    #[cfg(not(annulus_loom))]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        crate::sync::lock(&self.value)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            Err(std::sync::TryLockError::Poisoned(value)) => Some(value.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}
