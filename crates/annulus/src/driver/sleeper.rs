//! The flag by which a driver says that it sleeps, so that a submission pays for a wake-up only then.
//! One per driver. Checked by loom (`ci/loom`).
//!
//! Dekker's pattern: the driver raises the flag, then looks at the submission list; a caller pushes to
//! the list, then looks at the flag. Both orders are sequentially consistent, so at least one of the
//! two sees the other.

use crate::sync::{AtomicU32, Mutation, Ordering, broken, fence};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The flag.
#[derive(Debug)]
pub(crate) struct Sleeper(AtomicU32);

impl Sleeper {
    pub(crate) fn new() -> Sleeper {
        Sleeper(AtomicU32::new(AWAKE))
    }

    /// The driver is about to sleep. It must look at every list of submissions once more after
    /// this, and call `awake` if there is something.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(ASLEEP, Ordering::Relaxed);
        if !broken(Mutation::SleepUnfenced) {
            fence(Ordering::SeqCst);
        }
    }

    /// The driver is up.
    pub(crate) fn awake(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// A caller has submitted an operation. True: the driver sleeps, and it is for this caller, and
    /// no other, to wake it.
    #[must_use]
    pub(crate) fn must_wake(&self) -> bool {
        if !broken(Mutation::WakeUnfenced) {
            fence(Ordering::SeqCst);
        }
        // The load alone is the rule; only one of several callers gets as far as the exchange.
        self.0.load(Ordering::Relaxed) == ASLEEP
            && self
                .0
                .compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}
