//! # Safety
//!
//! Many reads from the page cache in one system call: `RWF_NOWAIT` reads through a small ring of the
//! calling thread. Such a read is answered while it is submitted, with data or with EAGAIN, so nothing
//! is in flight when the call returns (Lent, Drained), and no thread but this one sees the ring (One
//! side). One `preadv2` per read would cost more than `pread`; one enter for all of them costs less.
#![allow(unsafe_code)]

use std::cell::RefCell;

use io_uring::IoUring;

use super::call::RWF_NOWAIT;
use super::forked::Queues;
use super::sqe::{Sqe, opcode, to_entry};
use crate::narrow::{to_u32, to_usize};

/// One range to read: into where, how much, from which offset; and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRead {
    pub(crate) base: *mut u8,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
    /// A count, or minus an errno; minus EAGAIN if it is not cached or was not asked.
    pub(crate) res: i32,
}

/// Reads asked for at a time: a kilobyte of SQEs keeps the ring within one page.
pub(crate) const READS_PER_STEP: usize = 32;

/// A thread's ring.
enum Batcher {
    /// Not tried yet.
    New,
    Ready(Box<Queues>),
    /// Refused or starved; not tried again on this thread.
    Unavailable,
}

thread_local! {
    static BATCHER: RefCell<Batcher> = const { RefCell::new(Batcher::New) };
}

/// Reads what the page cache holds of `reads`, at most `READS_PER_STEP` of them. False: this thread can't;
/// nothing was done.
///
/// # Safety
///
/// Lent: each `base` is valid for writes of `bytes` until this returns. Open: so is `fd`.
pub(crate) unsafe fn read_cached(fd: i32, reads: &mut [CachedRead]) -> bool {
    debug_assert!(reads.len() <= READS_PER_STEP);
    let read = BATCHER.try_with(|batcher| {
        // A thread-local ring is not entered twice: nothing in here calls out.
        let Ok(mut batcher) = batcher.try_borrow_mut() else {
            return false;
        };
        let Some(ring) = batcher.ring() else {
            return false;
        };
        // SAFETY: Lent and Open: the caller upholds the contract in `# Safety`.
        let whole = unsafe { run(ring, fd, reads) };
        if !whole {
            // What was not submitted goes with the ring.
            *batcher = Batcher::Unavailable;
        }
        true
    });
    // The thread is ending, and its ring has gone before a destructor that reads.
    read.unwrap_or(false)
}

impl Batcher {
    fn ring(&mut self) -> Option<&mut IoUring> {
        // Trap 54: after a fork the ring is the parent's, and its mappings are not in the child.
        if let Batcher::Ready(ring) = self
            && ring.is_elsewhere()
        {
            *self = Batcher::Unavailable;
        }
        if let Batcher::New = self {
            let made = IoUring::builder().dontfork().build(to_u32(READS_PER_STEP));
            *self = match made {
                Ok(ring) => Batcher::Ready(Box::new(Queues::new(ring))),
                Err(_) => Batcher::Unavailable,
            };
        }
        match self {
            Batcher::Ready(ring) => Some(ring),
            Batcher::New | Batcher::Unavailable => None,
        }
    }
}

/// False: the kernel did not take or answer all of them; the ring must not be used again.
///
/// # Safety
///
/// As for `read_cached`.
unsafe fn run(ring: &mut IoUring, fd: i32, reads: &mut [CachedRead]) -> bool {
    {
        let mut queue = ring.submission();
        for (index, read) in reads.iter_mut().enumerate() {
            read.res = -libc::EAGAIN;
            let sqe = Sqe {
                addr: read.base as u64,
                len: read.bytes,
                off: read.offset,
                op_flags: RWF_NOWAIT,
                user_data: index as u64,
                ..Sqe::new(opcode::READ, fd)
            };
            // SAFETY: Lent and Open, by the caller's promise; answered before this function returns,
            // or never submitted.
            if unsafe { queue.push(&to_entry(sqe)) }.is_err() {
                return false;
            }
        }
    }
    // Answered while they are submitted: this waits for nothing, and any answer of it but success is
    // judged by what is in the queues.
    let _ = ring.submit_and_wait(reads.len());
    let taken = ring.submission().is_empty();
    let mut completed = 0;
    for cqe in ring.completion() {
        if let Some(read) = reads.get_mut(to_usize(cqe.user_data())) {
            read.res = cqe.result();
            completed += 1;
        }
    }
    while taken && completed < reads.len() {
        // A signal came between the submission and the last answer, which is on its way.
        let _ = ring.submit_and_wait(1);
        for cqe in ring.completion() {
            if let Some(read) = reads.get_mut(to_usize(cqe.user_data())) {
                read.res = cqe.result();
                completed += 1;
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

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
        if !unsafe { read_cached(file.as_raw_fd(), &mut reads) } {
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
        if unsafe { read_cached(-1, &mut reads) } {
            assert_eq!(reads[0].res, -libc::EBADF);
        }
    }
}
