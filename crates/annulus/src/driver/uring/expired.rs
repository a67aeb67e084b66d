//! # Safety
//!
//! Deadlines: operations that time out, and the timer that announces them to the driver. Invariants: Lent, Once.
#![allow(unsafe_code)]

use super::{Driver, TIMER, TIMER_MOVED};
use crate::driver::slot::{Slot, Stage};
use crate::sys::kernel::Kernel;

impl<K: Kernel> Driver<K> {
    /// Arms a timer in the kernel for the next deadline, for a driver that no thread would poll before.
    ///
    /// There is at most one timer in the kernel. It is moved if it would fire too late; arming a second one would let
    /// timers accumulate with a long deadline and many short ones. A timer that fires too early, because its operation
    /// completed in time, only makes the driver check again.
    pub(in crate::driver) fn set_timer(&mut self) {
        let Some(next) = self.next_deadline_ns() else {
            return;
        };
        if self.timer_ns != 0 && self.timer_ns <= next {
            return;
        }
        let after_ns = next.saturating_sub(self.kernel.now_ns());
        let pushed = match self.timer_ns {
            0 => self.kernel.arm_timer(after_ns, TIMER),
            // If it is just firing, its CQE makes the driver arm it again.
            _ => self.kernel.move_timer(after_ns, TIMER, TIMER_MOVED),
        };
        if pushed {
            self.timer_ns = next;
            self.submit();
        }
    }

    /// Handles deadlines that have passed. Returns whether there were any.
    #[inline]
    pub(super) fn expire(&mut self) -> bool {
        let is_late = self.is_late();
        if is_late {
            self.expire_passed();
        }
        is_late
    }

    /// Returns whether a deadline has passed.
    #[inline]
    pub(super) fn is_late(&self) -> bool {
        (self.next_deadline_ns()).is_some_and(|next| next <= self.kernel.now_ns())
    }

    fn expire_passed(&mut self) {
        let now = self.kernel.now_ns();
        let Driver {
            handle,
            queue,
            done,
            cancels,
            ..
        } = self;
        queue.expire(handle, now, done, |slot, _| {
            handle.counters.timeouts().add(1);
            cancels.push_back(slot.token());
        });
    }

    /// Completes the future of an operation that timed out and cannot be cancelled. The memory stays with the driver.
    pub(super) fn give_up_waiting(&mut self, slot: &Slot) {
        // The CQE of a cancel often arrives after its operation's.
        if !self.flying.has(slot.index()) {
            return;
        }
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        if side.timed_out
            && side.stage == Stage::InFlight
            && let Some(wake) = slot.lifecycle.expire()
        {
            side.stage = Stage::Expired;
            self.done.wake_later(wake);
        }
    }
}
