//! # Safety
//!
//! `hard_link`, `link_to`: LINKAT, or `linkat`. Owns both paths (Lent, Still), and the descriptor of an open file
//! (Open).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::at::At;
use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Gives a file another name.
#[derive(Debug)]
pub struct Link {
    file: At,
    name: At,
    flags: u32,
}

impl Link {
    /// Links the file at the path `file`.
    pub(crate) fn new(file: At, name: At) -> Link {
        let flags = 0;
        Link { file, name, flags }
    }

    /// Links an open file, which may have no name. The kernel does so by descriptor only for the superuser, or since
    /// Linux 6.10, but every process may follow its links in /proc.
    pub(crate) fn open_file(fd: Fd, name: At) -> Link {
        let link = CString::new(fd.proc_link()).unwrap_or_default();
        let (file, flags) = match fd.is_simulated() {
            true => (At::File(fd), call::AT_EMPTY_PATH),
            // An absolute path; the descriptor is only kept open.
            false => (At::In(fd, link), call::AT_SYMLINK_FOLLOW),
        };
        Link { file, name, flags }
    }
}

// SAFETY: Lent, Still, Open: `At` owns the path and keeps the descriptor.
unsafe impl UnitOp for Link {
    const INFO: OpInfo = table::LINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.addr(),
            off: self.name.addr(),
            len: self.name.raw().cast_unsigned(),
            op_flags: self.flags,
            ..Sqe::new(opcode::LINKAT, self.file.raw())
        }
    }

    fn syscall(&mut self) -> i32 {
        call::linkat(self.file.dir_path(), self.name.dir_path(), self.flags)
    }
}
