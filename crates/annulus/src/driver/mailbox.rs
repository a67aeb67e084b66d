//! What threads leave for one that looks after each piece of work: the messages of a core. Checked by loom
//! (`ci/loom`), together with the flag that says that the core sleeps.
//!
//! The thread that puts a message raises the flag after it, and then asks whether the owner sleeps; the owner says
//! that it is about to sleep, and then looks at the flag.

#[cfg(not(annulus_loom))]
use std::sync::MutexGuard;
use std::sync::PoisonError;

#[cfg(annulus_loom)]
use loom::sync::MutexGuard;

use crate::sync::{AtomicBool, Mutation, Mutex, Ordering, broken};

/// One per core.
pub(crate) struct Mailbox<T> {
    /// `None`: its owner has gone.
    messages: Mutex<Option<Vec<T>>>,
    /// There are some, so that a look costs no lock.
    called: AtomicBool,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox {
            messages: Mutex::new(Some(Vec::new())),
            called: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<T>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a message; the owner is to be woken. It comes back if the owner has gone.
    pub(crate) fn put(&self, message: T) -> Result<(), T> {
        let mut messages = self.lock();
        match messages.as_mut() {
            Some(messages) => messages.push(message),
            None => return Err(message),
        }
        drop(messages);
        self.called.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether there is something. The owner asks before it sleeps.
    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Whether the owner has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// All that has been left.
    #[inline]
    pub(crate) fn take(&self) -> Vec<T> {
        if !self.is_called() {
            return Vec::new();
        }
        // Lowered first: what is left from now on raises it again.
        if !broken(Mutation::FlagLoweredLate) {
            self.called.store(false, Ordering::Relaxed);
        }
        let taken = self.lock().as_mut().map(std::mem::take);
        if broken(Mutation::FlagLoweredLate) {
            self.called.store(false, Ordering::Relaxed);
        }
        taken.unwrap_or_default()
    }

    /// The owner has gone. What it has not taken is for the caller to drop.
    pub(crate) fn close(&self) -> Option<Vec<T>> {
        self.lock().take()
    }
}
