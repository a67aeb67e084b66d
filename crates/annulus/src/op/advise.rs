//! # Safety
//!
//! `advise`: FADVISE, or `fadvise64`. Owns the descriptor (Open).
#![allow(unsafe_code)]

use super::split_range::SplitRange;
use super::{OpInfo, Resume, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Tells the kernel how a range will be used.
#[derive(Debug)]
pub struct Advise {
    fd: Fd,
    range: SplitRange,
    advice: Advice,
}

impl Advise {
    pub(crate) fn new(fd: Fd, offset: u64, bytes: u64, advice: Advice) -> Advise {
        let range = SplitRange::new(offset, bytes);
        Advise { fd, range, advice }
    }
}

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for Advise {
    const INFO: OpInfo = table::ADVISE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.range.offset,
            len: self.range.piece(),
            op_flags: self.advice.bits(),
            ..Sqe::new(opcode::FADVISE, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::fadvise(
            self.fd.raw(),
            self.range.offset,
            u64::from(self.range.piece()),
            self.advice.bits(),
        )
    }

    fn resume(&mut self, res: i32) -> Resume {
        self.range.resume(res)
    }
}

/// The expected use of a range of a file; see `posix_fadvise(2)`.
///
/// After a copy of a large file, its pages need not push others out of the memory. Changed pages stay, so write them
/// first:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::op::Advice;
///
/// let file = engine.create(dir.path().join("copy")).await?;
/// file.write_all_at(vec![7; 1 << 16], 0).await?;
/// file.sync_data().await?;
/// file.advise(0, 0, Advice::DontNeed).await?;
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// No special use.
    Normal,
    /// Random access: no read-ahead.
    Random,
    /// Sequential access: more read-ahead.
    Sequential,
    /// Used soon: the kernel reads the range into the page cache.
    WillNeed,
    /// Not used soon: clean pages leave the page cache.
    DontNeed,
    /// Used once.
    NoReuse,
}

impl Advice {
    fn bits(self) -> u32 {
        // POSIX_FADV_*, from linux/fadvise.h.
        match self {
            Advice::Normal => 0,
            Advice::Random => 1,
            Advice::Sequential => 2,
            Advice::WillNeed => 3,
            Advice::DontNeed => 4,
            Advice::NoReuse => 5,
        }
    }
}
