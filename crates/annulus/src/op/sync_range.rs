//! # Safety
//!
//! `sync_range`: SYNC_FILE_RANGE, or `sync_file_range`. Owns the descriptor (Open).
#![allow(unsafe_code)]

use super::split_range::SplitRange;
use super::{OpInfo, Resume, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Starts, or waits for, the write-back of a range.
#[derive(Debug)]
pub struct SyncRange {
    fd: Fd,
    mode: SyncRangeMode,
    range: SplitRange,
}

impl SyncRange {
    pub(crate) fn new(fd: Fd, mode: SyncRangeMode, offset: u64, bytes: u64) -> SyncRange {
        let range = SplitRange::new(offset, bytes);
        SyncRange { fd, mode, range }
    }
}

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for SyncRange {
    const INFO: OpInfo = table::SYNC_RANGE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.range.offset,
            len: self.range.piece(),
            op_flags: self.mode as u32,
            ..Sqe::new(opcode::SYNC_FILE_RANGE, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        let bytes = u64::from(self.range.piece());
        call::sync_file_range(self.fd.raw(), self.range.offset, bytes, self.mode as u32)
    }

    fn resume(&mut self, res: i32) -> Resume {
        self.range.resume(res)
    }
}

/// The step of a write-back; see `sync_file_range(2)`. The values are the flags of the kernel, from linux/fs.h.
///
/// A long file is written to the disk while it is made, so that the sync at the end is short:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::op::SyncRangeMode;
///
/// let file = engine.create(dir.path().join("data")).await?;
/// for piece in 0..4 {
///     file.write_all_at(vec![7; 65_536], piece * 65_536).await?;
///     file.sync_range(piece * 65_536, 65_536, SyncRangeMode::Start).await?; // does not wait
/// }
/// file.sync_data().await?; // still needed: only this makes it durable
/// # Ok(()) }) }
/// ```
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
