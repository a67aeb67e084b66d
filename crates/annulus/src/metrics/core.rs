//! Counters of the cores of a runtime.

use super::Counters;

/// The counters of one core of a runtime since its start; see [`Handle::metrics`](crate::runtime::Handle::metrics).
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// let before = runtime::handle().metrics(0);
/// annulus::time::sleep(std::time::Duration::from_millis(1)).await;
/// let after = runtime::handle().metrics(0);
/// assert!(after.polls > before.polls); // counters only grow; the difference gives a rate
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreMetrics {
    /// Times that the core ran its ready tasks and then polled its ring.
    pub ring_polls: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Calls of `io_uring_enter` or `epoll_wait`.
    pub enters: u64,
    /// The part of `enters` that might sleep, because the core had no other work.
    pub waits: u64,
    /// Entries of the submission queue, including those of file operations and cancels. io_uring only.
    pub submitted: u64,
    /// Entries of the completion queue. A multishot operation has many. io_uring only.
    pub completed: u64,
    /// Times that another thread had to wake the core, which costs that thread a system call.
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
            submitted: self.entries().get(),
            completed: self.cqes().get(),
            wakeups: self.wakeups().get(),
        }
    }
}
