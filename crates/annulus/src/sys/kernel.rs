//! The interface between a driver and a kernel. A ring, a ring that polls devices, and the simulated kernel implement
//! it.

use std::io;
use std::sync::Arc;

use super::errno::{EAGAIN, EBADR, EBUSY, EINTR, ENOMEM, ETIME};
use super::mapping::Mapping;
use super::sqe::{Cqe, Sqe};
use crate::error::SetupError;

/// Counts of enter calls and their results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entered {
    pub(crate) enters: u64,
    /// The enters that slept.
    pub(crate) waits: u64,
    /// SQEs that the kernel took.
    pub(crate) entries: u64,
    /// The number of times a sleeping poller of the submission queue was woken.
    pub(crate) sq_wakeups: u64,
    /// Enters that fetched completions for which the queue had no space.
    pub(crate) overflows: u64,
}

/// The outcome of an enter call. An error never affects an operation: SQEs that were not taken are still in the queue,
/// and those that were taken will have their CQEs (traps 1, 5, 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterOutcome {
    Done,
    /// A signal has arrived, or the timeout has passed.
    Interrupted,
    /// The kernel is short of memory, or the completion queue has overflowed: reap, then try again.
    Refused,
    /// The ring is gone, or has lost an unknown CQE (EBADR).
    Failed {
        errno: i32,
    },
}

impl EnterOutcome {
    #[inline]
    pub(crate) fn of(result: io::Result<()>) -> EnterOutcome {
        let Err(error) = result else {
            return EnterOutcome::Done;
        };
        match error.raw_os_error() {
            Some(EINTR | ETIME) => EnterOutcome::Interrupted,
            Some(EAGAIN | EBUSY | ENOMEM) => EnterOutcome::Refused,
            errno => EnterOutcome::Failed {
                errno: errno.unwrap_or(EBADR),
            },
        }
    }
}

/// A kernel as a driver uses it.
pub(crate) trait Kernel {
    /// Queues an SQE. Returns `false` if the submission queue is full.
    fn push(&mut self, sqe: Sqe) -> bool;
    /// Returns the number of pushed SQEs that the kernel has not taken yet.
    fn unsubmitted(&self) -> u32;
    /// Submits the pushed entries, without waiting. An error leaves the SQEs queued.
    fn submit(&mut self) -> io::Result<()>;
    /// Submits the pushed entries and sleeps until a CQE is available, `timeout_ns` has passed, or a waker fires.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()>;
    /// Returns whether `park` is possible.
    fn can_park(&self) -> bool {
        false
    }
    /// Sleeps until a waker fires or `timeout_ns` has passed, with nothing pushed or in flight, and without `arm_wake`.
    /// May return earlier.
    fn park(&mut self, _timeout_ns: Option<u64>) {}
    /// Notes that the driver is awake, and will look at everything that a waker may have announced.
    fn note_awake(&mut self) {}
    /// Returns whether there are CQEs, or work that the next enter turns into CQEs. No system call.
    fn ready(&mut self) -> bool;
    /// Moves CQEs from the completion queue to `into`, until `into` holds `REAP_MAX`.
    fn reap(&mut self, into: &mut Vec<Cqe>);
    /// Makes the next `waker().wake()` end a `wait`; its CQE carries `token`. Returns `false` if the submission queue
    /// is full.
    fn arm_wake(&mut self, token: u64) -> bool;
    /// Arms a timer: a CQE with `token` is posted after `after_ns`. Returns `false` if that is not possible now or at
    /// all.
    fn arm_timer(&mut self, _after_ns: u64, _token: u64) -> bool {
        false
    }
    /// Moves the timer that was armed with `token`, so that it fires after `after_ns` from now. If the timer could not
    /// be moved, because it is just firing, a CQE with `user_data` follows; it may follow on success as well. Returns
    /// `false` if moving is not possible now or at all.
    fn move_timer(&mut self, _after_ns: u64, _token: u64, _user_data: u64) -> bool {
        false
    }
    /// Returns whether this kernel supports `opcode`.
    fn supports(&self, opcode: u8) -> bool;
    /// Returns the counts of enter calls made so far and of their results.
    fn entered(&self) -> Entered;
    /// Returns whether this kernel only takes reads and writes on devices that are polled.
    fn polls_devices(&self) -> bool {
        false
    }
    /// Returns the time on the clock of deadlines, ns: the machine's monotonic clock, or the simulation's.
    fn now_ns(&self) -> u64;
    /// Sleeps for `ns` on that clock.
    fn pause(&mut self, ns: u64);
    /// Registers a part of `memory` under an index of the kernel's table, and keeps it mapped.
    fn lend(
        &mut self,
        _index: u16,
        _memory: &Arc<Mapping>,
        _from: usize,
        _bytes: usize,
    ) -> Result<(), SetupError> {
        Err(SetupError::Config(
            "a simulated kernel has no registered buffers".to_owned(),
        ))
    }
    /// Empties that slot. Returns `false` if the slot cannot be used again.
    fn take_back(&mut self, _index: u16) -> bool {
        false
    }
}
