//! # Safety
//!
//! `set_permissions`: `fchmod` or `fchmodat` on a blocking thread, because io_uring has no opcode for it. Owns the
//! descriptor (Open) or the path (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Sets the permissions of a file.
#[derive(Debug)]
pub struct SetPermissions {
    target: Result<Fd, CString>,
    mode: u32,
}

impl SetPermissions {
    /// `target`: an open file, or a path.
    pub(crate) fn new(target: Result<Fd, CString>, mode: u32) -> SetPermissions {
        SetPermissions { target, mode }
    }
}

// SAFETY: Lent, Still, Open: the op owns the path, whose bytes are on the heap, or keeps the descriptor.
unsafe impl UnitOp for SetPermissions {
    const INFO: OpInfo = table::SET_PERMISSIONS;

    fn sqe(&mut self) -> Sqe {
        let (raw, path) = match &self.target {
            Ok(fd) => (fd.raw(), c"".as_ptr()),
            Err(path) => (call::AT_FDCWD, path.as_ptr()),
        };
        Sqe {
            addr: path as u64,
            len: self.mode,
            ..Sqe::new(opcode::FCHMODAT, raw)
        }
    }

    fn syscall(&mut self) -> i32 {
        match &self.target {
            Ok(fd) => call::fchmod(fd.raw(), self.mode),
            Err(path) => call::chmodat(path, self.mode),
        }
    }
}
