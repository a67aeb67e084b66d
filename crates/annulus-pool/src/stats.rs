//! The counters of a pool. Hits are counted per thread and without a change in one step.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of threads that count hits for themselves.
const OWN: usize = 64;

/// The counts of a pool since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Pages that were in memory when they were asked for.
    pub hits: u64,
    /// Pages that were not, each counted once for each caller.
    pub misses: u64,
    /// Pages that were read. Several misses of one page at a time are one load.
    pub loads: u64,
    /// Loads that failed.
    pub failed: u64,
    /// Pages that were removed to make space.
    pub evicted: u64,
    /// Loads that waited for a frame, because every frame was held by a guard or by another load.
    pub starved: u64,
    /// The frames.
    pub frames: usize,
    /// Frames with a page.
    pub resident: usize,
    /// Frames whose page is gone, but has guards.
    pub held: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) misses: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) starved: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// The hits of one thread, or of all threads that have no own counter.
#[repr(align(64))]
#[derive(Debug, Default)]
struct HitCounter(AtomicU64);

#[derive(Debug)]
pub(crate) struct Hits {
    own: Box<[HitCounter]>,
    others: HitCounter,
}

impl Default for Hits {
    fn default() -> Hits {
        Hits {
            own: (0..OWN).map(|_| HitCounter::default()).collect(),
            others: HitCounter::default(),
        }
    }
}

impl Hits {
    /// Counts hits of the thread with this number.
    #[inline]
    pub(crate) fn add(&self, thread: usize, hits: u64) {
        match self.own.get(thread) {
            // Only this thread writes it.
            Some(HitCounter(counter)) => {
                counter.store(counter.load(Ordering::Relaxed) + hits, Ordering::Relaxed)
            }
            None => Counters::add(&self.others.0, hits),
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        let all = self.own.iter().chain([&self.others]);
        all.map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
}
