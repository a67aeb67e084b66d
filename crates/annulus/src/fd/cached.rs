//! The decision whether a buffered file's reads first try the page cache on the reading thread. It is set by the
//! user, or learned from hits and misses of the file and of other files on its mount. All clones of an open file share
//! it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use crate::narrow::to_usize;
use crate::sys::errno::EOPNOTSUPP;

/// The policy of a buffered file's reads for the page cache; see
/// [`File::set_cached_reads`](crate::File::set_cached_reads).
///
/// The figures below are for reads of 4 KiB from ext4 on Linux 6.18, in a virtual machine. Ratios are similar on
/// other machines.
///
/// A database with its own cache, whose reads are seldom in the page cache:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
/// use annulus::fs::CachedReads;
///
/// let file = engine.open(&path).await?;
/// file.set_cached_reads(CachedReads::Never); // for all clones of `file`
/// let page = file.read_exact_at(vec![0; 4096], 0).await?;
/// assert_eq!(page[0], 7);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachedReads {
    /// Reads try the cache while at least one in four recent attempts hits. Otherwise the share of reads that try it
    /// falls to one in 256, which detects a file that becomes cached. The default.
    ///
    /// The first attempt of a file depends on the first attempts of other files that the engine has opened on the same
    /// mount, since Linux 6.8.
    #[default]
    Learn,
    /// Every read tries the cache. A hit costs a copy and a system call, 2 µs.
    ///
    /// A miss costs one more system call, 1 to 5 µs of CPU time, because the kernel starts the device read
    /// immediately instead of in a batch. The device also starts earlier: a cold file at depth 32 was read 10 %
    /// faster, with 45 % more CPU time.
    Always,
    /// No read tries the cache; each goes to a driver. A cached read then costs a round trip to the driver: 2 µs at
    /// depth 32, 6 µs alone, and more if the driver sleeps. For files known to be cold, and for threads that must not
    /// copy.
    Never,
}

/// The stored policies.
const LEARN: u8 = 0;
const ALWAYS: u8 = 1;
const NEVER: u8 = 2;
/// Learned permanently: the file system can't read without blocking.
const UNSUPPORTED: u8 = 3;

/// A share of 1.
const ONE: u32 = 1 << 16;
/// The weight of the last attempt is `1 / (1 << WEIGHT_SHIFT)`.
const WEIGHT_SHIFT: u32 = 4;
/// The share of hits from which on attempts pay off. A hit saves the round trip to a driver: 2 µs at depth 32, 6 µs
/// alone. A miss costs 1 to 5 µs of CPU time, and saves some device time. In elapsed time an attempt is even or
/// better; in CPU time it breaks even at a third to two thirds (docs/internals/design.md).
const PAYS: u32 = ONE / 4;
/// The assumed share of a new file, and of a cold file after a hit. Eleven misses disprove it.
const ASSUMED: u32 = ONE / 2;
/// If attempts do not pay off, one read in at most `1 << GAP_SHIFT_MAX` tries the cache.
const GAP_SHIFT_MAX: u32 = 8;

/// The results of recent attempts, of a file or of the files of a mount.
///
/// Updates are deliberately lossy: one thread may overwrite another's step.
#[derive(Debug)]
struct Learned {
    /// Share of hits among recent attempts, in units of `1 / ONE`.
    share: AtomicU32,
    /// One read in `1 << gap_shift` tries the cache while hits are rare.
    gap_shift: AtomicU32,
    /// Reads since the last attempt.
    skipped: AtomicU32,
}

impl Default for Learned {
    fn default() -> Learned {
        Learned {
            share: AtomicU32::new(ASSUMED),
            gap_shift: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
        }
    }
}

impl Learned {
    fn set(&self, share: u32, gap_shift: u32) {
        self.share.store(share, Relaxed);
        self.gap_shift.store(gap_shift, Relaxed);
        self.skipped.store(0, Relaxed);
    }

    /// Returns how many of `reads` reads should try the cache.
    #[inline]
    fn attempts_of(&self, reads: usize) -> usize {
        match self.share.load(Relaxed) {
            PAYS.. => reads,
            _ => self.probe(reads),
        }
    }

    /// Returns 1 if enough reads have skipped the cache, else 0.
    fn probe(&self, reads: usize) -> usize {
        let more = u32::try_from(reads).unwrap_or(u32::MAX);
        let skipped = self.skipped.load(Relaxed).saturating_add(more);
        let due = skipped >> self.gap_shift.load(Relaxed) > 0;
        self.skipped.store(if due { 0 } else { skipped }, Relaxed);
        usize::from(due)
    }

    #[inline]
    fn hit(&self) {
        let share = self.share.load(Relaxed);
        let now = share + ((ONE - share) >> WEIGHT_SHIFT);
        // Store only a change, because other threads read this cache line.
        if now != share {
            self.share.store(now.max(ASSUMED), Relaxed);
            self.gap_shift.store(0, Relaxed);
        }
    }

    fn miss(&self) {
        let share = self.share.load(Relaxed);
        let now = share - (share >> WEIGHT_SHIFT);
        self.share.store(now, Relaxed);
        if now < PAYS {
            let shift = self.gap_shift.load(Relaxed);
            self.gap_shift
                .store((shift + 1).min(GAP_SHIFT_MAX), Relaxed);
        }
    }
}

/// The number of mounts that an engine tells apart. Further mounts share an entry, which makes the hint less exact.
const MOUNTS: usize = 32;

/// The results of the first attempts of an engine's files, by mount.
#[derive(Debug, Default)]
pub(crate) struct MountHints([Learned; MOUNTS]);

/// The policy of a file and its learned state.
///
/// Until its first attempt, a file follows the first attempts of the other files of its mount. A file that is read once
/// cannot learn from its own reads. Each file counts once, so a large cold file does not stop the attempts of others.
#[derive(Debug)]
pub(crate) struct CachedHint {
    policy: AtomicU8,
    learned: Learned,
    /// The file follows its mount.
    untried: AtomicBool,
    mount: OnceLock<(Arc<MountHints>, usize)>,
}

impl Default for CachedHint {
    fn default() -> CachedHint {
        CachedHint {
            policy: AtomicU8::new(LEARN),
            learned: Learned::default(),
            untried: AtomicBool::new(true),
            mount: OnceLock::new(),
        }
    }
}

impl CachedHint {
    /// Sets the policy. `Learn` starts from the initial state.
    pub(crate) fn set(&self, policy: CachedReads) {
        self.learned.set(ASSUMED, 0);
        self.untried.store(true, Relaxed);
        let policy = match policy {
            CachedReads::Learn => LEARN,
            CachedReads::Always => ALWAYS,
            CachedReads::Never => NEVER,
        };
        self.policy.store(policy, Relaxed);
    }

    /// Makes the file follow the files of `mount`, a unique ID, until its first attempt.
    pub(crate) fn follow(&self, hints: &Arc<MountHints>, mount: u64) {
        let index = to_usize(mount % MOUNTS as u64);
        let _ = self.mount.set((Arc::clone(hints), index));
    }

    /// Returns the state of the mount, if the file follows it.
    #[inline]
    fn mount(&self) -> Option<&Learned> {
        if !self.untried.load(Relaxed) {
            return None;
        }
        let (hints, index) = self.mount.get()?;
        hints.0.get(*index)
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
            LEARN => self.mount().unwrap_or(&self.learned).attempts_of(reads),
            ALWAYS => reads,
            _ => 0,
        }
    }

    /// Records an attempt that hit.
    #[inline]
    pub(crate) fn hit(&self) {
        if let Some(mount) = self.mount() {
            mount.hit();
            self.untried.store(false, Relaxed);
        }
        self.learned.hit();
    }

    /// Records an attempt that missed.
    pub(crate) fn miss(&self) {
        if let Some(mount) = self.mount() {
            let share = mount.share.load(Relaxed).min(ASSUMED);
            self.learned.set(share, mount.gap_shift.load(Relaxed));
            self.untried.store(false, Relaxed);
            mount.miss();
        }
        self.learned.miss();
    }

    /// Records an attempt that failed with minus an errno: the data is not cached, or the file system can't
    /// read without blocking. The driver reports any other error.
    pub(crate) fn note_refusal(&self, res: i32) {
        self.miss();
        if res == -EOPNOTSUPP {
            self.stop_learning();
        }
    }

    /// Records that the file system can't read without blocking, which ends the learning.
    fn stop_learning(&self) {
        let _ = (self.policy).compare_exchange(LEARN, UNSUPPORTED, Relaxed, Relaxed);
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

    /// Returns `true` for `percent` of 100 reads, in a pseudorandom but repeatable order.
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
        // It is not taken for cold immediately.
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

    /// Returns a new file on a mount.
    fn file_on(mounts: &Arc<MountHints>, mount: u64) -> CachedHint {
        let hint = CachedHint::default();
        hint.follow(mounts, mount);
        hint.set(CachedReads::Learn);
        hint
    }

    #[test]
    fn files_that_are_read_once_learn_from_each_other() {
        let mounts = Arc::new(MountHints::default());
        let tries = |mount, files, is_cached: bool| -> u32 {
            let tries = (0..files).map(|_| attempts(&file_on(&mounts, mount), 1, |_| is_cached));
            tries.sum()
        };
        assert_eq!(tries(1, 11, false), 11);
        assert_eq!(tries(1, 510 + 40 * 256, false), 8 + 40);
        // Another mount is not affected.
        assert_eq!(tries(2, 1000, true), 1000);
        // Files that are cached again are noticed.
        assert!(tries(1, 256 + 1000, true) >= 1000);
        assert_eq!(tries(1, 1000, true), 1000);
    }

    #[test]
    fn a_large_cold_file_counts_once_for_its_mount_and_learns_by_itself() {
        let mounts = Arc::new(MountHints::default());
        let cold = file_on(&mounts, 1);
        assert_eq!(attempts(&cold, 11, |_| false), 11);
        assert!(attempts(&cold, 10_000, |_| false) < 60);
        assert_eq!(attempts(&file_on(&mounts, 1), 1000, |_| true), 1000);
        // A file on a cold mount is tried again after its first hit.
        for _ in 0..1000 {
            attempts(&file_on(&mounts, 1), 1, |_| false);
        }
        let hot = file_on(&mounts, 1);
        assert!(attempts(&hot, 256 + 1000, |_| true) >= 1000);
        assert_eq!(attempts(&hot, 1000, |_| true), 1000);
    }

    #[test]
    fn one_read_of_a_cold_batch_tries_the_cache() {
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
    fn a_policy_set_by_the_user_overrides_what_was_learned() {
        let hint = CachedHint::default();
        hint.set(CachedReads::Always);
        hint.stop_learning();
        assert_eq!(attempts(&hint, 1000, |_| false), 1000);
        hint.set(CachedReads::Never);
        assert_eq!(attempts(&hint, 1000, |_| true), 0);
        hint.set(CachedReads::Learn);
        assert!(hint.should_try(), "the learned state is reset");
        hint.stop_learning();
        assert_eq!(attempts(&hint, 1000, |_| true), 0);
        hint.set(CachedReads::Learn);
        assert!(hint.should_try());
    }
}
