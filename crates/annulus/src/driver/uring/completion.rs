//! # Safety
//!
//! Handling of an operation that the kernel has released: it continues, or it has completed. Invariants: Lent, Once.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::Driver;
use crate::driver::slot::{Slot, Stage};
use crate::op::Resume;
use crate::sys::errno::{ECANCELED, EFAULT};
use crate::sys::kernel::Kernel;

impl<K: Kernel> Driver<K> {
    /// Handles the final CQE of an operation.
    pub(super) fn complete_in_flight(&mut self, slot: &Slot, res: i32) {
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        let expired = side.stage == Stage::Expired;
        let mut res = res;
        let ends_early = side.timed_out || self.draining_until_ns.is_some();
        let is_live = !expired && !ends_early && !slot.lifecycle.is_abandoned();
        if is_live {
            if self.is_cancelled_by_exit(res) && !side.resubmitted_after_exit {
                side.resubmitted_after_exit = true;
                self.note_again(res);
                self.again.push_back(NonNull::from(slot));
                return;
            }
            // SAFETY: Lent: the kernel has released the op, which belongs to this driver.
            match unsafe { slot.resume(res) } {
                Resume::Again => {
                    self.note_again(res);
                    self.again.push_back(NonNull::from(slot));
                    return;
                }
                Resume::Next => {
                    self.again.push_back(NonNull::from(slot));
                    return;
                }
                Resume::Done(total) => res = total,
            }
        } else if !expired {
            // SAFETY: Lent: the kernel has released the op, which belongs to this driver. It was interrupted for good,
            // so the part done so far counts.
            res = match unsafe { slot.resume(res) } {
                Resume::Done(total) => total,
                Resume::Again | Resume::Next => -ECANCELED,
            };
        }
        self.conclude(slot, res, is_live);
    }

    /// Completes an operation that the kernel has released, or never had, and that is not submitted again.
    pub(super) fn conclude(&mut self, slot: &Slot, res: i32, is_live: bool) {
        // SAFETY: Lent: in flight, so its driver side is ours.
        let side = unsafe { slot.driver() };
        self.in_flight -= 1;
        self.flying.remove(slot.index());
        self.in_flight_bytes -= u64::from(side.bytes);
        // SAFETY: Lent: in flight, so its driver side is ours.
        let operation = unsafe { slot.operation() };
        let res = self.note_completion(operation, side, res, is_live);
        self.queue.finish(slot, res, &mut self.done);
    }

    /// Returns whether the kernel reports this result because the submitting thread has ended (trap 17). The caller has
    /// checked that the operation was not cancelled. Any thread may have polled a threadless driver.
    fn is_cancelled_by_exit(&self, res: i32) -> bool {
        matches!(-res, ECANCELED | EFAULT) && self.handle.is_threadless()
    }
}
