//! CPU affinity of threads.

#[cfg(feature = "net")]
mod pinned;

#[cfg(feature = "net")]
pub(crate) use pinned::Pinned;

use rustix::thread::{CpuSet, sched_setaffinity};

/// A set of processors.
#[derive(Clone, Copy)]
pub(crate) struct Affinity(CpuSet);

impl Affinity {
    /// Restricts the calling thread to this set. A refusal is ignored: it only costs speed.
    pub(crate) fn apply(&self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

impl std::fmt::Debug for Affinity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Affinity({} processors)", self.0.count())
    }
}
