//! Messages for a core, stored by other threads and read by the core between pieces of work. Checked by loom
//! (`ci/loom`), together with the flag for the core's sleep.
//!
//! The sender raises the flag after it has stored a message, and then checks whether the core sleeps. The core marks
//! itself as about to sleep, and then checks the flag.

#[cfg(not(annulus_loom))]
use std::sync::MutexGuard;
use std::sync::PoisonError;

#[cfg(annulus_loom)]
use loom::sync::MutexGuard;

use crate::sync::{AtomicBool, Mutation, Mutex, Ordering, broken};

/// The mailbox of a core.
pub(crate) struct Mailbox<T> {
    /// The messages; `None` once the owner has gone.
    messages: Mutex<Option<Vec<T>>>,
    /// True if there are messages, so that a check needs no lock.
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

    /// Stores a message; the caller then wakes the owner. Returns the message if the owner has gone.
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

    /// Returns whether there are messages. The owner checks this before it sleeps.
    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Returns whether the owner has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Takes all messages.
    #[inline]
    pub(crate) fn take(&self) -> Vec<T> {
        if !self.is_called() {
            return Vec::new();
        }
        // Lowered first: a message stored from now on raises it again.
        if !broken(Mutation::FlagLoweredLate) {
            self.called.store(false, Ordering::Relaxed);
        }
        let taken = self.lock().as_mut().map(std::mem::take);
        if broken(Mutation::FlagLoweredLate) {
            self.called.store(false, Ordering::Relaxed);
        }
        taken.unwrap_or_default()
    }

    /// Closes the mailbox. Returns the messages that were not taken, for the caller to drop.
    pub(crate) fn close(&self) -> Option<Vec<T>> {
        self.lock().take()
    }
}
