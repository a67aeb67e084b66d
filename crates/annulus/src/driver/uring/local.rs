//! The sockets of a core. Their operations are in a table of the core, and share the driver's ring: the core pushes
//! their SQEs, enters once after its tasks have run, and takes their CQEs. The core does not use `poll` and `sleep`,
//! because it also sleeps for its tasks, and does not submit before they have run.

use super::Driver;
use crate::sys::kernel::Kernel;
use crate::sys::ring::Ring;
use crate::sys::sqe::{Cqe, Sqe};

impl Driver<Ring> {
    /// Returns whether the next `sqes` SQEs go to the kernel in one enter.
    pub(in crate::driver) fn has_space(&self, sqes: u32) -> bool {
        self.waiting.is_empty() && self.kernel.sq_space() >= sqes
    }
}

impl<K: Kernel> Driver<K> {
    /// Pushes an SQE of a socket. If the queue is full, it waits for space behind earlier ones.
    #[inline]
    pub(in crate::driver) fn push_local(&mut self, sqe: Sqe) {
        if !self.waiting.is_empty() || !self.kernel.push(sqe) {
            self.push_later(sqe);
        }
    }

    /// Pushes an SQE of a socket after all that wait.
    #[cold]
    pub(in crate::driver) fn push_later(&mut self, sqe: Sqe) {
        self.waiting.push_back(sqe);
        self.make_space();
    }

    /// Submits the pushed entries, and pushes those that wait.
    #[cold]
    pub(in crate::driver) fn make_space(&mut self) {
        self.submit();
        self.push_waiting();
    }

    /// Handles submissions, cancels and deadlines of file operations. Returns whether the core must not sleep before it
    /// has delivered results or submitted.
    #[inline]
    pub(in crate::driver) fn begin_round(&mut self) -> bool {
        let is_called = !self.handle.inbox.is_empty() || !self.handle.cancels.is_empty();
        if !(is_called || self.has_own_work() || self.is_late()) {
            return false;
        }
        self.take();
        self.expire();
        self.publish();
        self.has_unpushed() || self.has_done()
    }

    /// Submits the pushed entries and fetches completions, without waiting. Returns at once if there are none.
    #[inline]
    pub(in crate::driver) fn enter(&mut self) {
        if self.kernel.unsubmitted() > 0 || self.kernel.ready() {
            self.submit();
        }
    }

    /// Submits the pushed entries, and waits for a completion at most until `until_ns`, or the next deadline.
    #[inline]
    pub(in crate::driver) fn wait(&mut self, until_ns: Option<u64>) {
        let next_ns = (until_ns.into_iter().chain(self.next_deadline_ns())).min();
        let timeout_ns = next_ns.map(|at| at.saturating_sub(self.kernel.now_ns()));
        let result = self.kernel.wait(timeout_ns);
        self.judge(result);
    }

    /// Moves completions to `cqes`.
    #[inline]
    pub(in crate::driver) fn fetch(&mut self, cqes: &mut Vec<Cqe>) {
        self.kernel.reap(cqes);
        self.note_reaped();
    }

    /// Handles a completion that is not of a socket.
    pub(in crate::driver) fn handle(&mut self, cqe: Cqe) {
        self.react(cqe);
    }

    /// Submits operations that waited for those that have completed.
    pub(in crate::driver) fn end_round(&mut self) {
        self.issue();
        self.publish();
    }

    /// Returns whether a sleep in the kernel ends at a notification that has not come yet.
    #[cfg(feature = "tokio")]
    pub(in crate::driver) fn is_wake_armed(&self) -> bool {
        self.wake_armed
    }

    /// Returns whether the driver has entries that it must push or submit itself, or arenas to follow.
    #[inline]
    pub(in crate::driver) fn has_own_work(&self) -> bool {
        self.has_unpushed() || self.is_changed()
    }

    /// Returns whether the engine is ending or has other arenas.
    #[inline]
    pub(in crate::driver) fn is_changed(&self) -> bool {
        self.handle.stopping() || self.fixed.is_behind(self.handle.arenas.get())
    }
}
