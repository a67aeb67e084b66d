//! Whether anybody looks, and which operations are timed when somebody does.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::HEADER_LEASE;
use super::registry::SHARED;
use crate::sys::call::now_ns;

/// Of the operations of a thread that asks often, one in this many is timed, on average.
const SAMPLE: u32 = 32;
/// A thread may time each of its operations as long as that is no more than one in this time, ns,
const EACH_NS: u64 = 100_000;
/// but for bursts: what it has not used of that, it may use later, up to this many.
const SAVED_MAX: u64 = 64;

/// Guards that are alive.
static WATCHES: AtomicU64 = AtomicU64::new(0);

/// While one lives, this process records how long its operations take; see [`watch`].
#[must_use = "latencies are recorded as long as it lives"]
#[derive(Debug)]
pub struct Watch(());

/// Has all engines and runtimes of this process record latencies, as long as the answer lives. Without one no
/// clock is read for metrics, and plain counters are kept.
///
/// Not every operation is timed: each thread times all it asks for up to 10,000 a second, with bursts, and of
/// what is more one in 32, chosen at random, so that the clock costs less than a hundredth.
pub fn watch() -> Watch {
    WATCHES.fetch_add(1, Ordering::Relaxed);
    Watch(())
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which of its operations a thread times.
struct Sampler {
    /// Operations to be left out before the next.
    skip: Cell<u32>,
    /// When the last was timed, ns.
    last_ns: Cell<u64>,
    /// What is left of the time in which it may time each, ns.
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

/// When the operation that the calling thread is about to ask for is asked for, ns; 0: it is not timed.
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
                // At random, so that a program that goes by turns is not always caught at the same one.
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

/// Whether nobody looks from outside any more. Then the next operations need not ask.
fn is_over(now: u64) -> bool {
    let Some(header) = SHARED.get() else {
        return true;
    };
    let until = header[HEADER_LEASE].load(Ordering::Relaxed);
    let over = until < now;
    if over {
        let lease = &header[HEADER_LEASE];
        // Unless somebody has come meanwhile.
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

    /// How many of `operations`, one each `every_ns`, are timed.
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
    fn a_trickle_is_timed_whole_a_burst_to_begin_with_and_a_stream_by_one_in_thirty_two() {
        let _watch = watch();
        let sampler = sampler();
        assert_eq!(timed(&sampler, 1000, EACH_NS), 1000);
        assert_eq!(timed(&sampler, 1, SAVED_MAX * EACH_NS), 1);
        let burst = timed(&sampler, 200, 10);
        assert!((64..80).contains(&burst), "{burst} of a burst");
        let stream = timed(&sampler, 1_000_000, 100);
        let expected = 1_000_000 / 32;
        // Besides, one each 100 µs.
        let most = expected + 1_000_000 / 1000;
        assert!(
            (expected * 9 / 10..most * 11 / 10).contains(&stream),
            "{stream} of a stream"
        );
        // After the stream, and what is left out of it, a trickle is timed whole again.
        timed(&sampler, 48, 1_000_000);
        assert_eq!(timed(&sampler, 100, 1_000_000), 100);
    }
}
