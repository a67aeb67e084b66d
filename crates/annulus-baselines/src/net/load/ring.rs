//! The ring of one thread, with one enter per batch of entries, and its provided buffers.
//!
//! # Safety
//!
//! Memory that entries point to outlives their operations. The worker keeps the send memory, the address, and the
//! receive buffers in [`Received`] until [`Channel::end`] has cancelled all operations in flight.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, CancelBuilder, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, squeue};
use memmap2::{MmapMut, MmapRaw};

/// The size of the submission queue. A full queue is submitted early.
pub(super) const SUBMISSIONS: u32 = 256;
/// The size of the completion queue: several batches.
const COMPLETIONS: u32 = 4096;
/// The only buffer group.
pub(super) const GROUP: u16 = 0;
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
    submitter: Submitter<'r>,
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

/// The receive buffers, and the ring that provides them to the kernel.
pub(super) struct Received {
    entries: MmapRaw,
    memory: MmapRaw,
    buffer_bytes: usize,
    count: u16,
    tail: u16,
}

impl Received {
    /// Creates `count` buffers, a power of two, and registers them with the channel's ring.
    pub(super) fn new(
        channel: &Channel<'_>,
        count: u16,
        buffer_bytes: usize,
    ) -> io::Result<Received> {
        let entries = MmapMut::map_anon(usize::from(count) * size_of::<BufRingEntry>())?;
        let memory = MmapMut::map_anon(usize::from(count) * buffer_bytes)?;
        let mut received = Received {
            entries: MmapRaw::from(entries),
            memory: MmapRaw::from(memory),
            buffer_bytes,
            count,
            tail: 0,
        };
        let address = received.entries.as_mut_ptr() as u64;
        // SAFETY: the map begins at a page and has room for `count` entries. It is unmapped after the ring has ended
        // (see the header).
        unsafe {
            (channel.submitter).register_buf_ring_with_flags(address, count, GROUP, 0)?;
        }
        for buffer in 0..count {
            received.give_back(buffer);
        }
        Ok(received)
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the first `len` bytes of a buffer that a completion named.
    #[inline]
    pub(super) fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(
            buffer < self.count && len <= self.buffer_bytes,
            "a completion names a buffer of the group"
        );
        let start = usize::from(buffer) * self.buffer_bytes;
        // SAFETY: the range is within the map (asserted). The completion passed the buffer to this thread, and the
        // kernel gets it back only in `give_back`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), len) }
    }

    /// Provides a buffer to the kernel.
    #[inline]
    pub(super) fn give_back(&mut self, buffer: u16) {
        let base = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        let index = usize::from(self.tail & (self.count - 1));
        let start = usize::from(buffer) * self.buffer_bytes;
        // SAFETY: the slot is within the map and past the tail, which the kernel does not read. The map is zeroed,
        // which is valid for an entry. The tail is a field of the first entry.
        unsafe {
            let entry = &mut *base.add(index);
            entry.set_addr(self.memory.as_mut_ptr().add(start) as u64);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(base).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
