//! Recording of latencies: whether a reader exists, and which operations are timed.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::HEADER_LEASE;
use super::registry::SHARED;
use crate::sys::call::now_ns;

/// The sampling rate of a busy thread: on average, one in this many operations is timed.
const SAMPLE: u32 = 32;
/// A thread may time every operation if it submits no more than one per this time, in ns.
const EACH_NS: u64 = 100_000;
/// The maximum number of operations in a burst that are all timed, from unused time before it.
const SAVED_MAX: u64 = 64;

/// The number of existing guards.
static WATCHES: AtomicU64 = AtomicU64::new(0);

/// A guard: while it exists, this process records the latencies of its operations; see [`watch`].
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::metrics;
///
/// let engine = annulus::Engine::new()?;
/// engine.nop().await?; // counted, and not timed
/// let watch = metrics::watch();
/// engine.nop().await?;
/// drop(watch);
/// let total = metrics::snapshot().total();
/// let nop = total.operation("nop").expect("two have completed");
/// assert_eq!((nop.completed, nop.latency.count()), (2, 1));
/// # Ok(()) }) }
/// ```
#[must_use = "latencies are recorded until the guard is dropped"]
#[derive(Debug)]
pub struct Watch(());

/// Makes all engines and runtimes of this process record latencies until the guard is dropped. Without a guard, only
/// counters are kept, and no clock is read for metrics.
///
/// Each thread times all its operations up to 10,000 per second, with bursts. Above that rate, it times one in 32
/// operations, chosen at random, so that the clock costs less than 1 %.
///
/// The guard has to be bound to a name. `_` alone drops it at once:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// use annulus::metrics;
///
/// let engine = annulus::Engine::new()?;
/// let _ = metrics::watch(); // already over
/// engine.nop().await?;
/// let timed = |total: metrics::Source| total.operation("nop").unwrap().latency.count();
/// assert_eq!(timed(metrics::snapshot().total()), 0);
/// let _watch = metrics::watch();
/// engine.nop().await?;
/// assert_eq!(timed(metrics::snapshot().total()), 1);
/// # Ok(()) }) }
/// ```
pub fn watch() -> Watch {
    WATCHES.fetch_add(1, Ordering::Relaxed);
    Watch(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state that selects which operations of a thread are timed.
struct Sampler {
    /// The number of operations to skip before the next one is timed.
    skip: Cell<u32>,
    /// The time of the last timed operation, in ns.
    last_ns: Cell<u64>,
    /// The unused time in which the thread may time every operation, in ns.
    saved_ns: Cell<u64>,
    dice: Cell<u32>,
}

thread_local! {
    static SAMPLER: Sampler = const {
        Sampler {
            skip: Cell::new(0),
            last_ns: Cell::new(0),
            saved_ns: Cell::new(0),
            dice: Cell::new(1),
        }
    };
}

/// Returns the submission time of the operation that the calling thread is about to submit, in ns, or 0 if the
/// operation is not timed.
#[inline]
pub(crate) fn sample() -> u64 {
    if is_watched() { chosen() } else { 0 }
}

#[inline]
fn is_watched() -> bool {
    let leased = || {
        SHARED
            .get()
            .map(|header| header[HEADER_LEASE].load(Ordering::Relaxed))
    };
    WATCHES.load(Ordering::Relaxed) > 0 || leased().is_some_and(|until| until > 0)
}

#[inline]
fn chosen() -> u64 {
    SAMPLER.with(|sampler| match sampler.skip.get() {
        0 => sampler.choose(now_ns()),
        left => {
            sampler.skip.set(left - 1);
            0
        }
    })
}

impl Sampler {
    fn choose(&self, now: u64) -> u64 {
        if WATCHES.load(Ordering::Relaxed) == 0 && is_over(now) {
            return 0;
        }
        let passed = now.saturating_sub(self.last_ns.replace(now));
        let saved = self
            .saved_ns
            .get()
            .saturating_add(passed)
            .min(SAVED_MAX * EACH_NS);
        match saved.checked_sub(EACH_NS) {
            Some(left) => self.saved_ns.set(left),
            None => {
                self.saved_ns.set(saved);
                // Random, so that a program with a periodic pattern is not always sampled at the same step.
                let dice = self
                    .dice
                    .get()
                    .wrapping_mul(1_664_525)
                    .wrapping_add(1_013_904_223);
                self.dice.set(dice);
                self.skip.set(SAMPLE / 2 + (dice >> 16) % SAMPLE);
            }
        }
        now
    }
}

/// Returns whether the last external reader has gone. Clears the lease then, so that further operations skip this
/// check.
fn is_over(now: u64) -> bool {
    let Some(header) = SHARED.get() else {
        return true;
    };
    let until = header[HEADER_LEASE].load(Ordering::Relaxed);
    let over = until < now;
    if over {
        let lease = &header[HEADER_LEASE];
        // Fails if another reader has renewed the lease meanwhile.
        let _ = lease.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler() -> Sampler {
        Sampler {
            skip: Cell::new(0),
            last_ns: Cell::new(0),
            saved_ns: Cell::new(0),
            dice: Cell::new(1),
        }
    }

    /// Returns how many of `operations` operations, one every `every_ns`, are timed.
    fn timed(sampler: &Sampler, operations: u32, every_ns: u64) -> u32 {
        let mut now = sampler.last_ns.get();
        let mut timed = 0;
        for _ in 0..operations {
            now += every_ns;
            match sampler.skip.get() {
                0 => timed += u32::from(sampler.choose(now) > 0),
                left => sampler.skip.set(left - 1),
            }
        }
        timed
    }

    #[test]
    fn a_trickle_is_timed_completely_and_a_stream_one_in_thirty_two() {
        let _watch = watch();
        let sampler = sampler();
        assert_eq!(timed(&sampler, 1000, EACH_NS), 1000);
        assert_eq!(timed(&sampler, 1, SAVED_MAX * EACH_NS), 1);
        let burst = timed(&sampler, 200, 10);
        assert!((64..80).contains(&burst), "{burst} of a burst");
        let stream = timed(&sampler, 1_000_000, 100);
        let expected = 1_000_000 / 32;
        // In addition, one per 100 µs.
        let most = expected + 1_000_000 / 1000;
        assert!(
            (expected * 9 / 10..most * 11 / 10).contains(&stream),
            "{stream} of a stream"
        );
        // After the stream and the operations it skips, a trickle is timed completely again.
        timed(&sampler, 48, 1_000_000);
        assert_eq!(timed(&sampler, 100, 1_000_000), 100);
    }
}
