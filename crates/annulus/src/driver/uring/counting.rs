//! The counters of a driver's operations, and the times of those that are sampled.

use super::Driver;
use crate::driver::queue;
use crate::driver::slot::DriverSide;
use crate::metrics::{Counters, OperationNumber};
use crate::sys::kernel::Kernel;

/// The times, ns, at which timed operations entered the kernel and completions were reaped. Each is read once for all
/// operations of one enter or reap; 0 if not read yet.
#[derive(Default)]
pub(super) struct Clocks {
    pub(super) begun_ns: u64,
    pub(super) completed_ns: u64,
}

impl<K: Kernel> Driver<K> {
    /// Notes the start of an operation that is about to be pushed.
    #[inline]
    pub(super) fn note_begun(&mut self, side: &mut DriverSide) {
        if side.submitted_ns > 0 {
            let now_ns = || self.kernel.now_ns();
            side.begun_ns = *read_once(&mut self.clocks.begun_ns, now_ns);
        }
    }

    /// Counts a final result, and returns it as the future gets it. `is_live`: the operation was not cancelled.
    #[inline]
    pub(super) fn note_completion(
        &mut self,
        operation: OperationNumber,
        side: &DriverSide,
        res: i32,
        is_live: bool,
    ) -> i32 {
        let (kernel, clock) = (&self.kernel, &mut self.clocks.completed_ns);
        let now_ns = || *read_once(clock, || kernel.now_ns());
        queue::count(&self.handle.counters, operation, side, res, is_live, now_ns)
    }

    /// Counts a resubmission: the rest of a transfer, or a retry.
    #[cold]
    pub(super) fn note_again(&self, res: i32) {
        self.handle.counters.resubmitted().add(1);
        self.handle.counters.short().add(u64::from(res > 0));
    }

    /// Publishes the kernel's counts.
    pub(super) fn publish(&self) {
        self.publish_to(&self.handle.counters);
    }

    /// Publishes the kernel's counts in `counters`.
    #[inline]
    pub(in crate::driver) fn publish_to(&self, counters: &Counters) {
        let entered = self.kernel.entered();
        counters.enters().set(entered.enters);
        counters.waits().set(entered.waits);
        counters.entries().set(entered.entries);
        counters.sq_wakeups().set(entered.sq_wakeups);
        counters.cq_overflows().set(entered.overflows);
    }
}

#[inline]
fn read_once(clock: &mut u64, now_ns: impl FnOnce() -> u64) -> &u64 {
    if *clock == 0 {
        *clock = now_ns();
    }
    clock
}
