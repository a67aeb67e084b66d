//! On which processors a thread may run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of processors.
#[derive(Clone, Copy)]
pub(crate) struct Affinity(CpuSet);

impl Affinity {
    /// Where the calling thread may run; `None` where that is not to be known.
    pub(crate) fn of_this_thread() -> Option<Affinity> {
        sched_getaffinity(None).ok().map(Affinity)
    }

    /// Lets the calling thread run there. Without effect where that is refused: it costs speed at the
    /// most.
    pub(crate) fn apply(&self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

impl std::fmt::Debug for Affinity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Affinity({} processors)", self.0.count())
    }
}

/// A thread that is kept on one processor; dropped there, it may go where it could before.
pub(crate) struct Pinned(Affinity);

impl Pinned {
    /// Keeps the calling thread on the `n`-th of the processors that it may use, counted round.
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
