//! # Safety
//!
//! `write_vectored_at`, `write_vectored_all_at`: WRITEV, or `pwritev2`. Owns the descriptor
//! (Open), the buffers and the vectors that point to them (Lent, Still).
#![allow(unsafe_code)]

use std::io;

use super::{Op, OpInfo, Resume, VECTORS_MAX, refused, retry_interrupted};
use crate::buf::IoBuf;
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::call::{self, IoVec};
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Writes at an offset from several buffers in order; the answer is the number of bytes and the buffers.
#[derive(Debug)]
pub struct WriteVectoredAt<B> {
    fd: Fd,
    offset: u64,
    bufs: Vec<B>,
    vectors: Vec<IoVec>,
    /// The first vector with something left.
    first: usize,
    /// Bytes asked for.
    want: usize,
    done: usize,
    /// `RWF_DSYNC`, or 0.
    flags: u32,
    /// Until all is written.
    all: bool,
}

// SAFETY: Lent: the vectors point into the buffers, which are `Send` and travel along.
unsafe impl<B: IoBuf> Send for WriteVectoredAt<B> {}

impl<B: IoBuf> WriteVectoredAt<B> {
    pub(crate) fn new(
        fd: Fd,
        bufs: Vec<B>,
        offset: u64,
        flags: u32,
        all: bool,
    ) -> WriteVectoredAt<B> {
        let vectors: Vec<IoVec> = bufs
            .iter()
            .map(|buf| IoVec {
                base: buf.stable_ptr().cast_mut(),
                bytes: buf.init_bytes(),
            })
            .collect();
        let want = vectors.iter().map(|vector| vector.bytes).sum();
        WriteVectoredAt {
            fd,
            offset,
            bufs,
            vectors,
            first: 0,
            want,
            done: 0,
            flags,
            all,
        }
    }

    fn rest(&self) -> (*const IoVec, usize, u64) {
        let rest = self.vectors.get(self.first..).unwrap_or_default();
        (
            rest.as_ptr(),
            rest.len().min(VECTORS_MAX),
            self.offset + self.done as u64,
        )
    }

    /// Cuts `bytes` off the front of the vectors.
    fn advance(&mut self, mut bytes: usize) {
        self.done += bytes;
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if bytes < vector.bytes {
                // SAFETY: Lent: still inside the same buffer.
                vector.base = unsafe { vector.base.add(bytes) };
                vector.bytes -= bytes;
                return;
            }
            bytes -= vector.bytes;
            self.first += 1;
        }
    }
}

// SAFETY: Lent, Still, Open: buffers and vectors are the op's own, on the heap; `fd` keeps the
// descriptor.
unsafe impl<B: IoBuf> Op for WriteVectoredAt<B> {
    const INFO: OpInfo = OpInfo {
        name: "write_vectored_at",
        opcode: opcode::WRITEV,
        since: (5, 1),
    };
    type Output = BufResult<usize, Vec<B>>;

    fn sqe(&mut self) -> Sqe {
        let (vectors, count, offset) = self.rest();
        Sqe {
            addr: vectors as u64,
            len: count as u32,
            off: offset,
            op_flags: self.flags,
            ..Sqe::new(opcode::WRITEV, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        let (vectors, count, offset) = self.rest();
        // SAFETY: Lent: vectors and buffers are the op's own, and not touched during the call.
        unsafe { call::pwritev(self.fd.raw(), vectors, count, offset, self.flags) }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return match retry_interrupted(res) {
                Resume::Done(_) if self.done > 0 && !self.all => Resume::Done(self.count()),
                other => other,
            };
        }
        self.advance(res as usize);
        if self.all && res > 0 && self.first < self.vectors.len() {
            return Resume::Again;
        }
        Resume::Done(self.count())
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    fn stop_polling(&mut self) {
        self.fd.set_polled(false);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.want).unwrap_or(u32::MAX)
    }

    fn complete(self, res: i32) -> Self::Output {
        let bytes = match check(res) {
            // Not `res`, which is cut off at 2 GiB.
            Ok(_) => self.done,
            Err(error) => return Err(BufError::new(error, Some(self.bufs))),
        };
        if self.all && bytes < self.want {
            return Err(refused(bytes, self.want, self.bufs));
        }
        Ok((bytes, self.bufs))
    }

    fn lost(error: io::Error) -> Self::Output {
        Err(BufError::new(error, None))
    }
}

impl<B> WriteVectoredAt<B> {
    fn count(&self) -> i32 {
        i32::try_from(self.done).unwrap_or(i32::MAX)
    }
}
