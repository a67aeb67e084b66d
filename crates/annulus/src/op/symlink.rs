//! # Safety
//!
//! `symlink`: SYMLINKAT, or `symlinkat`. Owns both paths (Lent, Still), and keeps the directory (Open).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Creates a symbolic link.
#[derive(Debug)]
pub struct Symlink {
    target: CString,
    name: At,
}

impl Symlink {
    pub(crate) fn new(target: CString, name: At) -> Symlink {
        Symlink { target, name }
    }
}

// SAFETY: Lent, Still, Open: the target is on the heap; `At` owns the path and keeps the directory.
unsafe impl UnitOp for Symlink {
    const INFO: OpInfo = table::SYMLINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.target.as_ptr() as u64,
            off: self.name.addr(),
            ..Sqe::new(opcode::SYMLINKAT, self.name.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::symlinkat(&self.target, self.name.dir_path())
    }
}
