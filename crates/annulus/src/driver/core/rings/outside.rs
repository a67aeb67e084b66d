//! The part of a ring in sleeps outside of it, in another runtime.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use super::{REACTOR, Rings};
use crate::driver::core::core_driver::Core;
use crate::sys::kernel::Kernel;
use crate::sys::sqe::{POLL_READ, Sqe, opcode, poll_mask};

/// The number of enters in a row without a completion after which the flag for task work is not believed. Each runs 20
/// items of work, or all.
const FRUITLESS_ENTERS_MAX: u32 = 16;

impl Rings {
    /// Returns whether this thread has queued something. Not between the begin of `drive`, which handles it, and the
    /// sleep in the ring.
    fn is_queued(&self) -> bool {
        self.driver.borrow().has_own_work()
    }

    /// Registers the eventfd that ends sleeps outside of the ring.
    pub(in super::super) fn register_wake_eventfd(
        &self,
        eventfd: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.with_ring(|ring| ring.register_wake_eventfd(eventfd))
    }

    /// Polls the reactor of another runtime once. `reactor` stays open as long as the ring.
    pub(in super::super) fn poll_reactor(&self, reactor: RawFd) {
        self.driver.borrow_mut().push_later(Sqe {
            user_data: REACTOR.user_data(),
            op_flags: poll_mask(POLL_READ),
            ..Sqe::new(opcode::POLL_ADD, reactor)
        });
    }

    pub(in super::super) fn is_reactor_ready(&self) -> bool {
        self.reactor_ready.get()
    }

    /// Begins a sleep outside of the ring, which the registered eventfd or the notifier ends. Calls `on_push` when an
    /// SQE is pushed during the sleep. Returns whether there is work that the eventfd may not report.
    pub(in super::super) fn begin_sleep(&self, on_push: fn()) -> bool {
        self.on_push.set(Some(on_push));
        self.is_queued() || self.has_work_with_eventfd()
    }

    /// Submits operations while the core sleeps. Returns whether the core has to wake up for other work.
    pub(in super::super) fn submit_asleep(&self, core: &Core, on_push: fn()) -> bool {
        // Without the eventfd, which would report each completion of the submission.
        self.with_ring(|ring| ring.set_wake_eventfd(false));
        let was_armed = self.driver.borrow().is_wake_armed();
        self.drive(core, None, || true);
        self.on_push.set(Some(on_push));
        // The ring's read may have taken a notification before the other runtime saw it.
        let is_notified = was_armed && !self.driver.borrow().is_wake_armed();
        is_notified || self.is_called() || self.is_queued() || self.has_work_with_eventfd()
    }

    /// Turns the registered eventfd on. Returns whether there is work that it may not report.
    fn has_work_with_eventfd(&self) -> bool {
        self.with_ring(|ring| ring.set_wake_eventfd(true));
        loop {
            let (has_work, may_have) = self.with_ring(|ring| {
                let has_work = ring.unsubmitted() > 0 || ring.has_completions();
                (has_work, ring.ready())
            });
            if has_work || !may_have {
                return has_work;
            }
            // The flag for task work. It may stay set without any: the kernel sets it after it has queued the work,
            // which may have run by then, and no enter clears it then. Work that was queued before the eventfd was on
            // runs in this enter, or completes something there. If enters were fruitless before, one is enough.
            let enters = self.fruitless_enters.get() + 1;
            self.fruitless_enters.set(enters);
            self.submit();
            let has_completions = self.with_ring(|ring| ring.has_completions());
            if has_completions || self.failed() != 0 {
                return true;
            }
            if enters >= FRUITLESS_ENTERS_MAX {
                return false;
            }
        }
    }

    /// Ends a sleep outside of the ring.
    pub(in super::super) fn end_sleep(&self) {
        self.on_push.set(None);
        self.with_ring(|ring| ring.set_wake_eventfd(false));
    }
}
