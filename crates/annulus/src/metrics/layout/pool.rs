//! The counters of a page pool. Only for `annulus-pool`; has no stable interface.

use crate::metrics::{Counters, SourceKind};

/// An event that a page pool counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A page that was in memory.
    Hit,
    /// A page that was not.
    Miss,
    /// A page that was removed to make space.
    Eviction,
    /// A load that waited for a frame.
    Wait,
}

/// The counters of one pool. On drop, its counts move to the ended source.
#[derive(Debug)]
pub struct PoolCounters(Counters);

impl PoolCounters {
    /// Creates the counters of the pool with this number.
    pub fn new(number: u64) -> PoolCounters {
        let counters = Counters::new(SourceKind::Pool);
        counters.set_owner(number, 0);
        PoolCounters(counters)
    }

    /// Counts events. Any thread may call this.
    pub fn count(&self, event: Event, times: u64) {
        let counter = match event {
            Event::Hit => self.0.pool_hits(),
            Event::Miss => self.0.pool_misses(),
            Event::Eviction => self.0.pool_evictions(),
            Event::Wait => self.0.pool_waits(),
        };
        counter.add_shared(times);
    }

    /// Sets the number of frames that guards hold though their pages are gone.
    pub fn set_held(&self, frames: u64) {
        self.0.pool_held().set(frames);
    }
}
