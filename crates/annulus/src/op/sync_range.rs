//! # Safety
//!
//! `sync_range`: SYNC_FILE_RANGE, or `sync_file_range`. Owns the descriptor (Open).
#![allow(unsafe_code)]

use super::{OpInfo, Resume, UnitOp, retry_interrupted, table};
use crate::fd::Fd;
use crate::narrow::low_half;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Starts, or waits for, the write-back of a range.
#[derive(Debug)]
pub struct SyncRange {
    fd: Fd,
    mode: SyncRangeMode,
    offset: u64,
    bytes: u64,
}

impl SyncRange {
    pub(crate) fn new(fd: Fd, mode: SyncRangeMode, offset: u64, bytes: u64) -> SyncRange {
        SyncRange {
            fd,
            mode,
            offset,
            bytes,
        }
    }

    fn piece(&self) -> u32 {
        low_half(self.bytes.min(PIECE_BYTES))
    }
}

/// The largest range of one SQE, bytes. Its length field has 32 bits, so longer ranges are split.
const PIECE_BYTES: u64 = 1 << 30;

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for SyncRange {
    const INFO: OpInfo = table::SYNC_RANGE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.offset,
            len: self.piece(),
            op_flags: self.mode as u32,
            ..Sqe::new(opcode::SYNC_FILE_RANGE, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        let bytes = u64::from(self.piece());
        call::sync_file_range(self.fd.raw(), self.offset, bytes, self.mode as u32)
    }

    fn resume(&mut self, res: i32) -> Resume {
        let piece = u64::from(self.piece());
        if res == 0 && self.bytes > piece {
            self.offset += piece;
            self.bytes -= piece;
            return Resume::Again;
        }
        retry_interrupted(res)
    }
}

/// The step of a write-back; see `sync_file_range(2)`. The values are the flags of the kernel, from linux/fs.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum SyncRangeMode {
    /// Starts to write the changed pages, and does not wait for the device.
    Start = 2,
    /// Waits until the pages that are being written have been written.
    Wait = 1,
    /// Writes the changed pages, and waits until they have been written.
    StartAndWait = 7,
}
