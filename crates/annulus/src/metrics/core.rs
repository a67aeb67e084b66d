//! Counters of the cores of a runtime.

use super::Counters;

/// Counters of one core of a runtime since its start; see
/// [`Handle::metrics`](crate::runtime::Handle::metrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreMetrics {
    /// Times that the core ran its ready tasks and then polled its ring.
    pub ring_polls: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Calls of `io_uring_enter`, or of `epoll_wait`.
    pub enters: u64,
    /// Those of them that might sleep: the core had nothing else to do.
    pub waits: u64,
    /// Entries of the submission queue, those of files and of cancels among them. Backends: uring.
    pub submitted: u64,
    /// Entries of the completion queue. A multishot operation has many. Backends: uring.
    pub completed: u64,
    /// Times another thread had to wake the core, which costs it a system call.
    pub wakeups: u64,
}

impl Counters {
    /// Returns the counters of a core.
    pub(crate) fn core(&self) -> CoreMetrics {
        CoreMetrics {
            ring_polls: self.ring_polls().get(),
            polls: self.polls().get(),
            enters: self.enters().get(),
            waits: self.waits().get(),
            submitted: self.sqes().get(),
            completed: self.cqes().get(),
            wakeups: self.wakeups().get(),
        }
    }
}
