//! What callers see of a threadless driver: when to queue, when to poll it. One per thread that
//! keeps a ring of its own; used again by another thread when the first has ended.

use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// A driver that its callers poll.
pub(crate) trait Drive: Send + Sync {
    /// Submits what waits, and answers what has completed. Never blocks.
    fn poll(&self);
    /// Registers new arenas, and lets go of those that have gone. Never blocks.
    fn follow_arenas(&self);
    /// Refuses what waits, and sees out what is in flight, at most until `until_ns`, or for the drain timeout where
    /// that is not said. Blocks.
    fn drain(&self, until_ns: Option<u64>);
}

/// The callers' side of such a driver.
pub(crate) struct ThreadlessState {
    /// Submitted since the last poll.
    waiting: AtomicU32,
    /// As of the last poll.
    in_flight: AtomicU32,
    /// Operations that are worth a submission.
    chunk: AtomicU32,
    /// The thread that submits is the one that will wait in the ring: what is left it submits then.
    waits: AtomicBool,
    /// `None` while nobody has it.
    driver: Mutex<Option<Arc<dyn Drive>>>,
    /// Drained to the last operation, so that another driver may use the handle.
    free: AtomicBool,
}

impl ThreadlessState {
    pub(crate) fn new() -> ThreadlessState {
        ThreadlessState {
            waiting: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            chunk: AtomicU32::new(1),
            waits: AtomicBool::new(false),
            driver: Mutex::new(None),
            free: AtomicBool::new(false),
        }
    }

    /// The handle has a driver from now on.
    pub(super) fn occupy(&self, driver: Arc<dyn Drive>) {
        self.publish(0, 1);
        *self.driver.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver);
    }

    /// The driver has gone. `free`: it has left nothing behind.
    pub(super) fn vacate(&self, free: bool) {
        let gone = self
            .driver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(gone);
        self.free.store(free, Ordering::Release);
    }

    /// Takes a handle that has no driver.
    pub(super) fn claim(&self) -> bool {
        self.free
            .compare_exchange(true, false, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    pub(super) fn driver(&self) -> Option<Arc<dyn Drive>> {
        self.driver
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The driver tells how much it has to do.
    pub(super) fn publish(&self, in_flight: u32, chunk: u32) {
        self.waiting.store(0, Ordering::Relaxed);
        self.in_flight.store(in_flight, Ordering::Relaxed);
        self.chunk.store(chunk, Ordering::Relaxed);
    }

    /// Whether the thread that submits waits in the ring afterwards.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(super) fn chunk(&self) -> usize {
        self.chunk.load(Ordering::Relaxed) as usize
    }

    /// `operations` have been queued. True: they are worth a submission, or nothing is in
    /// flight whose completion would have them submitted.
    #[inline]
    pub(super) fn is_due(&self, operations: u32) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed) + operations;
        self.waiting.store(waiting, Ordering::Relaxed);
        waiting >= self.chunk.load(Ordering::Relaxed)
            || self.in_flight.load(Ordering::Relaxed) == 0 && !self.waits()
    }
}
