//! Sleeping, and busy-polling before that: putting a processor to sleep and waking it costs tens of microseconds,
//! and callers who were just answered tend to ask again within that. Always for a bounded while, and
//! only while operations are in flight: an idle driver sleeps.

use super::{DRAIN_POLL_NS, Driver, WAKE};
use crate::sync::{Mutation, broken};
use crate::sys::kernel::Kernel;

/// The batching delay: how long a submission waits for tasks whose operations just completed, ns.
const BATCH_DELAY_NS: u64 = 2_000;

impl<K: Kernel> Driver<K> {
    /// Sleeps in the kernel until something completes or is submitted.
    pub(in crate::driver) fn sleep(&mut self) {
        let draining = self.handle.stopping();
        // Not during a drain: nobody would complete that read, and the end waits for it.
        if !self.wake_armed && !draining {
            self.wake_armed = self.kernel.arm_wake(WAKE);
        }
        if self.is_stuck() || !self.wake_armed && !draining {
            self.submit();
            return;
        }
        if self.spin_before_sleep() {
            return;
        }
        if self.polls_on() {
            return;
        }
        self.handle.sleeper.about_to_sleep();
        let submitted = !self.handle.inbox.is_empty() && !broken(Mutation::SleepUnchecked);
        let cancels = !self.handle.cancels.is_empty() && !broken(Mutation::CancelsUnchecked);
        let called = submitted || cancels;
        if called || self.handle.stopping() && self.draining_until_ns.is_none() {
            self.handle.sleeper.awake();
            return;
        }
        let timeout = self
            .deadlines
            .next_ns()
            .map(|at| at.saturating_sub(self.kernel.now_ns()));
        let timeout = match self.draining_until_ns {
            Some(_) => Some(timeout.unwrap_or(u64::MAX).min(DRAIN_POLL_NS)),
            None => timeout,
        };
        let result = self.kernel.wait(timeout);
        self.handle.sleeper.awake();
        self.judge(result);
    }

    /// Busy-polls for a bounded time if that has paid recently. True: there is something to do.
    pub(in crate::driver) fn spin_before_sleep(&mut self) -> bool {
        let watches = self.in_flight + self.kernel.unsubmitted() > 0;
        if self.tuning.busy_poll_ns == 0 || !watches || !self.spin.pays() {
            return false;
        }
        if self.kernel.unsubmitted() > 0 {
            self.submit();
        }
        let has_work = self.busy_poll();
        self.spin.learn(has_work);
        has_work
    }

    /// Whether something could not be pushed that may be pushed: to sleep would be to wait for an
    /// answer that has nothing to do with it.
    pub(super) fn is_stuck(&self) -> bool {
        self.cancel_all
            || !self.cancels.is_empty()
            || !self.again.is_empty()
            || self.kernel.unsubmitted() > 0 && !self.pending.is_empty()
    }

    /// Whether more operations are about to join this submission. A lone request never waits for
    /// a batch; but tasks whose operations just completed tend to submit again immediately, one by one, and a
    /// submission costs more than the moment they need.
    pub(super) fn wait_for_batch(&mut self) -> bool {
        if !self.handle.inbox.is_empty() {
            return true;
        }
        // A thread that drives for itself submits nothing while it is in here.
        if self.due == 0 || self.tuning.busy_poll_ns == 0 || self.tuning.alone {
            return false;
        }
        let until = self.kernel.now_ns() + BATCH_DELAY_NS;
        loop {
            for _ in 0..8 {
                if !self.handle.inbox.is_empty() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.kernel.now_ns() >= until {
                self.due = 0;
                return false;
            }
        }
    }

    /// Busy-polls for new work, for a bounded time. True: there is some.
    fn busy_poll(&mut self) -> bool {
        let until = self.kernel.now_ns() + self.tuning.busy_poll_ns;
        loop {
            for _ in 0..16 {
                if !self.handle.inbox.is_empty() || self.kernel.ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.kernel.now_ns() >= until {
                return false;
            }
        }
    }
}

/// Whether busy-polling before sleeping has paid recently.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Rises when it paid, falls when it did not.
    credit: i32,
    skipped: u32,
}

impl Spin {
    /// Bounds of the credit: how fast a change of load is noticed.
    const CREDIT_MAX: i32 = 8;
    /// Without credit, one sleep in this many tries again.
    const RETRY_EVERY: u32 = 64;

    /// Whether to busy-poll this time.
    pub(super) fn pays(&mut self) -> bool {
        if self.credit >= 0 {
            return true;
        }
        self.skipped += 1;
        self.skipped.is_multiple_of(Spin::RETRY_EVERY)
    }

    /// What came of it.
    pub(super) fn learn(&mut self, has_work: bool) {
        let step = if has_work { 1 } else { -2 };
        self.credit = (self.credit + step).clamp(-Spin::CREDIT_MAX, Spin::CREDIT_MAX);
    }
}
