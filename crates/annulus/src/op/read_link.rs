//! # Safety
//!
//! `read_link`: `readlinkat` on a blocking thread, because io_uring has no opcode for it. Owns the path and the buffer
//! (Lent, Still), and keeps the directory (Open).
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::at::At;
use super::{FileOp, Op, OpInfo, Returns, table, transfer_len};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// `PATH_MAX`, the most that the target of a link can have, bytes.
const TARGET_BYTES_MAX: usize = 4096;

/// Reads the target of a symbolic link.
#[derive(Debug)]
pub struct ReadLink {
    at: At,
    target: Vec<u8>,
}

impl ReadLink {
    pub(crate) fn new(at: At) -> ReadLink {
        let target = vec![0; TARGET_BYTES_MAX];
        ReadLink { at, target }
    }

    /// Returns the path, and the memory for the result.
    pub(super) fn parts(&mut self) -> (&CStr, &mut [u8]) {
        (self.at.dir_path().1, &mut self.target)
    }
}

// SAFETY: Lent, Still, Open: the buffer is on the heap; `At` owns the path and keeps the directory.
unsafe impl Op for ReadLink {
    const INFO: OpInfo = table::READ_LINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.at.addr(),
            off: self.target.as_mut_ptr() as u64,
            len: transfer_len(self.target.len()),
            ..Sqe::new(opcode::READLINKAT, self.at.raw())
        }
    }

    fn complete(mut self, res: i32) -> io::Result<PathBuf> {
        self.target.truncate(check(res)?);
        Ok(PathBuf::from(OsString::from_vec(self.target)))
    }
}

impl Returns for ReadLink {
    type Output = io::Result<PathBuf>;
}

impl FileOp for ReadLink {
    fn syscall(&mut self) -> i32 {
        call::readlinkat(self.at.dir_path(), &mut self.target)
    }
}
