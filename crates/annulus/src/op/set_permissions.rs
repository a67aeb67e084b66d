//! # Safety
//!
//! `set_permissions`: `fchmod` or `fchmodat` on a blocking thread, because io_uring has no opcode for it. Owns the
//! descriptor (Open) or the path (Lent, Still).
#![allow(unsafe_code)]

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Sets the permissions of a file.
#[derive(Debug)]
pub struct SetPermissions {
    file: At,
    mode: u32,
}

impl SetPermissions {
    pub(crate) fn new(file: At, mode: u32) -> SetPermissions {
        SetPermissions { file, mode }
    }
}

// SAFETY: Lent, Still, Open: `At` owns the path or keeps the descriptor.
unsafe impl UnitOp for SetPermissions {
    const INFO: OpInfo = table::SET_PERMISSIONS;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.addr(),
            len: self.mode,
            ..Sqe::new(opcode::FCHMODAT, self.file.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        match self.file.path() {
            None => call::fchmod(self.file.raw(), self.mode),
            Some(_) => call::chmodat(self.file.dir_path(), self.mode),
        }
    }
}
