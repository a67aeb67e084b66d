//! # Safety
//!
//! `symlink`: SYMLINKAT, or `symlinkat`. Owns both paths (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Creates a symbolic link.
#[derive(Debug)]
pub struct Symlink {
    target: CString,
    name: CString,
}

impl Symlink {
    pub(crate) fn new(target: CString, name: CString) -> Symlink {
        Symlink { target, name }
    }
}

// SAFETY: Lent, Still: the op owns the paths, whose bytes are on the heap.
unsafe impl UnitOp for Symlink {
    const INFO: OpInfo = table::SYMLINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.target.as_ptr() as u64,
            off: self.name.as_ptr() as u64,
            ..Sqe::new(opcode::SYMLINKAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::symlinkat(&self.target, &self.name)
    }
}
