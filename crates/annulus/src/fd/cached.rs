//! Whether a buffered file's reads try the page cache first, on the reading thread: set by the user, or learned from
//! hits and misses. One hint per open file, shared by its clones.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::sys::errno::EOPNOTSUPP;

/// What reads of a buffered file do about the page cache before they go to a driver; see
/// [`File::set_cached_reads`](crate::File::set_cached_reads).
///
/// The figures are of 4 KiB on ext4 and Linux 6.18, on a virtual machine; other machines' ratios are
/// alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachedReads {
    /// Reads try the cache while at least one in four recent attempts hits. Otherwise fewer and fewer reads try it,
    /// down to one in 256, so that a file that becomes cached is noticed. The default.
    #[default]
    Learn,
    /// Each read tries the cache. A hit costs a copy and a system call, 2 µs. A miss costs a further
    /// system call, 1 to 5 µs of processor time: the kernel gives the read to the device there and then,
    /// instead of together with others. That is not lost altogether, for the device begins earlier: a
    /// cold file at depth 32 was read 10 % faster, with 45 % more processor time.
    Always,
    /// No read tries the cache: each goes to a driver, and costs its way there and back even if it is cached: 2 µs at
    /// depth 32, 6 µs alone, and more where the driver sleeps. For files known to be cold, and for threads that must
    /// not copy.
    Never,
}

/// Policies, as they are stored.
const LEARN: u8 = 0;
const ALWAYS: u8 = 1;
const NEVER: u8 = 2;
/// Learned for good: the file system can't answer without blocking.
const CANT: u8 = 3;

/// A share of 1.
const ONE: u32 = 1 << 16;
/// The last answer counts for `1 / (1 << WEIGHT_SHIFT)` of what is known.
const WEIGHT_SHIFT: u32 = 4;
/// From this share of hits on asking pays. A hit saves the way to a driver and back: 2 µs at depth 32, 6
/// µs alone. A miss costs 1 to 5 µs of processor time, and saves some of the device's. In time, asking
/// is level or better; in processor time it breaks even at a third to two thirds (docs/internals/design.md).
const PAYS: u32 = ONE / 4;
/// What is believed of a new file, and of one that was cold and had a hit: eleven misses disprove it.
const BELIEVED: u32 = ONE / 2;
/// Where it does not pay, one read in at most `1 << GAP_SHIFT_MAX` asks.
const GAP_SHIFT_MAX: u32 = 8;

/// The policy of a file, and what it has learned.
///
/// Lossy on purpose: of two threads one may overwrite the other's step.
#[derive(Debug)]
pub(crate) struct CachedHint {
    policy: AtomicU8,
    /// Share of hits among recent attempts, of `ONE`.
    share: AtomicU32,
    /// One read in `1 << gap_shift` tries the cache while hits are rare.
    gap_shift: AtomicU32,
    /// Reads since the last attempt.
    skipped: AtomicU32,
}

impl Default for CachedHint {
    fn default() -> CachedHint {
        CachedHint {
            policy: AtomicU8::new(LEARN),
            share: AtomicU32::new(BELIEVED),
            gap_shift: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        }
    }
}

impl CachedHint {
    /// Follows `policy` from now on; `Learn` begins anew.
    pub(crate) fn set(&self, policy: CachedReads) {
        self.share.store(BELIEVED, Relaxed);
        self.gap_shift.store(0, Relaxed);
        self.skipped.store(0, Relaxed);
        let policy = match policy {
            CachedReads::Learn => LEARN,
            CachedReads::Always => ALWAYS,
            CachedReads::Never => NEVER,
        };
        self.policy.store(policy, Relaxed);
    }

    /// Returns whether this read should try the cache.
    #[inline]
    pub(crate) fn should_try(&self) -> bool {
        self.attempts_of(1) == 1
    }

    /// Returns how many of `reads` reads should try the cache.
    #[inline]
    pub(crate) fn attempts_of(&self, reads: usize) -> usize {
        match self.policy.load(Relaxed) {
            LEARN if self.share.load(Relaxed) >= PAYS => reads,
            LEARN => self.probe(reads),
            ALWAYS => reads,
            _ => 0,
        }
    }

    /// One of them, if enough have not.
    fn probe(&self, reads: usize) -> usize {
        let more = u32::try_from(reads).unwrap_or(u32::MAX);
        let skipped = self.skipped.load(Relaxed).saturating_add(more);
        let due = skipped >> self.gap_shift.load(Relaxed) > 0;
        self.skipped.store(if due { 0 } else { skipped }, Relaxed);
        usize::from(due)
    }

    /// Records an attempt that hit.
    #[inline]
    pub(crate) fn hit(&self) {
        let share = self.share.load(Relaxed);
        let now = share + ((ONE - share) >> WEIGHT_SHIFT);
        // Where all is as before nothing is stored: other threads read it, too.
        if now != share {
            self.share.store(now.max(BELIEVED), Relaxed);
            self.gap_shift.store(0, Relaxed);
        }
    }

    /// Records an attempt that missed.
    pub(crate) fn miss(&self) {
        let share = self.share.load(Relaxed);
        let now = share - (share >> WEIGHT_SHIFT);
        self.share.store(now, Relaxed);
        if now < PAYS {
            let shift = self.gap_shift.load(Relaxed);
            self.gap_shift
                .store((shift + 1).min(GAP_SHIFT_MAX), Relaxed);
        }
    }

    /// Records an attempt that failed with minus an errno: the data is not cached, or the file system can't
    /// read without blocking. The driver reports any other error.
    pub(crate) fn note_refusal(&self, res: i32) {
        if res == -EOPNOTSUPP {
            self.cant();
        } else {
            self.miss();
        }
    }

    /// The file system can't answer without blocking; nothing more is to be learned.
    fn cant(&self) {
        let _ = (self.policy).compare_exchange(LEARN, CANT, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `reads` reads try the cache.
    fn attempts(hint: &CachedHint, reads: u32, hit: impl Fn(u32) -> bool) -> u32 {
        let tries = |&read: &u32| {
            let should_try = hint.should_try();
            match hit(read) {
                _ if !should_try => {}
                true => hint.hit(),
                false => hint.miss(),
            }
            should_try
        };
        u32::try_from((0..reads).filter(tries).count()).unwrap()
    }

    /// As good as random, and the same each time: true for `percent` of 100.
    fn at_random(read: u32, percent: u32) -> bool {
        let mixed = u64::from(read + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32 & 0xffff
            < u64::from(percent) * 0x1_0000 / 100
    }

    #[test]
    fn a_cold_file_wastes_eleven_calls_then_fewer_and_fewer_then_one_in_256() {
        let hint = CachedHint::default();
        assert_eq!(attempts(&hint, 11, |_| false), 11);
        // 2, 4, … 256 reads for one each.
        assert_eq!(attempts(&hint, 510, |_| false), 8);
        for _ in 0..40 {
            assert_eq!(attempts(&hint, 256, |_| false), 1);
        }
    }

    #[test]
    fn a_file_that_becomes_hot_is_noticed_within_256_reads() {
        let hint = CachedHint::default();
        attempts(&hint, 10_000, |_| false);
        let noticed = (0..).take_while(|_| !hint.should_try()).count();
        assert!(noticed < 256, "{noticed}");
        hint.hit();
        assert_eq!(attempts(&hint, 1000, |_| true), 1000);
        // And it takes a while until it is taken for cold.
        assert!(attempts(&hint, 100, |_| false) >= 22);
    }

    #[test]
    fn a_cached_file_is_tried_and_a_cold_file_rarely() {
        for (percent, least, most) in [
            (0, 0, 1),
            (1, 0, 3),
            (3, 0, 30),
            (10, 0, 50),
            (40, 80, 100),
            (60, 99, 100),
            (100, 100, 100),
        ] {
            let hint = CachedHint::default();
            let attempts = attempts(&hint, 100_000, |read| at_random(read, percent)) / 1000;
            assert!(
                (least..=most).contains(&attempts),
                "{percent} %: {attempts} % attempts"
            );
        }
    }

    #[test]
    fn of_a_cold_batch_one_read_asks() {
        let hint = CachedHint::default();
        assert_eq!(hint.attempts_of(32), 32);
        attempts(&hint, 10_000, |_| false);
        let attempts: usize = (0..80)
            .map(|_| {
                let attempts = hint.attempts_of(32);
                (0..attempts).for_each(|_| hint.miss());
                attempts
            })
            .sum();
        assert_eq!(attempts, 80 * 32 / 256);
    }

    #[test]
    fn what_the_user_says_goes_before_what_was_learned() {
        let hint = CachedHint::default();
        hint.set(CachedReads::Always);
        hint.cant();
        assert_eq!(attempts(&hint, 1000, |_| false), 1000);
        hint.set(CachedReads::Never);
        assert_eq!(attempts(&hint, 1000, |_| true), 0);
        hint.set(CachedReads::Learn);
        assert!(hint.should_try(), "anew");
        hint.cant();
        assert_eq!(attempts(&hint, 1000, |_| true), 0);
        hint.set(CachedReads::Learn);
        assert!(hint.should_try());
    }
}
