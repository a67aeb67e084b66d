//! # Safety
//!
//! `rename`: RENAMEAT, or `renameat2`. Owns both paths (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Renames a file or directory.
#[derive(Debug)]
pub struct Rename {
    from: CString,
    to: CString,
    flags: u32,
}

impl Rename {
    pub(crate) fn new(from: CString, to: CString, flags: u32) -> Rename {
        Rename { from, to, flags }
    }
}

// SAFETY: Lent, Still: the op owns the path, whose bytes are on the heap.
unsafe impl UnitOp for Rename {
    const INFO: OpInfo = table::RENAME;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.from.as_ptr() as u64,
            off: self.to.as_ptr() as u64,
            len: call::AT_FDCWD.cast_unsigned(),
            op_flags: self.flags,
            ..Sqe::new(opcode::RENAMEAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::renameat(&self.from, &self.to, self.flags)
    }
}
