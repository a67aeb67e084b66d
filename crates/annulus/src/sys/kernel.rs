//! What a driver needs of a kernel: implemented by a ring, by one that polls devices, and by the
//! simulated kernel.

use std::io;
use std::sync::Arc;

use super::mapping::Mapping;
use super::sqe::{Cqe, Sqe};
use crate::error::SetupError;

/// What has been counted of enter calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entered {
    pub(crate) enters: u64,
    /// Those of them that slept.
    pub(crate) waits: u64,
    /// SQEs that were taken.
    pub(crate) entries: u64,
    /// Times a sleeping poller of the submission queue had to be woken.
    pub(crate) sq_wakeups: u64,
    /// Enters that found completions for which the queue had had no room.
    pub(crate) overflows: u64,
}

/// What a driver needs of a kernel. Two exist: `Ring`, and the simulated one.
pub(crate) trait Kernel {
    /// Queues an SQE; false when the submission queue is full.
    fn push(&mut self, sqe: Sqe) -> bool;
    /// SQEs pushed that the kernel has not taken yet.
    fn unsubmitted(&self) -> u32;
    /// Submits the pushed entries, without waiting. An error leaves the SQEs queued.
    fn submit(&mut self) -> io::Result<()>;
    /// Submits the pushed entries and sleeps until a CQE is there, `timeout_ns` has passed, or a
    /// waker fired.
    fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()>;
    /// Whether CQEs, or work that will turn into CQEs on the next enter, are there. No system call.
    fn ready(&mut self) -> bool;
    /// Takes CQEs out of the completion queue, at most `into.len()`.
    fn reap(&mut self, into: &mut Vec<Cqe>);
    /// Makes the next `waker().wake()` end a `wait`; its CQE carries `token`. False when the
    /// submission queue is full.
    fn arm_wake(&mut self, token: u64) -> bool;
    /// Has a CQE with `token` come after `after_ns`. False: not now, or this kernel can't.
    fn arm_timer(&mut self, _after_ns: u64, _token: u64) -> bool {
        false
    }
    /// Has the CQE of the timer that was armed with `token` come after `after_ns` instead. A CQE with
    /// `answer` follows if the timer could not be moved, and may follow if it could: one that can't be
    /// moved goes off just now. False: not now, or this kernel can't.
    fn move_timer(&mut self, _after_ns: u64, _token: u64, _user_data: u64) -> bool {
        false
    }
    /// Whether this kernel can take `opcode`.
    fn supports(&self, opcode: u8) -> bool;
    /// Enter calls made so far, and what came of them.
    fn entered(&self) -> Entered;
    /// Whether this kernel takes nothing but reads and writes on devices that are polled.
    fn polls_devices(&self) -> bool {
        false
    }
    /// The clock of deadlines, ns: the machine's monotonic one, or the simulation's.
    fn now_ns(&self) -> u64;
    /// Lets `ns` pass on that clock.
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
            "a simulated kernel registers nothing".to_owned(),
        ))
    }
    /// Empties that slot. False: it can't be used again.
    fn take_back(&mut self, _index: u16) -> bool {
        false
    }
}
