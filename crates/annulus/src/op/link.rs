//! # Safety
//!
//! `hard_link`: LINKAT, or `linkat`. Owns both paths (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Gives a file another name.
#[derive(Debug)]
pub struct Link {
    file: CString,
    name: CString,
}

impl Link {
    pub(crate) fn new(file: CString, name: CString) -> Link {
        Link { file, name }
    }
}

// SAFETY: Lent, Still: the op owns the paths, whose bytes are on the heap.
unsafe impl UnitOp for Link {
    const INFO: OpInfo = table::LINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.as_ptr() as u64,
            off: self.name.as_ptr() as u64,
            len: call::AT_FDCWD.cast_unsigned(),
            ..Sqe::new(opcode::LINKAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::linkat(&self.file, &self.name)
    }
}
