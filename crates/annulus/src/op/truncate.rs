//! # Safety
//!
//! `set_len`: FTRUNCATE, or `ftruncate`. Owns the descriptor (Open).
#![allow(unsafe_code)]

use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Sets the length of a file.
#[derive(Debug)]
pub struct Truncate {
    fd: Fd,
    bytes: u64,
}

impl Truncate {
    pub(crate) fn new(fd: Fd, bytes: u64) -> Truncate {
        Truncate { fd, bytes }
    }
}

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for Truncate {
    const INFO: OpInfo = table::TRUNCATE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            off: self.bytes,
            ..Sqe::new(opcode::FTRUNCATE, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::ftruncate(self.fd.raw(), self.bytes)
    }
}
