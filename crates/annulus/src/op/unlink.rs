//! # Safety
//!
//! `remove_file`, `remove_dir`: UNLINKAT, or `unlinkat`. Owns the path (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Removes a file or an empty directory.
#[derive(Debug)]
pub struct Unlink {
    path: CString,
    flags: u32,
}

impl Unlink {
    pub(crate) fn new(path: CString, flags: u32) -> Unlink {
        Unlink { path, flags }
    }
}

// SAFETY: Lent, Still: the op owns the path, whose bytes are on the heap.
unsafe impl UnitOp for Unlink {
    const INFO: OpInfo = table::UNLINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.path.as_ptr() as u64,
            op_flags: self.flags,
            ..Sqe::new(opcode::UNLINKAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::unlinkat(&self.path, self.flags)
    }
}
