//! # Safety
//!
//! `write_vectored_at`, `write_vectored_all_at`: WRITEV, or `pwritev2`. Owns the descriptor
//! (Open), the buffers and the vectors that point to them (Lent, Still).
#![allow(unsafe_code)]

use super::vectors::Vectors;
use super::{FileOp, Op, OpInfo, Resume, refused, retry_interrupted, table, transfer_len};
use crate::buf::IoBuf;
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::call::{self, IoVec};
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Writes several buffers in order at an offset; the result is the number of bytes and the buffers.
#[derive(Debug)]
pub struct WriteVectoredAt<B> {
    fd: Fd,
    offset: u64,
    vectors: Vectors<B>,
    /// `RWF_DSYNC`, or 0.
    flags: u32,
    /// Continues until all bytes are written.
    all: bool,
}

impl<B: IoBuf> WriteVectoredAt<B> {
    pub(crate) fn new(
        fd: Fd,
        bufs: Vec<B>,
        offset: u64,
        flags: u32,
        all: bool,
    ) -> WriteVectoredAt<B> {
        WriteVectoredAt {
            fd,
            offset,
            vectors: Vectors::from(bufs),
            flags,
            all,
        }
    }

    fn rest(&mut self) -> (*const IoVec, usize, u64) {
        let offset = self.offset + self.vectors.done() as u64;
        let rest = self.vectors.rest();
        (rest.as_ptr(), rest.len(), offset)
    }
}

// SAFETY: Lent, Still, Open: buffers and vectors are the op's own, on the heap; `fd` keeps the descriptor open.
unsafe impl<B: IoBuf> Op for WriteVectoredAt<B> {
    const INFO: OpInfo = table::WRITE_VECTORED_AT;
    type Output = BufResult<usize, Vec<B>>;

    fn sqe(&mut self) -> Sqe {
        let (vectors, count, offset) = self.rest();
        Sqe {
            addr: vectors as u64,
            len: transfer_len(count),
            off: offset,
            op_flags: self.flags,
            ..Sqe::new(opcode::WRITEV, self.fd.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return match retry_interrupted(res) {
                Resume::Done(_) if self.vectors.done() > 0 && !self.all => {
                    Resume::Done(self.count())
                }
                other => other,
            };
        }
        self.vectors.advance(count(res));
        if self.all && res > 0 && self.vectors.has_rest() {
            return Resume::Again;
        }
        Resume::Done(self.count())
    }

    fn complete(self, res: i32) -> Self::Output {
        // Not `res`, which is limited to 2 GiB.
        let (bytes, want) = (self.vectors.done(), self.vectors.want());
        let bufs = self.vectors.into_bufs();
        match check(res) {
            Ok(_) if self.all && bytes < want => Err(refused(bytes, want, bufs)),
            Ok(_) => Ok((bytes, bufs)),
            Err(error) => Err(BufError::new(error, Some(bufs))),
        }
    }
}

impl<B: IoBuf> FileOp for WriteVectoredAt<B> {
    #[inline]
    fn opcode(&self) -> u8 {
        self.fd.opcode_of_transfer(Self::INFO.opcode)
    }

    fn syscall(&mut self) -> i32 {
        let (vectors, count, offset) = self.rest();
        // SAFETY: Lent: vectors and buffers are the op's own, and not touched during the call.
        unsafe { call::pwritev(self.fd.raw(), vectors, count, offset, self.flags) }
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

impl<B> WriteVectoredAt<B> {
    fn count(&self) -> i32 {
        i32::try_from(self.vectors.done()).unwrap_or(i32::MAX)
    }
}
