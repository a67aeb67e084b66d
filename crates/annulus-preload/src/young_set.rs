//! The state of an epoll set until a call needs its lock. Some programs make a set for one wait: a lock for each of its
//! calls would take longer than they do. The set's lists are empty until then, and its members are in the kernel's set.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::config;

/// The wait at which a set gets its ring at the earliest. Some programs make a set for one wait, which is quicker than
/// a ring is made.
pub(crate) const WAITS_BEFORE_RING: u32 = 3;

#[derive(Default)]
pub(crate) struct YoungSet {
    is_young: AtomicBool,
    /// The program has added a member.
    has_members: AtomicBool,
    /// The number of connections that were added and that a ring may serve. It includes those that were closed since:
    /// to subtract one, its close would need the lock of its set, whose youth another thread may end meanwhile.
    streams: AtomicU32,
    /// Entries of streams may name the set.
    is_named: AtomicBool,
    /// The number of waits, up to [`WAITS_BEFORE_RING`].
    waits: AtomicU32,
}

impl YoungSet {
    /// Starts again, for a set that has just been created.
    pub(crate) fn begin(&self) {
        self.has_members.store(false, Ordering::Relaxed);
        self.streams.store(0, Ordering::Relaxed);
        self.is_named.store(false, Ordering::Relaxed);
        self.waits.store(0, Ordering::Relaxed);
        self.is_young.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_young(&self) -> bool {
        self.is_young.load(Ordering::Acquire)
    }

    /// Ends the set's youth. Returns whether it was young.
    pub(crate) fn end(&self) -> bool {
        self.is_young() && self.is_young.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn on_member(&self) {
        self.has_members.store(true, Ordering::Relaxed);
    }

    pub(crate) fn on_stream(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a stream's entry names the set.
    pub(crate) fn on_named(&self) {
        self.is_named.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Relaxed)
    }

    pub(crate) fn has_members(&self) -> bool {
        self.has_members.load(Ordering::Relaxed)
    }

    pub(crate) fn streams(&self) -> u32 {
        self.streams.load(Ordering::Relaxed)
    }

    pub(crate) fn waits(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns whether the set may get a ring with its next connection.
    pub(crate) fn is_almost_grown(&self) -> bool {
        self.waits() == WAITS_BEFORE_RING && self.streams() + 1 >= config::get().min_connections
    }

    /// Counts a wait. Returns `false` without counting it if the set may get its ring.
    pub(crate) fn count_wait(&self) -> bool {
        let waits = WAITS_BEFORE_RING.min(self.waits() + 1);
        if waits == WAITS_BEFORE_RING && self.streams() >= config::get().min_connections {
            return false;
        }
        self.waits.store(waits, Ordering::Relaxed);
        true
    }
}
