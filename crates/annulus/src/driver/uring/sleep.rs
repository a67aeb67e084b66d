//! Sleeping, and the wait before it for operations that are about to be submitted.

use super::{DRAIN_POLL_NS, Driver, WAKE};
use crate::sys::kernel::Kernel;

impl<K: Kernel> Driver<K> {
    /// Sleeps until something completes or is submitted. `may_park`: all wake-ups come from the handle.
    pub(in crate::driver) fn sleep(&mut self, may_park: bool) {
        self.has_skipped = false;
        if self.wait_for_batch() {
            return;
        }
        let draining = self.handle.stopping();
        let is_idle = self.in_flight == 0 && self.kernel.unsubmitted() == 0;
        let parks = may_park && is_idle && !draining && self.kernel.can_park();
        // Not during a drain: nothing would complete that read, and the drain would wait for it.
        let is_armed = draining || parks || self.arm_wake();
        if self.has_unpushed() || !is_armed {
            self.submit();
            return;
        }
        if self.spin_before_sleep() || self.polls_on() || !self.handle.may_sleep() {
            return;
        }
        if self.handle.stopping() && self.draining_until_ns.is_none() {
            self.handle.sleeper.awake();
            return;
        }
        let timeout = self
            .next_deadline_ns()
            .map(|at| at.saturating_sub(self.kernel.now_ns()));
        let timeout = match self.draining_until_ns {
            Some(_) => Some(timeout.unwrap_or(u64::MAX).min(DRAIN_POLL_NS)),
            None => timeout,
        };
        let result = match parks {
            true => {
                self.kernel.park(timeout);
                Ok(())
            }
            false => self.kernel.wait(timeout),
        };
        self.handle.sleeper.awake();
        self.kernel.note_awake();
        self.judge(result);
    }

    /// Makes the handle's wake-ups end a sleep in the kernel. Returns `false` if the queue is full.
    pub(in crate::driver) fn arm_wake(&mut self) -> bool {
        if !self.wake_armed {
            self.wake_armed = self.kernel.arm_wake(WAKE);
        }
        self.wake_armed
    }

    /// Returns whether an entry that could not be pushed may be pushable now. A sleep would wait for an unrelated
    /// completion.
    pub(super) fn has_unpushed(&self) -> bool {
        self.cancel_all
            || !self.cancels.is_empty()
            || !self.again.is_empty()
            || !self.waiting.is_empty()
            || !self.queue.pending.is_empty() && self.kernel.unsubmitted() > 0
    }

    /// Returns whether more operations are about to join this submission. A lone request never waits for a batch. But
    /// tasks whose operations just completed tend to submit again immediately, one by one, and a submission costs more
    /// than the time that they need.
    pub(super) fn wait_for_batch(&mut self) -> bool {
        // A thread that drives its own operations submits nothing while it is in here.
        if self.kernel.unsubmitted() == 0 || self.due == 0 || self.tuning.batch_delay_ns == 0 {
            return false;
        }
        let until = self.kernel.now_ns() + self.tuning.batch_delay_ns;
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
}
