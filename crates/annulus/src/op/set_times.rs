//! # Safety
//!
//! `set_times`: `utimensat` on a blocking thread, because io_uring has no opcode for it. Owns the descriptor (Open) or
//! the path, and the times (Lent, Still).
#![allow(unsafe_code)]

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call::{self, Timespec};
use crate::sys::sqe::{Sqe, opcode};

/// Sets the times of a file.
#[derive(Debug)]
pub struct SetTimes {
    file: At,
    /// The times of the last read and of the last change.
    times: Box<[Timespec; 2]>,
}

impl SetTimes {
    pub(crate) fn new(file: At, times: [Timespec; 2]) -> SetTimes {
        let times = Box::new(times);
        SetTimes { file, times }
    }
}

// SAFETY: Lent, Still, Open: the times are on the heap; `At` owns the path or keeps the descriptor.
unsafe impl UnitOp for SetTimes {
    const INFO: OpInfo = table::SET_TIMES;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.addr(),
            off: self.times.as_ptr() as u64,
            ..Sqe::new(opcode::UTIMENSAT, self.file.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::utimensat(self.file.raw(), self.file.path(), &self.times)
    }
}
