//! The counters of a pool. Hits are counted per thread and without a change in one step.

use std::sync::atomic::{AtomicU64, Ordering};

use annulus::metrics::layout::pool::{Event, PoolCounters};

/// The number of threads that count hits for themselves.
const OWN: usize = 64;
/// The hits that a thread counts before the metrics have them.
const STEP: u64 = 1024;

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

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) misses: AtomicU64,
    pub(crate) loads: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) starved: AtomicU64,
    /// The metrics of the process.
    pub(crate) metrics: PoolCounters,
}

impl Default for Counters {
    fn default() -> Counters {
        static POOLS: AtomicU64 = AtomicU64::new(1);
        Counters {
            misses: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            starved: AtomicU64::new(0),
            metrics: PoolCounters::new(POOLS.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn miss(&self) {
        Counters::add(&self.misses, 1);
        self.metrics.count(Event::Miss, 1);
    }

    /// Counts evicted pages, and the frames whose pages are gone, but have guards.
    pub(crate) fn evict(&self, pages: usize, held: usize) {
        Counters::add(&self.evicted, pages as u64);
        self.metrics.count(Event::Eviction, pages as u64);
        self.metrics.set_held(held as u64);
    }

    pub(crate) fn wait(&self) {
        Counters::add(&self.starved, 1);
        self.metrics.count(Event::Wait, 1);
    }
}

/// The hits of one thread, or of all threads that have no own counter.
#[repr(align(64))]
#[derive(Debug, Default)]
struct HitCounter(AtomicU64);

#[derive(Debug)]
pub(crate) struct Hits {
    own: [HitCounter; OWN],
    others: HitCounter,
}

impl Default for Hits {
    fn default() -> Hits {
        Hits {
            own: std::array::from_fn(|_| HitCounter::default()),
            others: HitCounter::default(),
        }
    }
}

impl Hits {
    /// Counts a hit of the thread with this number.
    #[inline(always)]
    pub(crate) fn add(&self, thread: usize, metrics: &PoolCounters) {
        let steps = match self.own.get(thread) {
            // Only this thread writes it.
            Some(HitCounter(counter)) => {
                let hits = counter.load(Ordering::Relaxed) + 1;
                counter.store(hits, Ordering::Relaxed);
                hits
            }
            None => self.others.0.fetch_add(1, Ordering::Relaxed) + 1,
        };
        if steps.is_multiple_of(STEP) {
            metrics.count(Event::Hit, STEP);
        }
    }

    /// Gives the metrics the hits that they do not have yet, at the end of the pool.
    pub(crate) fn end(&self, metrics: &PoolCounters) {
        let all = self.own.iter().chain([&self.others]);
        let rest = all.map(|counter| counter.0.load(Ordering::Relaxed) % STEP);
        metrics.count(Event::Hit, rest.sum());
    }

    pub(crate) fn sum(&self) -> u64 {
        let all = self.own.iter().chain([&self.others]);
        all.map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
}
