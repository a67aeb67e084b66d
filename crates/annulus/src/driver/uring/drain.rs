//! # Safety
//!
//! The end of a driver. On request, it refuses waiting operations and waits for those in flight; after a failure of its
//! kernel, it gives them up. Invariants: Drained, Lent, Once.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Driver;
use crate::driver::finish::Done;
use crate::driver::handle::DriverHandle;
use crate::driver::leak::leak;
use crate::driver::slot::{Slot, Stage};
use crate::narrow::to_ns;
use crate::sync::{Mutation, broken};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::ECANCELED;
use crate::sys::kernel::Kernel;

impl<K: Kernel> Driver<K> {
    /// Runs to the end. Memory that the kernel may still use then is leaked: the operations' memory, and the ring that
    /// they complete into.
    pub(crate) fn run(mut self) {
        // The wait that follows submits them.
        self.keep_rest(true);
        let ran = catch_unwind(AssertUnwindSafe(|| self.drive_to_end()));
        if let Err(panic) = ran {
            // A panic's payload may panic in its drop.
            std::mem::forget(panic);
            return self.break_off();
        }
        if self.in_flight > 0 || self.wake_armed {
            self.leak();
        }
    }

    /// Drives a driver that ends, and delivers nothing: the caller takes the completions with `swap_done`. A panic ends
    /// the driver.
    pub(in crate::driver) fn drive_without_delivery(&mut self) -> Option<u32> {
        let drive = || {
            let worked = self.round();
            let ended = self.ended();
            if ended.is_none() && !worked && self.done.is_empty() {
                self.sleep(false);
            }
            ended
        };
        catch_unwind(AssertUnwindSafe(drive)).unwrap_or_else(|panic| {
            std::mem::forget(panic);
            self.give_up();
            Some(self.in_flight)
        })
    }

    /// Ends the driver after a panic, which is a bug, because panics of buffers are contained. No task is left waiting.
    fn break_off(mut self) {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.give_up();
            let handle = Arc::clone(&self.handle);
            self.done.deliver(&handle);
        }));
        std::mem::forget(ended);
        self.leak();
    }

    fn leak(self) {
        self.handle.counters.leaked().add(u64::from(self.in_flight));
        leak(self);
    }

    /// Sets the deadline of the drain, ns, if it is part of a larger one.
    pub(in crate::driver) fn drain_by(&mut self, until_ns: u64) {
        self.drain_by_ns = Some(until_ns);
    }

    pub(super) fn begin_drain(&mut self) {
        let timeout_ns = to_ns(self.tuning.drain_timeout);
        let usual_ns = || self.kernel.now_ns().saturating_add(timeout_ns);
        self.draining_until_ns = Some(self.drain_by_ns.unwrap_or_else(usual_ns));
        let handle = Arc::clone(&self.handle);
        let waiting = if broken(Mutation::InboxLeftOpen) {
            handle.inbox.drain()
        } else {
            handle.inbox.close()
        };
        for chain in waiting {
            self.queue.accept(chain);
        }
        self.queue.refuse(&handle, handle.refusal(), &mut self.done);
        self.clocks.completed_ns = 0;
        for slot in std::mem::take(&mut self.again) {
            // SAFETY: Lent: unfinished, and not with the kernel.
            self.complete_in_flight(unsafe { slot.as_ref() }, -ECANCELED);
        }
        if self.in_flight > 0 {
            self.cancel_all = true;
        }
        // The read of the eventfd completes too, if one is armed: `request_stop` sets its flag, then
        // writes. A driver that armed another read after that write would have seen the flag first.
    }

    /// Refuses the waiting operations of a driver that nothing drives yet, with `error`. Returns what the caller has to
    /// deliver.
    #[cold]
    pub(in crate::driver) fn refuse_waiting(
        &mut self,
        error: EngineError,
    ) -> (Arc<DriverHandle>, Done) {
        let handle = Arc::clone(&self.handle);
        // First, so that an operation that is submitted after these wakes the driver, too.
        handle.sleeper.about_to_sleep();
        self.take_in();
        self.queue.refuse(&handle, error.code(), &mut self.done);
        (handle, std::mem::take(&mut self.done))
    }

    /// Closes the list of cancel requests. A thread that drops a future afterwards disposes of the operation itself.
    pub(super) fn close_cancels(&mut self) {
        if broken(Mutation::CancelsLeftOpen) {
            return;
        }
        let handle = Arc::clone(&self.handle);
        for link in handle.cancels.close() {
            self.cancel_abandoned(Slot::of_cancel(link));
        }
    }

    pub(in crate::driver) fn drained(&self) -> bool {
        self.in_flight == 0
            && self.queue.pending.is_empty()
            && self.waiting.is_empty()
            && self.kernel.unsubmitted() == 0
            && !self.wake_armed
    }

    /// Gives up after a panic in a round: no task is left waiting, and everything is leaked.
    #[cold]
    pub(in crate::driver) fn give_up(&mut self) {
        self.panicked = true;
        self.fail(EngineError::Panicked);
        self.close_cancels();
    }

    /// Fails the driver. Waiting operations fail with `error`; memory that the kernel may still use is leaked with the
    /// ring when `drive_to_end` returns. The engine accepts no more operations.
    #[cold]
    pub(in crate::driver) fn fail(&mut self, error: EngineError) {
        let code = error.code();
        self.handle.failed.store(code, Ordering::Release);
        self.handle.stop.store(true, Ordering::SeqCst);
        if self.draining_until_ns.is_none() {
            self.begin_drain();
        }
        self.draining_until_ns = Some(0);
        let handle = Arc::clone(&self.handle);
        for slot in self
            .flying
            .indices()
            .filter_map(|index| handle.table.at(index))
        {
            // SAFETY: Lent: in flight, so its driver side is ours.
            let side = unsafe { slot.driver() };
            if let Some(group) = side.group {
                // The batch reads `failed` when it is woken.
                // SAFETY: Lent: this operation has not been passed to its group.
                unsafe {
                    group.as_ref().failed.store(code, Ordering::Release);
                    self.done.note(group);
                }
            } else if side.stage == Stage::InFlight
                && let Some(wake) = slot.lifecycle.expire()
            {
                side.stage = Stage::Expired;
                self.done.wake_later(wake);
            }
        }
    }
}
