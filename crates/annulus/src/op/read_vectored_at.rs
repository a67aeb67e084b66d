//! # Safety
//!
//! `read_vectored_at`, `read_vectored_exact_at`: READV, or `preadv2`. Owns the descriptor
//! (Open), the buffers and the vectors that point to them (Lent, Still); takes at most `res` bytes of them as
//! initialised (Written).
#![allow(unsafe_code)]

use std::io;

use super::{Op, OpInfo, Resume, VECTORS_MAX, ended, retry_interrupted};
use crate::buf::IoBufMut;
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::call::{self, IoVec};
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Reads at an offset into several buffers in order; the answer is the number of bytes and the buffers.
#[derive(Debug)]
pub struct ReadVectoredAt<B> {
    fd: Fd,
    offset: u64,
    bufs: Vec<B>,
    vectors: Vec<IoVec>,
    /// The first vector with something left.
    first: usize,
    /// Bytes asked for.
    want: usize,
    done: usize,
    /// Until every buffer is full, or the file ends.
    exact: bool,
}

// SAFETY: Lent: the vectors point into the buffers, which are `Send` and travel along.
unsafe impl<B: IoBufMut> Send for ReadVectoredAt<B> {}

impl<B: IoBufMut> ReadVectoredAt<B> {
    pub(crate) fn new(fd: Fd, mut bufs: Vec<B>, offset: u64, exact: bool) -> ReadVectoredAt<B> {
        let vectors: Vec<IoVec> = bufs
            .iter_mut()
            .map(|buf| IoVec {
                base: buf.stable_mut_ptr(),
                bytes: buf.lent_bytes(),
            })
            .collect();
        let want = vectors.iter().map(|vector| vector.bytes).sum();
        ReadVectoredAt {
            fd,
            offset,
            bufs,
            vectors,
            first: 0,
            want,
            done: 0,
            exact,
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
unsafe impl<B: IoBufMut> Op for ReadVectoredAt<B> {
    const INFO: OpInfo = OpInfo {
        name: "read_vectored_at",
        opcode: opcode::READV,
        since: (5, 1),
    };
    type Output = BufResult<usize, Vec<B>>;

    fn sqe(&mut self) -> Sqe {
        let (vectors, count, offset) = self.rest();
        Sqe {
            addr: vectors as u64,
            len: count as u32,
            off: offset,
            ..Sqe::new(opcode::READV, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        let (vectors, count, offset) = self.rest();
        // SAFETY: Lent: vectors and buffers are the op's own, and not touched during the call.
        unsafe { call::preadv(self.fd.raw(), vectors, count, offset, 0) }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return match retry_interrupted(res) {
                Resume::Done(_) if self.done > 0 && !self.exact => Resume::Done(self.count()),
                other => other,
            };
        }
        self.advance(res as usize);
        if self.exact && res > 0 && self.first < self.vectors.len() {
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

    fn complete(mut self, res: i32) -> Self::Output {
        let bytes = match check(res) {
            // Not `res`, which is cut off at 2 GiB.
            Ok(_) => self.done,
            Err(error) => return Err(BufError::new(error, Some(self.bufs))),
        };
        let mut left = bytes;
        for buf in &mut self.bufs {
            let filled = left.min(buf.lent_bytes());
            // SAFETY: Written: the kernel fills the buffers in order, `bytes` in all.
            unsafe { buf.set_init(filled) };
            left -= filled;
        }
        if self.exact && bytes < self.want {
            return Err(ended(bytes, self.want, self.bufs));
        }
        Ok((bytes, self.bufs))
    }

    fn lost(error: io::Error) -> Self::Output {
        Err(BufError::new(error, None))
    }
}

impl<B> ReadVectoredAt<B> {
    fn count(&self) -> i32 {
        i32::try_from(self.done).unwrap_or(i32::MAX)
    }
}
