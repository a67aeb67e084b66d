//! # Safety
//!
//! `copy_range_to`: `copy_file_range` on a blocking thread, because io_uring has no opcode for it. Owns both
//! descriptors (Open). The range is copied in pieces, so that a dropped copy ends soon.
#![allow(unsafe_code)]

use std::io;

use super::{FileOp, Op, OpInfo, Resume, Returns, retry_interrupted, table};
use crate::fd::Fd;
use crate::narrow::low_half;
use crate::sys::call::{self, Position};
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};

/// Copies a range of a file to another file, in the kernel.
#[derive(Debug)]
pub struct CopyRange {
    from: (Fd, u64),
    into: (Fd, u64),
    pub(super) bytes: u64,
    pub(super) copied: u64,
}

/// The most that one call copies, bytes: a few milliseconds of work in memory.
const PIECE_BYTES: u64 = 16 << 20;

impl CopyRange {
    /// Copies `bytes` bytes, from the offset of one file to that of the other.
    pub(crate) fn new(from: (Fd, u64), into: (Fd, u64), bytes: u64) -> CopyRange {
        CopyRange {
            from,
            into,
            bytes,
            copied: 0,
        }
    }

    /// Returns the places in both files where the rest starts, and the length of its first piece.
    pub(super) fn rest(&self) -> (Position, Position, u32) {
        let at = |(fd, offset): &(Fd, u64)| (fd.raw(), offset + self.copied);
        let piece = self.bytes.saturating_sub(self.copied).min(PIECE_BYTES);
        (at(&self.from), at(&self.into), low_half(piece))
    }
}

// SAFETY: Open: both descriptors are kept; no memory is lent.
unsafe impl Op for CopyRange {
    const INFO: OpInfo = table::COPY_RANGE;

    fn sqe(&mut self) -> Sqe {
        let ((from, off), (file_index, addr), len) = self.rest();
        let mut sqe = Sqe::new(opcode::COPY_FILE_RANGE, from);
        (sqe.off, sqe.addr, sqe.len, sqe.file_index) = (off, addr, len, file_index);
        sqe
    }

    fn resume(&mut self, res: i32) -> Resume {
        self.copied += count(res) as u64;
        match res > 0 && self.copied < self.bytes {
            true => Resume::Again,
            false => retry_interrupted(res),
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

impl Returns for CopyRange {
    type Output = io::Result<u64>;
}

impl FileOp for CopyRange {
    fn syscall(&mut self) -> i32 {
        let (from, into, bytes) = self.rest();
        call::copy_file_range(from, into, bytes)
    }
}
