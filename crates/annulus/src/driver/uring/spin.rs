//! Sleeping, and busy-polling before it. Putting a processor to sleep and waking it costs tens of microseconds, and
//! tasks often submit again sooner after a completion. Busy-polling is limited in time, and only happens while
//! operations are in flight: an idle driver sleeps.

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
        if self.spin_before_sleep() {
            return;
        }
        if self.polls_on() {
            return;
        }
        if !self.handle.may_sleep() {
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

    /// Busy-polls for a limited time if that has paid recently. Returns whether there is work.
    fn spin_before_sleep(&mut self) -> bool {
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

    /// Busy-polls for new work, for a limited time. Returns whether there is any.
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

/// The recent benefit of busy-polling before sleeping.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Rises when it paid off, and falls when it did not.
    credit: i32,
    skipped: u32,
}

impl Spin {
    /// The limit of the credit, which determines how fast a change of load is noticed.
    const CREDIT_MAX: i32 = 8;
    /// Without credit, one sleep in this number tries again.
    const RETRY_EVERY: u32 = 64;

    /// Returns whether to busy-poll this time.
    pub(super) fn pays(&mut self) -> bool {
        if self.credit >= 0 {
            return true;
        }
        self.skipped += 1;
        self.skipped.is_multiple_of(Spin::RETRY_EVERY)
    }

    /// Learns from the outcome of a busy-poll.
    pub(super) fn learn(&mut self, has_work: bool) {
        let step = if has_work { 1 } else { -2 };
        self.credit = (self.credit + step).clamp(-Spin::CREDIT_MAX, Spin::CREDIT_MAX);
    }
}
