//! # Safety
//!
//! `rename`: RENAMEAT, or `renameat2`. Owns both paths (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;

use super::{Op, OpInfo, table};
use crate::sys::call;
use crate::sys::errno::check;
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
unsafe impl Op for Rename {
    const INFO: OpInfo = table::RENAME;
    type Output = io::Result<()>;

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

    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }

    fn on_timeout(error: io::Error) -> io::Result<()> {
        Err(error)
    }
}
