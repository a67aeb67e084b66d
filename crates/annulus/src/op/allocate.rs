//! # Safety
//!
//! `allocate`: FALLOCATE, or `fallocate`. Owns the descriptor (Open).
#![allow(unsafe_code)]

use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Reserves, zeroes or frees space of a file.
#[derive(Debug)]
pub struct Allocate {
    fd: Fd,
    mode: AllocateMode,
    offset: u64,
    bytes: u64,
}

impl Allocate {
    pub(crate) fn new(fd: Fd, mode: AllocateMode, offset: u64, bytes: u64) -> Allocate {
        Allocate {
            fd,
            mode,
            offset,
            bytes,
        }
    }
}

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for Allocate {
    const INFO: OpInfo = table::ALLOCATE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.offset,
            addr: self.bytes,
            len: self.mode.bits(),
            ..Sqe::new(opcode::FALLOCATE, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::fallocate(self.fd.raw(), self.mode.bits(), self.offset, self.bytes)
    }
}

/// The change to a range of a file.
///
/// A range that is not needed any more gives its space back:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::op::AllocateMode;
///
/// let file = engine.create(dir.path().join("data")).await?;
/// file.write_all_at(vec![7; 16_384], 0).await?;
/// match file.allocate(4096, 8192, AllocateMode::PunchHole).await {
///     Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(()),
///     punched => punched?,
/// }
/// let data = engine.read(dir.path().join("data")).await?;
/// assert_eq!((data.len(), data[4095], data[4096], data[12_288]), (16_384, 7, 0, 7));
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateMode {
    /// Reserves space. The file grows to include the range.
    Extend,
    /// Reserves space without growing the file (`FALLOC_FL_KEEP_SIZE`).
    KeepLength,
    /// Frees the space. The range reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Makes the range read as zeroes and keeps it allocated (`FALLOC_FL_ZERO_RANGE`).
    Zero,
}

impl AllocateMode {
    fn bits(self) -> u32 {
        // FALLOC_FL_*, from linux/falloc.h.
        const KEEP_SIZE: u32 = 0x01;
        const PUNCH_HOLE: u32 = 0x02;
        const ZERO_RANGE: u32 = 0x10;
        match self {
            AllocateMode::Extend => 0,
            AllocateMode::KeepLength => KEEP_SIZE,
            AllocateMode::PunchHole => PUNCH_HOLE | KEEP_SIZE,
            AllocateMode::Zero => ZERO_RANGE,
        }
    }
}
