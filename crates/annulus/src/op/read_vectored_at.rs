//! # Safety
//!
//! `read_vectored_at`, `read_vectored_exact_at`: READV, or `preadv2`. Owns the descriptor (Open), the buffers and the
//! vectors that point to them (Lent, Still). Treats at most `res` bytes as initialised (Written).
#![allow(unsafe_code)]

use super::vectors::Vectors;
use super::{FileOp, Op, OpInfo, Resume, ended, retry_interrupted, table, transfer_len};
use crate::buf::{IoBufMut, ReadTarget};
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::call::{self, IoVec};
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Reads at an offset into several buffers in order; the result is the number of bytes and the buffers.
#[derive(Debug)]
pub struct ReadVectoredAt<B> {
    fd: Fd,
    offset: u64,
    vectors: Vectors<B>,
    /// Continues until every buffer is full, or the file ends.
    exact: bool,
}

impl<B: IoBufMut> ReadVectoredAt<B> {
    pub(crate) fn new(fd: Fd, bufs: Vec<B>, offset: u64, exact: bool) -> ReadVectoredAt<B> {
        ReadVectoredAt {
            fd,
            offset,
            vectors: Vectors::into(bufs),
            exact,
        }
    }

    fn rest(&mut self) -> (*const IoVec, usize, u64) {
        let offset = self.offset + self.vectors.done() as u64;
        let rest = self.vectors.rest();
        (rest.as_ptr(), rest.len(), offset)
    }
}

// SAFETY: Lent, Still, Open: buffers and vectors are the op's own, on the heap; `fd` keeps the descriptor open.
unsafe impl<B: IoBufMut> Op for ReadVectoredAt<B> {
    const INFO: OpInfo = table::READ_VECTORED_AT;
    type Output = BufResult<usize, Vec<B>>;

    fn sqe(&mut self) -> Sqe {
        let (vectors, count, offset) = self.rest();
        Sqe {
            addr: vectors as u64,
            len: transfer_len(count),
            off: offset,
            ..Sqe::new(opcode::READV, self.fd.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return match retry_interrupted(res) {
                Resume::Done(_) if self.vectors.done() > 0 && !self.exact => {
                    Resume::Done(self.count())
                }
                other => other,
            };
        }
        self.vectors.advance(count(res));
        if self.exact && res > 0 && self.vectors.has_rest() {
            return Resume::Again;
        }
        Resume::Done(self.count())
    }

    fn complete(self, res: i32) -> Self::Output {
        // Not `res`, which is limited to 2 GiB.
        let (bytes, want) = (self.vectors.done(), self.vectors.want());
        let mut bufs = self.vectors.into_bufs();
        if let Err(error) = check(res) {
            return Err(BufError::new(error, Some(bufs)));
        }
        let mut left = bytes;
        for buf in &mut bufs {
            let filled = left.min(buf.fill_bytes());
            // SAFETY: Written: the kernel fills the buffers in order, `bytes` in all.
            unsafe { buf.set_filled(filled) };
            left -= filled;
        }
        if self.exact && bytes < want {
            return Err(ended(bytes, want, bufs));
        }
        Ok((bytes, bufs))
    }
}

impl<B: IoBufMut> FileOp for ReadVectoredAt<B> {
    #[inline]
    fn opcode(&self) -> u8 {
        self.fd.opcode_of_transfer(Self::INFO.opcode)
    }

    fn syscall(&mut self) -> i32 {
        let (vectors, count, offset) = self.rest();
        // SAFETY: Lent: vectors and buffers are the op's own, and not touched during the call.
        unsafe { call::preadv(self.fd.raw(), vectors, count, offset, 0) }
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    fn stop_polling(&mut self) {
        self.fd.set_polled(false);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.vectors.want()).unwrap_or(u32::MAX)
    }
}

impl<B> ReadVectoredAt<B> {
    fn count(&self) -> i32 {
        i32::try_from(self.vectors.done()).unwrap_or(i32::MAX)
    }
}
