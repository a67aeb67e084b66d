//! # Safety
//!
//! Reads from the page cache, batched into one system call: `RWF_NOWAIT` reads through a small ring of the calling
//! thread. Such a read completes while it is submitted, with data or with EAGAIN. Nothing is in flight when the call
//! returns (Lent, Drained), and no other thread has access to the ring (One side). One `preadv2` per read would cost
//! more than `pread`; one enter for all of them costs less.
#![allow(unsafe_code)]

use std::cell::RefCell;

use io_uring::IoUring;

use super::filter_probe;
use super::forked::Queues;
use super::sqe::{Sqe, opcode, to_entry};
use super::transfer_flags::TransferFlags;
use crate::narrow::{to_u32, to_usize};

/// A range to read, and the result of the read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRead {
    pub(crate) base: *mut u8,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
    /// A byte count, or minus an errno; minus EAGAIN if the range is not cached or the read was not submitted.
    pub(crate) res: i32,
}

/// The maximum number of reads per call. A kilobyte of SQEs keeps the ring within one page.
pub(crate) const READS_PER_STEP: usize = 32;

/// A thread's ring for batched reads.
enum Batcher {
    /// Not tried yet.
    New,
    Ready(Box<Queues>),
    /// Refused, or left with unsubmitted entries; this thread does not try again.
    Unavailable,
}

thread_local! {
    static BATCHER: RefCell<Batcher> = const { RefCell::new(Batcher::New) };
}

/// Reads ranges that are in the page cache; takes at most `READS_PER_STEP` of them. Returns `false`, without having
/// read anything, if this thread has no ring.
///
/// # Safety
///
/// Lent: each `base` is valid for writes of `bytes` until this returns. Open: so is `fd`. Drained: `flags` have
/// `RWF_NOWAIT`.
pub(crate) unsafe fn read_cached(fd: i32, flags: TransferFlags, reads: &mut [CachedRead]) -> bool {
    debug_assert!(reads.len() <= READS_PER_STEP);
    // SAFETY: Lent, Open and Drained: the caller upholds the contract in `# Safety`.
    with_ring(|ring| unsafe { run(ring, fd, flags, reads) })
}

/// Calls `run` with the ring of this thread. Returns `false` if there is none. If `run` returns `false`, the ring is
/// not used again.
fn with_ring(run: impl FnOnce(&mut IoUring) -> bool) -> bool {
    let ran = BATCHER.try_with(|batcher| {
        // The `RefCell` is never borrowed twice: no code below calls back into this function.
        let Ok(mut batcher) = batcher.try_borrow_mut() else {
            return false;
        };
        let Some(ring) = batcher.ring() else {
            return false;
        };
        if !run(ring) {
            // Dropping the ring discards its unsubmitted entries.
            *batcher = Batcher::Unavailable;
        }
        true
    });
    // `Err`: the thread is exiting and its ring is already destroyed; the caller is a destructor that runs later.
    ran.unwrap_or(false)
}

impl Batcher {
    fn ring(&mut self) -> Option<&mut IoUring> {
        // Trap 54: after a fork the ring belongs to the parent, and its mappings do not exist in the child.
        if let Batcher::Ready(ring) = self
            && ring.is_elsewhere()
        {
            *self = Batcher::Unavailable;
        }
        if let Batcher::New = self {
            // A filter that was added after the engine was built may end the process for a new ring.
            let is_safe = filter_probe::check().is_ok();
            let make = || IoUring::builder().dontfork().build(to_u32(READS_PER_STEP));
            *self = match is_safe.then(make) {
                Some(Ok(ring)) => Batcher::Ready(Box::new(Queues::new(ring))),
                Some(Err(_)) | None => Batcher::Unavailable,
            };
        }
        match self {
            Batcher::Ready(ring) => Some(ring),
            Batcher::New | Batcher::Unavailable => None,
        }
    }
}

/// Submits the reads and stores their results. Returns `false` if the kernel did not take or complete all of them; the
/// ring must not be used again then.
///
/// # Safety
///
/// As for `read_cached`.
unsafe fn run(ring: &mut IoUring, fd: i32, flags: TransferFlags, reads: &mut [CachedRead]) -> bool {
    {
        let mut queue = ring.submission();
        for (index, read) in reads.iter_mut().enumerate() {
            read.res = -libc::EAGAIN;
            let sqe = Sqe {
                addr: read.base as u64,
                len: read.bytes,
                off: read.offset,
                op_flags: flags.bits(),
                user_data: index as u64,
                ..Sqe::new(opcode::READ, fd)
            };
            // SAFETY: Lent and Open: the caller upholds the contract in `# Safety`. The read completes before this
            // function returns, or is never submitted.
            if unsafe { queue.push(&to_entry(sqe)) }.is_err() {
                return false;
            }
        }
    }
    complete(ring, reads.len(), |user_data, res| {
        if let Some(read) = reads.get_mut(to_usize(user_data)) {
            read.res = res;
        }
    })
}

/// Submits `entries` entries that were pushed, waits for them, and passes the user data and result of each to `done`.
/// Returns `false` if the kernel did not take all of them.
fn complete(ring: &mut IoUring, entries: usize, mut done: impl FnMut(u64, i32)) -> bool {
    // The entries complete while they are submitted, so this does not sleep. An error of enter is ignored: the queues
    // show what was taken and completed.
    let _ = ring.submit_and_wait(entries);
    let taken = ring.submission().is_empty();
    let mut completed = 0;
    loop {
        for cqe in ring.completion() {
            done(cqe.user_data(), cqe.result());
            completed += 1;
        }
        if !taken || completed >= entries {
            return taken;
        }
        // A signal interrupted the call between the submission and the last completion, which will still arrive.
        let _ = ring.submit_and_wait(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::transfer_flags::RWF_NOWAIT;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const NOWAIT: TransferFlags = TransferFlags::new(RWF_NOWAIT);

    #[test]
    fn cached_pages_are_read_in_one_call_and_nothing_else_is() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..8192u32).map(|n| (n / 16).to_le_bytes()[0]).collect();
        file.write_all(&bytes).unwrap();
        let mut buffers = vec![[0u8; 1024]; 9];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .map(|(n, buf)| CachedRead {
                base: buf.as_mut_ptr(),
                bytes: 1024,
                offset: n as u64 * 1024,
                res: 0,
            })
            .collect();
        // SAFETY: Lent and Open: buffers and file outlive the call.
        if !unsafe { read_cached(file.as_raw_fd(), NOWAIT, &mut reads) } {
            println!("skip: no io_uring for this thread");
            return;
        }
        for (n, read) in reads.iter().enumerate() {
            // The ninth lies beyond the end of the file.
            assert_eq!(read.res, if n < 8 { 1024 } else { 0 });
        }
        assert!(buffers[..8].iter().flatten().eq(&bytes));
    }

    #[test]
    fn an_error_is_the_reads_own() {
        let mut buf = [0u8; 16];
        let mut reads = [CachedRead {
            base: buf.as_mut_ptr(),
            bytes: 16,
            offset: 0,
            res: 0,
        }];
        // SAFETY: Lent: the buffer outlives the call; a descriptor that is not open is refused.
        if unsafe { read_cached(-1, NOWAIT, &mut reads) } {
            assert_eq!(reads[0].res, -libc::EBADF);
        }
    }
}
