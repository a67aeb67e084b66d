//! # Safety
//!
//! `create_dir`: MKDIRAT, or `mkdirat`. Owns the path (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Creates a directory.
#[derive(Debug)]
pub struct MakeDir {
    path: CString,
    mode: u32,
}

impl MakeDir {
    pub(crate) fn new(path: CString, mode: u32) -> MakeDir {
        MakeDir { path, mode }
    }
}

// SAFETY: Lent, Still: the op owns the path, whose bytes are on the heap.
unsafe impl UnitOp for MakeDir {
    const INFO: OpInfo = table::CREATE_DIR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.path.as_ptr() as u64,
            len: self.mode,
            ..Sqe::new(opcode::MKDIRAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::mkdirat(&self.path, self.mode)
    }
}
