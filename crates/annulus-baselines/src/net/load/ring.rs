//! The ring of one thread, with one enter per batch of entries, and its provided buffers.
//!
//! # Safety
//!
//! Memory that entries point to outlives their operations. The worker keeps the send memory, the address, and the
//! receive buffers in [`Provided`](crate::net::provided::Provided) until [`Channel::end`] has cancelled all operations
//! in flight.

#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, squeue};

/// The size of the submission queue. A full queue is submitted early.
pub(super) const SUBMISSIONS: u32 = 256;
/// The size of the completion queue: several batches.
const COMPLETIONS: u32 = 4096;
/// The time limit for cancelling all operations at the end.
const END: Timespec = Timespec::new().sec(5);

/// Builds the generator's ring.
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(COMPLETIONS)
        .build(entries)
}

/// A copy of a completion, which is handled after the queue has been drained.
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) token: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// The ring's submitter and queues.
pub(super) struct Channel<'r> {
    pub(super) submitter: Submitter<'r>,
    submissions: SubmissionQueue<'r>,
    completions: CompletionQueue<'r>,
    /// The number of `io_uring_enter` calls.
    pub(super) enters: u64,
}

impl<'r> Channel<'r> {
    pub(super) fn new(ring: &'r mut IoUring) -> Channel<'r> {
        let (mut submitter, submissions, completions) = ring.split();
        // Saves the lookup of the descriptor in each enter. A failure only costs that lookup.
        let _ = submitter.register_ring_fd();
        Channel {
            submitter,
            submissions,
            completions,
            enters: 0,
        }
    }

    /// Queues an entry for the next enter.
    ///
    /// # Safety
    ///
    /// Memory that the entry points to stays valid until it has completed or [`Channel::end`] has returned `Ok`.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller guarantees it.
        while unsafe { self.submissions.push(&entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Submits the queued entries without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.submissions.sync();
        if self.submissions.is_empty() {
            return Ok(());
        }
        self.enters += 1;
        let result = self.submitter.submit();
        self.submissions.sync();
        tolerable(result)
    }

    /// Submits the queued entries, waits for a completion for at most `patience`, and takes all completions.
    #[inline]
    pub(super) fn enter(
        &mut self,
        patience: Duration,
        taken: &mut Vec<Completion>,
    ) -> io::Result<()> {
        // The head is published first, because an enter waits for new completions only.
        self.completions.sync();
        self.submissions.sync();
        let wait = Timespec::from(patience);
        let args = SubmitArgs::new().timespec(&wait);
        self.enters += 1;
        let result = self.submitter.submit_with_args(1, &args);
        self.submissions.sync();
        tolerable(result)?;
        self.completions.sync();
        taken.extend(
            (&mut self.completions).map(|entry: cqueue::Entry| Completion {
                token: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            }),
        );
        Ok(())
    }

    /// Cancels all operations. After `Ok`, the kernel no longer uses our memory.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.submit()?;
        match self
            .submitter
            .register_sync_cancel(Some(END), CancelBuilder::any())
        {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Ignores errors after which the loop continues: interrupted, timed out, or completions must be taken first.
fn tolerable(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}
