//! # Safety
//!
//! `read_link`: `readlinkat` on a blocking thread, because io_uring has no opcode for it. Owns the path and the buffer
//! (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{FileOp, Op, OpInfo, table, transfer_len};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// `PATH_MAX`, the most that the target of a link can have, bytes.
const TARGET_BYTES_MAX: usize = 4096;

/// Reads the target of a symbolic link.
#[derive(Debug)]
pub struct ReadLink {
    path: CString,
    target: Vec<u8>,
}

impl ReadLink {
    pub(crate) fn new(path: CString) -> ReadLink {
        let target = vec![0; TARGET_BYTES_MAX];
        ReadLink { path, target }
    }
}

// SAFETY: Lent, Still: the op owns path and buffer, which are on the heap.
unsafe impl Op for ReadLink {
    const INFO: OpInfo = table::READ_LINK;
    type Output = io::Result<PathBuf>;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.path.as_ptr() as u64,
            off: self.target.as_mut_ptr() as u64,
            len: transfer_len(self.target.len()),
            ..Sqe::new(opcode::READLINKAT, call::AT_FDCWD)
        }
    }

    fn complete(mut self, res: i32) -> io::Result<PathBuf> {
        self.target.truncate(check(res)?);
        Ok(PathBuf::from(OsString::from_vec(self.target)))
    }
}

impl FileOp for ReadLink {
    fn syscall(&mut self) -> i32 {
        call::readlinkat(&self.path, &mut self.target)
    }
}
