//! A lock that records its holder, because a signal handler must not wait for the thread that it interrupts.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::identity::thread_id;

/// The lock of a set. It is held for the few hundred nanoseconds of a served call, and never by a thread that sleeps.
#[derive(Default)]
pub(crate) struct Lock(AtomicUsize);

/// Spins before yielding the processor.
const SPINS: u32 = 100;

impl Lock {
    /// Takes the lock. `false`: the calling thread already holds it, so this is a signal handler in the middle of a
    /// call.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let thread_id = thread_id();
        self.take_free(thread_id) || self.wait(thread_id)
    }

    /// Takes the lock for the calling thread if it is free.
    #[inline]
    pub(crate) fn take_free(&self, thread_id: usize) -> bool {
        self.0
            .compare_exchange(0, thread_id, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Waits for the lock.
    #[cold]
    fn wait(&self, thread_id: usize) -> bool {
        let mut spins = 0;
        loop {
            match self.0.load(Ordering::Relaxed) {
                0 if self.take_free(thread_id) => return true,
                holder if holder == thread_id => return false,
                _ => {}
            }
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Release);
    }
}
