//! Pinning of the calling thread to one processor.

use rustix::thread::{CpuSet, sched_getaffinity};

use super::Affinity;

impl Affinity {
    /// Returns the processors that the calling thread may use; `None` if the kernel does not report them.
    pub(crate) fn of_this_thread() -> Option<Affinity> {
        sched_getaffinity(None).ok().map(Affinity)
    }
}

/// Pins a thread to one processor. Dropping it on that thread restores the previous set of processors.
pub(crate) struct Pinned(Affinity);

impl Pinned {
    /// Pins the calling thread to the `n`-th of its allowed processors, modulo their number.
    pub(crate) fn to_nth(n: usize) -> Option<Pinned> {
        let before = Affinity::of_this_thread()?;
        let allowed = &before.0;
        let mut processors = (0..CpuSet::MAX_CPU).filter(|&one| allowed.is_set(one));
        let count = allowed.count() as usize;
        let processor = processors.nth(n % count.max(1))?;
        let mut only = CpuSet::new();
        only.set(processor);
        Affinity(only).apply();
        Some(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.apply();
    }
}
