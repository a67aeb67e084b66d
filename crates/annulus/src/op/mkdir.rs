//! # Safety
//!
//! `create_dir`: MKDIRAT, or `mkdirat`. Owns the path (Lent, Still), and keeps its directory
//! (Open).
#![allow(unsafe_code)]

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Creates a directory.
#[derive(Debug)]
pub struct MakeDir {
    at: At,
    mode: u32,
}

impl MakeDir {
    pub(crate) fn new(at: At, mode: u32) -> MakeDir {
        MakeDir { at, mode }
    }
}

// SAFETY: Lent, Still, Open: `At` owns the path and keeps the directory.
unsafe impl UnitOp for MakeDir {
    const INFO: OpInfo = table::CREATE_DIR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.at.addr(),
            len: self.mode,
            ..Sqe::new(opcode::MKDIRAT, self.at.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::mkdirat(self.at.dir_path(), self.mode)
    }
}
