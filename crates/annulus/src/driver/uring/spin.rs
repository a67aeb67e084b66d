//! Busy-polling before a sleep. Putting a processor to sleep and waking it costs tens of microseconds, and tasks often
//! submit again sooner after a completion. Busy-polling is limited in time, and only happens while operations are in
//! flight: an idle driver sleeps.

use super::Driver;
use crate::sys::kernel::Kernel;

impl<K: Kernel> Driver<K> {
    /// Busy-polls for a limited time if that has paid recently. Returns whether there is work.
    pub(super) fn spin_before_sleep(&mut self) -> bool {
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
