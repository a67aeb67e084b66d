//! # Safety
//!
//! `read_at`, `read_exact_at`: READ, or `preadv2`. Owns the descriptor (Open) and the buffer (Lent, Still). Treats at
//! most `res` bytes of the buffer as initialised (Written).
#![allow(unsafe_code)]

use super::{
    FileOp, Op, OpInfo, Resume, Returns, SyncAttempt, TRANSFER_MAX, ended, retry_interrupted,
    table, transfer_len,
};
use crate::buf::{Bounce, IoBufMut, ReadTarget, copy_in};
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::cached::{self, CachedRead, READS_PER_STEP};
use crate::sys::call;
use crate::sys::errno::{EAGAIN, check, count};
use crate::sys::sqe::{ASYNC, Sqe, opcode};
use crate::sys::transfer_call::{self, AT_POSITION};
use crate::sys::transfer_flags::{RWF_NOWAIT, TransferFlags};

/// The largest read that is copied from the page cache on the caller's thread, bytes. The copy takes about 25 µs.
pub(crate) const FAST_PATH_BYTES_MAX: usize = 128 << 10;

/// The size of a buffered read, bytes, from which on a driver may leave it to a kernel worker. Otherwise the thread
/// that submits also copies the data, which takes longer than the hand-off to a worker.
const WORKER_BYTES_MIN: usize = 64 << 10;

/// Reads at an offset into a buffer of type `B`; the result is the number of bytes and the buffer.
#[derive(Debug)]
pub struct ReadAt<B> {
    fd: Fd,
    offset: u64,
    buf: B,
    /// Bytes requested.
    want: usize,
    /// Bytes transferred so far, into the buffer, or into the bounce buffer if there is one.
    done: usize,
    target: ReadMemory,
    until: Until,
    flags: TransferFlags,
    /// The page cache may have the data, and this read has not tried it yet.
    try_cache: bool,
}

/// The condition that completes a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// After one transfer.
    Once,
    /// Until the buffer is full, or the file ends.
    FullOrEnd,
    /// Until the buffer is full. It is an error if the file ends earlier.
    Full,
}

/// The memory into which the kernel reads.
#[derive(Debug)]
pub(crate) enum ReadMemory {
    /// The buffer itself. A direct read that returns other than a multiple of `align_bytes` has reached the end of
    /// the file. For buffered reads, `align_bytes` is 1.
    Buf { align_bytes: u32 },
    /// Aligned memory of the engine, for a direct read that is not aligned. The read is extended to the alignment and
    /// starts `skip` bytes before the offset; the requested part is copied.
    Bounce {
        bounce: Bounce,
        skip: u32,
        align_bytes: u32,
    },
}

impl<B: IoBufMut> ReadAt<B> {
    pub(crate) fn new(fd: Fd, buf: B, offset: u64, target: ReadMemory, until: Until) -> ReadAt<B> {
        let want = buf.fill_bytes();
        let direct = !matches!(target, ReadMemory::Buf { align_bytes: 1 });
        let try_cache = !direct && want <= FAST_PATH_BYTES_MAX && !fd.is_simulated();
        ReadAt {
            flags: fd.flags(0),
            fd,
            offset,
            buf,
            want,
            done: 0,
            target,
            until,
            try_cache,
        }
    }

    /// Reads the next bytes of a file without offsets, on a blocking thread, which waits for the writer.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    pub(crate) fn stream(fd: Fd, buf: B) -> ReadAt<B> {
        let target = ReadMemory::Buf { align_bytes: 1 };
        ReadAt::new(fd, buf, AT_POSITION, target, Until::Once).past_the_cache()
    }

    /// Makes the read skip the page cache, for a read that has tried it already.
    pub(crate) fn past_the_cache(mut self) -> ReadAt<B> {
        self.try_cache = false;
        self
    }

    /// Returns the address of the next byte, the number of bytes, and the file offset.
    #[inline]
    fn range(&mut self) -> (*mut u8, usize, u64) {
        let (base, bytes, from) = match &mut self.target {
            ReadMemory::Buf { .. } => (self.buf.fill_ptr(), self.want, self.offset),
            ReadMemory::Bounce { bounce, skip, .. } => (
                bounce.stable_mut_ptr(),
                bounce.len(),
                self.offset - u64::from(*skip),
            ),
        };
        // SAFETY: Lent: `done` never exceeds the target's bytes (`resume` bounds it).
        let base = unsafe { base.add(self.done) };
        (
            base,
            (bytes - self.done).min(TRANSFER_MAX),
            from + self.done as u64,
        )
    }

    /// Returns the bytes of the target that complete the request.
    fn goal(&self) -> usize {
        match &self.target {
            ReadMemory::Buf { .. } => self.want,
            ReadMemory::Bounce { skip, .. } => *skip as usize + self.want,
        }
    }

    /// Returns the bytes transferred that are part of the request.
    fn result_bytes(&self) -> usize {
        match &self.target {
            ReadMemory::Buf { .. } => self.done,
            ReadMemory::Bounce { skip, .. } => {
                self.done.saturating_sub(*skip as usize).min(self.want)
            }
        }
    }

    /// Returns the same as a result of the kernel, at most 2 GiB; `complete` does not use it.
    fn result(&self) -> i32 {
        i32::try_from(self.result_bytes()).unwrap_or(i32::MAX)
    }

    fn align_bytes(&self) -> usize {
        match self.target {
            ReadMemory::Buf { align_bytes } | ReadMemory::Bounce { align_bytes, .. } => {
                align_bytes as usize
            }
        }
    }
}

// SAFETY: Lent, Still, Open: the buffer and the bounce buffer own their memory at a fixed address, and `fd` keeps the
// descriptor open.
unsafe impl<B: IoBufMut> Op for ReadAt<B> {
    const INFO: OpInfo = table::READ_AT;

    #[inline]
    fn sqe(&mut self) -> Sqe {
        let buffered = self.align_bytes() == 1;
        let (base, bytes, offset) = self.range();
        Sqe {
            flags: if buffered && bytes >= WORKER_BYTES_MIN {
                ASYNC
            } else {
                0
            },
            addr: base as u64,
            len: transfer_len(bytes),
            off: offset,
            op_flags: self.flags.bits(),
            ..Sqe::new(opcode::READ, self.fd.raw())
        }
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            if self.fd.remove_refused(&mut self.flags, res) {
                return Resume::Again;
            }
            return match retry_interrupted(res) {
                Resume::Done(res) if self.done > 0 && self.until == Until::Once => {
                    // Return the bytes that were read before the error. A further read returns the error again.
                    let _ = res;
                    Resume::Done(self.result())
                }
                other => other,
            };
        }
        self.done += count(res);
        let more = self.until != Until::Once || matches!(self.target, ReadMemory::Bounce { .. });
        // A direct transfer that ends off the alignment has reached the end of the file (trap 43).
        let ended = res == 0 || !self.done.is_multiple_of(self.align_bytes());
        if more && !ended && self.done < self.goal() {
            return Resume::Again;
        }
        Resume::Done(self.result())
    }

    #[inline]
    fn complete(mut self, res: i32) -> BufResult<usize, B> {
        let bytes = match check(res) {
            Ok(_) => self.result_bytes(),
            Err(error) => return Err(BufError::new(error, Some(self.buf))),
        };
        match &self.target {
            // SAFETY: Written: the kernel has written `bytes` bytes there.
            ReadMemory::Buf { .. } => unsafe { self.buf.set_filled(bytes) },
            ReadMemory::Bounce { bounce, skip, .. } => {
                let skip = *skip as usize;
                let read = bounce.get(skip..skip + bytes).unwrap_or_default();
                copy_in(&mut self.buf, read);
            }
        }
        if self.until == Until::Full && bytes < self.want {
            return Err(ended(bytes, self.want, self.buf));
        }
        Ok((bytes, self.buf))
    }
}

impl<B> Returns for ReadAt<B> {
    type Output = BufResult<usize, B>;
}

impl<B: IoBufMut> FileOp for ReadAt<B> {
    #[inline]
    fn opcode(&self) -> u8 {
        self.fd.opcode_of_transfer(Self::INFO.opcode)
    }

    fn syscall(&mut self) -> i32 {
        let (base, bytes, offset) = self.range();
        if offset == AT_POSITION {
            // A pipe that was opened without a writer has ended only after it has had one.
            call::wait_until_readable(self.fd.raw());
        }
        // SAFETY: Lent: the op owns `bytes` bytes at `base`, and is not touched during the call.
        unsafe { transfer_call::pread(self.fd.raw(), base, bytes, offset, self.flags) }
    }

    #[inline]
    fn try_sync(&mut self) -> SyncAttempt {
        if !self.try_cache || !self.fd.cached().should_try() {
            return SyncAttempt::NotTried;
        }
        let raw = self.fd.raw_for_brief_call();
        let flags = self.flags.with(RWF_NOWAIT);
        loop {
            let (base, bytes, offset) = self.range();
            // SAFETY: Lent: the op owns `bytes` bytes at `base`, and is not touched during the call.
            let res = unsafe { transfer_call::pread(raw, base, bytes, offset, flags) };
            match res {
                0 => {}
                res if res > 0 => {
                    self.fd.note_offsets();
                    self.fd.cached().hit();
                    if count(res) < bytes {
                        // The file ends here, or the rest is not cached. The next call finds out which.
                        self.done += count(res);
                        continue;
                    }
                }
                _ if self.done > 0 => return SyncAttempt::Missed,
                _ => {
                    self.fd.note_cached_refusal(res);
                    return SyncAttempt::Missed;
                }
            }
            return SyncAttempt::Done(res);
        }
    }

    fn has_sync_path(&self) -> bool {
        self.try_cache
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    fn stop_polling(&mut self) {
        self.fd.set_polled(false);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.goal()).unwrap_or(u32::MAX)
    }
}

/// One of several reads that try the page cache together.
#[derive(Debug)]
pub(crate) struct Try<B> {
    pub(crate) buf: B,
    /// Size of the read, at most `FAST_PATH_BYTES_MAX`, bytes.
    pub(crate) bytes: usize,
    pub(crate) offset: u64,
    /// The caller's index of the read.
    pub(crate) index: usize,
    /// All requested bytes were cached, and are in the buffer.
    pub(crate) hit: bool,
}

/// Tries at most `READS_PER_STEP` reads on the page cache, on this thread. Those with `hit` unset are still to do.
/// `by_ring` is set if the process may have rings.
pub(crate) fn read_cached<B: IoBufMut>(fd: &Fd, reads: &mut [Try<B>], by_ring: bool) {
    let nothing = CachedRead {
        base: std::ptr::null_mut(),
        bytes: 0,
        offset: 0,
        res: 0,
    };
    let mut requests = [nothing; READS_PER_STEP];
    for (request, read) in requests.iter_mut().zip(reads.iter_mut()) {
        let bytes = transfer_len(read.bytes);
        *request = CachedRead {
            base: read.buf.fill_ptr(),
            bytes,
            offset: read.offset,
            res: -EAGAIN,
        };
    }
    let Some(requests) = requests.get_mut(..reads.len()) else {
        return;
    };
    let flags = fd.flags(RWF_NOWAIT);
    // SAFETY: Lent and Open: the buffers and the descriptor are borrowed for the call. Drained: see `flags`.
    let done = by_ring
        && requests.len() >= WORTH_A_RING
        && fd.has_offsets()
        && unsafe { cached::read_cached(fd.raw(), flags, requests) };
    if !done {
        for request in requests.iter_mut() {
            // SAFETY: Lent and Open: the buffers and the descriptor are borrowed for the call.
            request.res = unsafe {
                transfer_call::pread(
                    fd.raw(),
                    request.base,
                    request.bytes as usize,
                    request.offset,
                    flags,
                )
            };
        }
    }
    for (request, read) in requests.iter().zip(reads.iter_mut()) {
        read.hit = u32::try_from(request.res).is_ok_and(|bytes| bytes == request.bytes);
        if read.hit {
            fd.cached().hit();
            // SAFETY: Written: the kernel has filled the buffer.
            unsafe { read.buf.set_filled(request.bytes as usize) };
        } else if request.res < 0 {
            fd.note_cached_refusal(request.res);
        }
    }
}

/// The number of reads from which on one enter is cheaper than a system call for each.
const WORTH_A_RING: usize = 4;
