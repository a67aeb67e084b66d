//! # Safety
//!
//! `remove_xattr`: `removexattr` or `fremovexattr` on a blocking thread, because io_uring has no opcode for it. Owns
//! the descriptor (Open) or the path, and the name (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Removes an extended attribute.
#[derive(Debug)]
pub struct RemoveXattr {
    file: At,
    name: CString,
}

impl RemoveXattr {
    pub(crate) fn new(file: At, name: CString) -> RemoveXattr {
        RemoveXattr { file, name }
    }
}

// SAFETY: Lent, Still, Open: the name is on the heap; `At` owns the path or keeps the descriptor.
unsafe impl UnitOp for RemoveXattr {
    const INFO: OpInfo = table::REMOVE_XATTR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.addr(),
            off: self.name.as_ptr() as u64,
            ..Sqe::new(opcode::REMOVEXATTR, self.file.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::removexattr(self.file.raw(), self.file.path(), &self.name)
    }
}
