//! # Safety
//!
//! `list_xattrs`: `listxattr` or `flistxattr` on a blocking thread, because io_uring has no opcode for it. Owns the
//! descriptor (Open) or the path, and the buffer (Lent, Still).
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use super::at::At;
use super::xattr_buffer::{enlarge, first_buffer};
use super::{FileOp, Op, OpInfo, Resume, Returns, table, transfer_len};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Lists the names of the extended attributes of a file.
#[derive(Debug)]
pub struct ListXattrs {
    file: At,
    /// The names, each with a NUL at its end.
    names: Vec<u8>,
}

impl ListXattrs {
    pub(crate) fn new(file: At) -> ListXattrs {
        let names = first_buffer();
        ListXattrs { file, names }
    }
}

// SAFETY: Lent, Still, Open: the names are on the heap; `At` owns the path or keeps the descriptor.
unsafe impl Op for ListXattrs {
    const INFO: OpInfo = table::LIST_XATTRS;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.addr(),
            off: self.names.as_mut_ptr() as u64,
            len: transfer_len(self.names.len()),
            ..Sqe::new(opcode::LISTXATTR, self.file.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        enlarge(&mut self.names, res)
    }

    fn complete(self, res: i32) -> io::Result<Vec<OsString>> {
        let names = self.names.get(..check(res)?).unwrap_or_default();
        let names = names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty());
        Ok(names
            .map(|name| OsString::from_vec(name.to_vec()))
            .collect())
    }
}

impl Returns for ListXattrs {
    type Output = io::Result<Vec<OsString>>;
}

impl FileOp for ListXattrs {
    fn syscall(&mut self) -> i32 {
        call::listxattr(self.file.raw(), self.file.path(), &mut self.names)
    }
}
