//! The flag that marks a driver as asleep, so that a submission pays for a wake-up only then. One per driver. Checked
//! by loom (`ci/loom`).
//!
//! This is Dekker's pattern: the driver raises the flag, then checks the submission list; a caller pushes to the list,
//! then checks the flag. Both orders are sequentially consistent, so at least one of the two sees the other.

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

    /// Marks the driver as about to sleep. It must check every list of submissions once more after this, and call
    /// `awake` if there is something.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(ASLEEP, Ordering::Relaxed);
        if !broken(Mutation::SleepUnfenced) {
            fence(Ordering::SeqCst);
        }
    }

    /// Marks the driver as awake.
    pub(crate) fn awake(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Returns whether the caller, which has submitted an operation, must wake the driver. Only one caller gets `true`.
    #[must_use]
    pub(crate) fn must_wake(&self) -> bool {
        if !broken(Mutation::WakeUnfenced) {
            fence(Ordering::SeqCst);
        }
        // The load alone would be correct; it spares all callers but one the exchange.
        self.0.load(Ordering::Relaxed) == ASLEEP
            && self
                .0
                .compare_exchange(ASLEEP, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}
