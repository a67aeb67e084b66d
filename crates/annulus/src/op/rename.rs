//! # Safety
//!
//! `rename`: RENAMEAT, or `renameat2`. Owns both paths (Lent, Still), and keeps their directories
//! (Open).
#![allow(unsafe_code)]

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Renames a file or directory.
#[derive(Debug)]
pub struct Rename {
    from: At,
    to: At,
    flags: u32,
}

impl Rename {
    pub(crate) fn new(from: At, to: At, flags: u32) -> Rename {
        Rename { from, to, flags }
    }
}

// SAFETY: Lent, Still, Open: `At` owns the path and keeps the directory.
unsafe impl UnitOp for Rename {
    const INFO: OpInfo = table::RENAME;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.from.addr(),
            off: self.to.addr(),
            len: self.to.raw().cast_unsigned(),
            op_flags: self.flags,
            ..Sqe::new(opcode::RENAMEAT, self.from.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::renameat(self.from.dir_path(), self.to.dir_path(), self.flags)
    }
}
