//! What a driver counts of each operation; and, of those that are timed, when they went and came.

use super::{Driver, ECANCELED, ETIMEDOUT};
use crate::driver::slot::DriverSide;
use crate::metrics::{OperationNumber, Times};
use crate::sys::kernel::Kernel;

/// When what is timed went to the kernel, and when answers came, ns; each read once for all that go, or come,
/// together. 0: not read yet.
#[derive(Default)]
pub(super) struct Clocks {
    pub(super) begun_ns: u64,
    pub(super) completed_ns: u64,
}

impl<K: Kernel> Driver<K> {
    /// Of an operation that is about to be pushed.
    #[inline]
    pub(super) fn note_begun(&mut self, side: &mut DriverSide) {
        if side.submitted_ns > 0 {
            let now_ns = || self.kernel.now_ns();
            side.begun_ns = *read_once(&mut self.clocks.begun_ns, now_ns);
        }
    }

    /// Of one that has been answered for good. `wanted`: nothing has been done to have it end before its time.
    #[inline]
    pub(super) fn note_completion(
        &mut self,
        operation: OperationNumber,
        side: &DriverSide,
        res: i32,
        is_live: bool,
    ) {
        let counters = &self.handle.counters;
        counters.complete(operation);
        if res < 0 {
            match -res {
                ECANCELED if !is_live => counters.cancelled().add(1),
                ETIMEDOUT if side.timed_out => {}
                errno => counters.fail(operation, errno),
            }
        }
        if side.submitted_ns > 0 {
            let now_ns = || self.kernel.now_ns();
            let times = Times {
                submitted: side.submitted_ns,
                begun: side.begun_ns,
                completed: *read_once(&mut self.clocks.completed_ns, now_ns),
            };
            counters.time(operation, times);
        }
    }

    /// Of one whose rest is asked for, or that is asked for again.
    #[cold]
    pub(super) fn note_again(&self, res: i32) {
        self.handle.counters.resubmitted().add(1);
        self.handle.counters.short().add(u64::from(res > 0));
    }

    /// Makes known what the kernel has counted.
    pub(super) fn publish(&mut self) {
        let entered = self.kernel.entered();
        let counters = &self.handle.counters;
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
