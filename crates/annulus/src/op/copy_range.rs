//! # Safety
//!
//! `copy_range_to`: `copy_file_range` on a blocking thread, because io_uring has no opcode for it. Owns both descriptors
//! (Open). The range is copied in pieces, so that a dropped copy ends soon.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;

use super::{FileOp, Op, OpInfo, Resume, retry_interrupted, table};
use crate::fd::Fd;
use crate::narrow::low_half;
use crate::sys::call;
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Copies a range of a file to another file, in the kernel.
#[derive(Debug)]
pub struct CopyRange {
    from: Fd,
    into: Fd,
    offset: u64,
    into_offset: u64,
    /// The bytes that are left.
    bytes: u64,
    copied: u64,
}

impl CopyRange {
    /// Copies `bytes` from each `offset` on.
    pub(crate) fn new(from: (Fd, u64), into: (Fd, u64), bytes: u64) -> CopyRange {
        let ((from, offset), (into, into_offset)) = (from, into);
        CopyRange {
            from,
            into,
            offset,
            into_offset,
            bytes,
            copied: 0,
        }
    }

    /// Returns both descriptors.
    pub(super) fn raw(&self) -> (RawFd, RawFd) {
        (self.from.raw(), self.into.raw())
    }

    /// Returns both offsets of the rest, and the length of its first piece.
    pub(super) fn rest(&self) -> (u64, u64, usize) {
        (self.offset, self.into_offset, self.piece() as usize)
    }

    /// Notes that the whole range is copied.
    pub(super) fn finish(&mut self) {
        self.copied += std::mem::take(&mut self.bytes);
    }

    fn piece(&self) -> u32 {
        low_half(self.bytes.min(PIECE_BYTES))
    }
}

/// The most that one call copies, bytes: a few milliseconds of work in memory.
const PIECE_BYTES: u64 = 16 << 20;

// SAFETY: Open: both descriptors are kept; no memory is lent.
unsafe impl Op for CopyRange {
    const INFO: OpInfo = table::COPY_RANGE;
    type Output = io::Result<u64>;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.offset,
            addr: self.into_offset,
            len: self.piece(),
            file_index: self.into.raw(),
            ..Sqe::new(opcode::COPY_FILE_RANGE, self.from.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res <= 0 {
            return retry_interrupted(res);
        }
        let bytes = count(res) as u64;
        self.copied += bytes;
        self.offset += bytes;
        self.into_offset += bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        match self.bytes {
            0 => Resume::Done(res),
            _ => Resume::Again,
        }
    }

    fn complete(self, res: i32) -> io::Result<u64> {
        match self.copied {
            0 => check(res).map(|_| 0),
            // An error after a part returns with the next call.
            copied => Ok(copied),
        }
    }
}

impl FileOp for CopyRange {
    fn syscall(&mut self) -> i32 {
        let ((from, into), (at, into_at, bytes)) = (self.raw(), self.rest());
        call::copy_file_range(from, at, into, into_at, bytes)
    }
}
