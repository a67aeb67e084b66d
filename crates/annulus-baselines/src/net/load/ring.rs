//! The ring of one thread: entries pushed, one enter for all of them, and the buffers that receives are given.
//!
//! # Safety
//!
//! What entries point to outlives the ring's work on it: the worker keeps the memory to send from and the address to
//! connect to until [`Channel::end`] has cancelled all that is in flight, and the buffers to receive into are kept by
//! [`Received`], which it keeps as long.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, CancelBuilder, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, squeue};
use memmap2::{MmapMut, MmapRaw};

/// Entries submitted at once; when they are full, they are submitted earlier.
pub(super) const SUBMISSIONS: u32 = 256;
/// Completions that may wait: several batches.
const COMPLETIONS: u32 = 4096;
/// The only group of buffers there is.
pub(super) const GROUP: u16 = 0;
/// How long cancelling all of it may take at the end.
const END: Timespec = Timespec::new().sec(5);

/// A ring as the generator wants it.
pub(super) fn build(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(COMPLETIONS)
        .build(entries)
}

/// A completion, copied out: nothing is done about one while the queue is looked at.
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) token: u64,
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// The ring's two ends.
pub(super) struct Channel<'r> {
    submitter: Submitter<'r>,
    submissions: SubmissionQueue<'r>,
    completions: CompletionQueue<'r>,
    /// How often the kernel was entered.
    pub(super) enters: u64,
}

impl<'r> Channel<'r> {
    pub(super) fn new(ring: &'r mut IoUring) -> Channel<'r> {
        let (mut submitter, submissions, completions) = ring.split();
        // Saves the look-up of the descriptor in each enter; without it all is the same.
        let _ = submitter.register_ring_fd();
        Channel {
            submitter,
            submissions,
            completions,
            enters: 0,
        }
    }

    /// Pushes an entry, which leaves with the next enter.
    ///
    /// # Safety
    ///
    /// What it points to stays where it is until it has completed or [`Channel::end`] has returned `Ok`.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.submissions.push(&entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Submits what was pushed, without waiting.
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

    /// Submits what was pushed and waits for a completion, until `patience` is over; then takes all there are.
    #[inline]
    pub(super) fn enter(
        &mut self,
        patience: Duration,
        taken: &mut Vec<Completion>,
    ) -> io::Result<()> {
        // What has been taken is reported first: an enter waits for new completions only.
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

    /// Ends all that is in flight: once this has returned `Ok`, the kernel uses no own memory.
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

/// Interrupted, timed out, or asked to take completions first: all of these mean "go on".
fn tolerable(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

/// The buffers that the kernel receives into, and the ring through which it is given them.
pub(super) struct Received {
    entries: MmapRaw,
    memory: MmapRaw,
    buffer_bytes: usize,
    count: u16,
    tail: u16,
}

impl Received {
    /// `count` buffers, a power of two, registered with the channel's ring.
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
        // SAFETY: the map begins at a page and has room for N entries; it is unmapped after the ring has ended
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

    /// The first `len` bytes of a buffer that a completion named, until it is given back.
    #[inline]
    pub(super) fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(
            buffer < self.count && len <= self.buffer_bytes,
            "a private buffer"
        );
        let start = usize::from(buffer) * self.buffer_bytes;
        // SAFETY: within the map (asserted). The kernel gave the buffer to us with its completion and has it again
        // only after `give_back`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), len) }
    }

    /// Lets the kernel use a buffer (again).
    #[inline]
    pub(super) fn give_back(&mut self, buffer: u16) {
        let base = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        let index = usize::from(self.tail & (self.count - 1));
        let start = usize::from(buffer) * self.buffer_bytes;
        // SAFETY: the slot is below the number of entries in the map, and behind the tail, where the kernel does
        // not look; the map is zeroed, which is a value of the entry. The tail lies within the first entry.
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
