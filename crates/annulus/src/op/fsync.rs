//! # Safety
//!
//! `sync_all`, `sync_data`: FSYNC, or `fsync` and `fdatasync`. Owns the descriptor (Open). Covers only the writes
//! that had completed when it was submitted (trap 48).
#![allow(unsafe_code)]

use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::FSYNC_DATASYNC;
use crate::sys::sqe::{Sqe, opcode};

/// Makes written data durable.
#[derive(Debug)]
pub struct Fsync {
    fd: Fd,
    data_only: bool,
}

impl Fsync {
    pub(crate) fn new(fd: Fd, data_only: bool) -> Fsync {
        Fsync { fd, data_only }
    }
}

// SAFETY: Open: `fd` keeps the descriptor; no memory is lent.
unsafe impl UnitOp for Fsync {
    const INFO: OpInfo = table::FSYNC;

    fn sqe(&mut self) -> Sqe {
        let op_flags = if self.data_only { FSYNC_DATASYNC } else { 0 };
        Sqe {
            op_flags,
            ..Sqe::new(opcode::FSYNC, self.fd.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::fsync(self.fd.raw(), self.data_only)
    }
}
