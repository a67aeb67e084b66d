//! # Safety
//!
//! `get_xattr`: GETXATTR or FGETXATTR, or the same as a system call. Owns the descriptor (Open) or the path, the name
//! and the buffer (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;

use super::at::At;
use super::xattr_buffer::{enlarge, first_buffer};
use super::{FileOp, Op, OpInfo, Resume, Returns, table, transfer_len};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Reads an extended attribute.
#[derive(Debug)]
pub struct GetXattr {
    file: At,
    name: CString,
    value: Vec<u8>,
}

impl GetXattr {
    pub(crate) fn new(file: At, name: CString) -> GetXattr {
        let value = first_buffer();
        GetXattr { file, name, value }
    }
}

// SAFETY: Lent, Still, Open: name and value are on the heap; `At` owns the path or keeps the descriptor.
unsafe impl Op for GetXattr {
    const INFO: OpInfo = table::GET_XATTR;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.name.as_ptr() as u64,
            off: self.value.as_mut_ptr() as u64,
            len: transfer_len(self.value.len()),
            addr3: self.file.addr(),
            ..Sqe::new(self.opcode(), self.file.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        enlarge(&mut self.value, res)
    }

    fn complete(mut self, res: i32) -> io::Result<Vec<u8>> {
        self.value.truncate(check(res)?);
        Ok(self.value)
    }
}

impl Returns for GetXattr {
    type Output = io::Result<Vec<u8>>;
}

impl FileOp for GetXattr {
    fn opcode(&self) -> u8 {
        match self.file.path() {
            None => opcode::FGETXATTR,
            Some(_) => opcode::GETXATTR,
        }
    }

    fn syscall(&mut self) -> i32 {
        let (fd, path) = (self.file.raw(), self.file.path());
        call::getxattr(fd, path, &self.name, &mut self.value)
    }
}
