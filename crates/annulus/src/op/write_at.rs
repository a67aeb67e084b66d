//! # Safety
//!
//! `write_at`, `write_all_at`: WRITE, or `pwritev2`. Owns the descriptor (Open) and the buffer (Lent,
//! Still).
#![allow(unsafe_code)]

use super::{
    FileOp, Op, OpInfo, Resume, TRANSFER_MAX, refused, retry_interrupted, table, transfer_len,
};
use crate::buf::IoBuf;
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Writes a buffer of type `B` at an offset; the result is the number of bytes and the buffer.
#[derive(Debug)]
pub struct WriteAt<B> {
    fd: Fd,
    offset: u64,
    buf: B,
    done: usize,
    /// `RWF_DSYNC`, or 0.
    flags: u32,
    /// Continues until all bytes are written.
    all: bool,
    /// Uses a blocking thread even if a ring could do the write.
    by_thread: bool,
}

impl<B: IoBuf> WriteAt<B> {
    pub(crate) fn new(fd: Fd, buf: B, offset: u64, flags: u32, all: bool) -> WriteAt<B> {
        WriteAt {
            fd,
            offset,
            buf,
            done: 0,
            flags,
            all,
            by_thread: false,
        }
    }

    /// Sets whether the write uses a blocking thread. A ring's workers do the buffered writes to one file one at a
    /// time. For durable writes that is too slow, because each waits for the device.
    pub(crate) fn by_thread(mut self, by_thread: bool) -> WriteAt<B> {
        self.by_thread = by_thread;
        self
    }

    fn range(&self) -> (*const u8, usize, u64) {
        // SAFETY: Lent: `done` never exceeds the initialised bytes.
        let base = unsafe { self.buf.stable_ptr().add(self.done) };
        let bytes = self
            .buf
            .init_bytes()
            .saturating_sub(self.done)
            .min(TRANSFER_MAX);
        (base, bytes, self.offset + self.done as u64)
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, and `fd` keeps the descriptor open.
unsafe impl<B: IoBuf> Op for WriteAt<B> {
    const INFO: OpInfo = table::WRITE_AT;
    type Output = BufResult<usize, B>;

    fn sqe(&mut self) -> Sqe {
        let (base, bytes, offset) = self.range();
        Sqe {
            addr: base as u64,
            len: transfer_len(bytes),
            off: offset,
            op_flags: self.flags,
            ..Sqe::new(opcode::WRITE, self.fd.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return match retry_interrupted(res) {
                Resume::Done(_) if self.done > 0 && !self.all => Resume::Done(clamp(self.done)),
                other => other,
            };
        }
        self.done += count(res);
        if self.all && res > 0 && self.done < self.buf.init_bytes() {
            return Resume::Again;
        }
        Resume::Done(clamp(self.done))
    }

    fn complete(self, res: i32) -> BufResult<usize, B> {
        match check(res) {
            Ok(_) if self.all && self.done < self.buf.init_bytes() => {
                Err(refused(self.done, self.buf.init_bytes(), self.buf))
            }
            // Not `res`, which is limited to 2 GiB.
            Ok(_) => Ok((self.done, self.buf)),
            Err(error) => Err(BufError::new(error, Some(self.buf))),
        }
    }
}

impl<B: IoBuf> FileOp for WriteAt<B> {
    #[inline]
    fn opcode(&self) -> u8 {
        if self.by_thread {
            return opcode::BY_THREAD;
        }
        self.fd.opcode_of_transfer(Self::INFO.opcode)
    }

    fn syscall(&mut self) -> i32 {
        let (base, bytes, offset) = self.range();
        // SAFETY: Lent: the op owns `bytes` bytes at `base`, and is not touched during the call.
        unsafe { call::pwrite(self.fd.raw(), base, bytes, offset, self.flags) }
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    fn stop_polling(&mut self) {
        self.fd.set_polled(false);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.buf.init_bytes()).unwrap_or(u32::MAX)
    }
}

fn clamp(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}
