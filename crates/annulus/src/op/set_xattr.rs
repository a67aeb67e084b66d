//! # Safety
//!
//! `set_xattr`: SETXATTR or FSETXATTR, or the same as a system call. Owns the descriptor (Open) or the path, the name
//! and the value (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;

use super::at::At;
use super::{FileOp, Op, OpInfo, Returns, table, transfer_len};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Sets an extended attribute.
#[derive(Debug)]
pub struct SetXattr {
    file: At,
    name: CString,
    value: Vec<u8>,
}

impl SetXattr {
    pub(crate) fn new(file: At, name: CString, value: Vec<u8>) -> SetXattr {
        SetXattr { file, name, value }
    }
}

// SAFETY: Lent, Still, Open: name and value are on the heap; `At` owns the path or keeps the descriptor.
unsafe impl Op for SetXattr {
    const INFO: OpInfo = table::SET_XATTR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.name.as_ptr() as u64,
            off: self.value.as_ptr() as u64,
            len: transfer_len(self.value.len()),
            addr3: self.file.addr(),
            ..Sqe::new(self.opcode(), self.file.raw())
        }
    }

    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }
}

impl Returns for SetXattr {
    type Output = io::Result<()>;
}

impl FileOp for SetXattr {
    fn opcode(&self) -> u8 {
        match self.file.path() {
            None => opcode::FSETXATTR,
            Some(_) => opcode::SETXATTR,
        }
    }

    fn syscall(&mut self) -> i32 {
        let (fd, path) = (self.file.raw(), self.file.path());
        call::setxattr(fd, path, &self.name, &self.value)
    }
}
