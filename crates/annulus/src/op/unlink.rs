//! # Safety
//!
//! `remove_file`, `remove_dir`: UNLINKAT, or `unlinkat`. Owns the path (Lent, Still), and keeps its directory
//! (Open).
#![allow(unsafe_code)]

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Removes a file or an empty directory.
#[derive(Debug)]
pub struct Unlink {
    at: At,
    flags: u32,
}

impl Unlink {
    pub(crate) fn new(at: At, flags: u32) -> Unlink {
        Unlink { at, flags }
    }
}

// SAFETY: Lent, Still, Open: `At` owns the path and keeps the directory.
unsafe impl UnitOp for Unlink {
    const INFO: OpInfo = table::UNLINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.at.addr(),
            op_flags: self.flags,
            ..Sqe::new(opcode::UNLINKAT, self.at.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::unlinkat(self.at.dir_path(), self.flags)
    }
}
