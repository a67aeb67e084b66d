//! The position that a file and its clones share, and the turns in which they use it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The position of a file and its clones.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) position: u64,
    /// The number of changes of the position, and of the file.
    pub(super) changes: u64,
    /// One of the files is polled. No lock is held meanwhile, because a waker is foreign code that may poll another.
    is_polled: bool,
    /// Tasks that wait for the end of that poll.
    waiting: Vec<Waker>,
}

impl Shared {
    pub(super) fn new(position: u64, changes: u64) -> Shared {
        Shared {
            position,
            changes,
            ..Shared::default()
        }
    }
}

/// The poll of one of several files with the same position. They take turns.
pub(super) struct Turn<'a>(pub(super) &'a Mutex<Shared>);

impl Turn<'_> {
    /// Begins when no other file is polled.
    pub(super) fn begin<'a>(shared: &'a Mutex<Shared>, context: &Context<'_>) -> Poll<Turn<'a>> {
        let mut waker = None;
        loop {
            let mut locked = lock(shared);
            if !std::mem::replace(&mut locked.is_polled, true) {
                return Poll::Ready(Turn(shared));
            }
            if let Some(waker) = waker {
                locked.waiting.push(waker);
                return Poll::Pending;
            }
            drop(locked);
            waker = Some(context.waker().clone());
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut locked = lock(self.0);
        locked.is_polled = false;
        let waiting = std::mem::take(&mut locked.waiting);
        drop(locked);
        waiting.into_iter().for_each(Waker::wake);
    }
}

pub(super) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
