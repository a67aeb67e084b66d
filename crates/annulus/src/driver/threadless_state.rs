//! The callers' side of a threadless driver, which decides when to queue and when to poll. Each thread with its own
//! ring has one; another thread reuses it when the first has ended.

use std::sync::{Arc, PoisonError};

use super::limits::CHUNK_MAX;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};

/// A driver that its callers poll.
pub(crate) trait Drive: Send + Sync {
    /// Submits waiting operations and handles completions. Never blocks.
    fn poll(&self);
    /// Registers new arenas and unregisters dropped ones. Never blocks.
    fn follow_arenas(&self);
    /// Refuses waiting operations and waits for those in flight, at most until `until_ns`, or for the drain timeout if
    /// that is `None`. Blocks.
    fn drain(&self, until_ns: Option<u64>);
}

/// The callers' side of a threadless driver.
pub(crate) struct ThreadlessState {
    /// The number of operations submitted since the last poll.
    waiting: AtomicU32,
    /// The number of operations in flight at the last poll.
    in_flight: AtomicU32,
    /// The number of operations that are worth a submission.
    chunk: AtomicU32,
    /// True if the submitting thread will wait in the ring, and then submits the rest.
    waits: AtomicBool,
    place: Mutex<DriverPlace>,
}

/// The place of the driver of a handle.
enum DriverPlace {
    Taken(Arc<dyn Drive>),
    /// The handle is drained completely, so another driver may use it.
    Free,
    /// No driver may use it: the first one comes now, or operations of the last one are left.
    Closed,
}

impl ThreadlessState {
    pub(crate) fn new() -> ThreadlessState {
        ThreadlessState {
            waiting: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            chunk: AtomicU32::new(1),
            waits: AtomicBool::new(false),
            place: Mutex::new(DriverPlace::Closed),
        }
    }

    fn place(&self) -> MutexGuard<'_, DriverPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the driver of the handle.
    pub(super) fn occupy(&self, driver: Arc<dyn Drive>) {
        self.publish(0, 1);
        *self.place() = DriverPlace::Taken(driver);
    }

    /// Removes the driver of the handle. `free` is true if the driver has no operations left.
    pub(super) fn vacate(&self, free: bool) {
        let after = if free {
            DriverPlace::Free
        } else {
            DriverPlace::Closed
        };
        let before = std::mem::replace(&mut *self.place(), after);
        // Outside of the lock.
        drop(before);
    }

    /// Takes a handle without a driver.
    pub(super) fn claim(&self) -> bool {
        let mut place = self.place();
        let is_free = matches!(*place, DriverPlace::Free);
        if is_free {
            *place = DriverPlace::Closed;
        }
        is_free
    }

    pub(super) fn driver(&self) -> Option<Arc<dyn Drive>> {
        match &*self.place() {
            DriverPlace::Taken(driver) => Some(Arc::clone(driver)),
            DriverPlace::Free | DriverPlace::Closed => None,
        }
    }

    /// Publishes the driver's load.
    pub(super) fn publish(&self, in_flight: u32, chunk: u32) {
        self.waiting.store(0, Ordering::Relaxed);
        self.in_flight.store(in_flight, Ordering::Relaxed);
        self.chunk.store(chunk, Ordering::Relaxed);
    }

    /// Sets whether the submitting thread waits in the ring afterwards.
    pub(super) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(super) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(super) fn chunk(&self) -> usize {
        self.chunk.load(Ordering::Relaxed) as usize
    }

    /// Returns whether several operations are expected, and one is in flight whose completion would submit them.
    pub(super) fn expects_several(&self) -> bool {
        self.chunk.load(Ordering::Relaxed) > 1 && self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// Counts `operations` queued operations. Returns whether they must be submitted now: they are enough, or nothing
    /// is in flight whose completion would submit them. `whole_reads` operations are expected to follow each other.
    #[inline]
    pub(super) fn count_queued(&self, operations: u32, whole_reads: u32) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed) + operations;
        self.waiting.store(waiting, Ordering::Relaxed);
        let chunk = self.chunk.load(Ordering::Relaxed);
        if whole_reads > 1 {
            return waiting >= chunk.max(whole_reads.min(CHUNK_MAX));
        }
        waiting >= chunk || self.in_flight.load(Ordering::Relaxed) == 0 && !self.waits()
    }

    /// Returns whether operations are queued, and as many as `whole_reads` tasks submit together.
    pub(super) fn has_all(&self, whole_reads: u32) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        waiting > 0 && waiting >= whole_reads.min(CHUNK_MAX) && !self.waits()
    }
}
