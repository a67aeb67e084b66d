//! # Safety
//!
//! `hard_link`, `link_to`: LINKAT, or `linkat`. Owns both paths (Lent, Still), and the descriptor of an open file (Open).
#![allow(unsafe_code)]

use std::ffi::CString;

use super::{OpInfo, UnitOp, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Gives a file another name.
#[derive(Debug)]
pub struct Link {
    /// Keeps the number in `file` open.
    fd: Option<Fd>,
    file: CString,
    name: CString,
    flags: u32,
}

impl Link {
    /// Links the file at the path `file`.
    pub(crate) fn new(file: CString, name: CString) -> Link {
        Link {
            fd: None,
            file,
            name,
            flags: 0,
        }
    }

    /// Links an open file, which may have no name. The kernel does so by descriptor only for the superuser, or since
    /// Linux 6.10, but every process may follow its links in /proc.
    pub(crate) fn open_file(fd: Fd, name: CString) -> Link {
        let link = format!("/proc/self/fd/{}", fd.raw());
        let (file, flags) = match fd.is_simulated() {
            true => (CString::default(), call::AT_EMPTY_PATH),
            false => (
                CString::new(link).unwrap_or_default(),
                call::AT_SYMLINK_FOLLOW,
            ),
        };
        Link {
            fd: Some(fd),
            file,
            name,
            flags,
        }
    }
}

// SAFETY: Lent, Still, Open: the op owns the paths, whose bytes are on the heap, and keeps the descriptor.
unsafe impl UnitOp for Link {
    const INFO: OpInfo = table::LINK;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.file.as_ptr() as u64,
            off: self.name.as_ptr() as u64,
            len: call::AT_FDCWD.cast_unsigned(),
            op_flags: self.flags,
            ..Sqe::new(
                opcode::LINKAT,
                self.fd.as_ref().map_or(call::AT_FDCWD, Fd::raw),
            )
        }
    }

    fn syscall(&mut self) -> i32 {
        call::linkat(&self.file, &self.name, self.flags)
    }
}
