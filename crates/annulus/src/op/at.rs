//! The file of an operation: an open file, or a path.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;

use crate::fd::Fd;
use crate::sys::call;

/// The file of an operation. It owns the path, whose bytes are on the heap, or keeps the descriptor.
#[derive(Debug)]
pub(crate) enum At {
    File(Fd),
    Path(CString),
}

impl At {
    /// Returns the descriptor that the path is relative to, or that of the open file.
    pub(super) fn raw(&self) -> RawFd {
        match self {
            At::File(fd) => fd.raw(),
            At::Path(_) => call::AT_FDCWD,
        }
    }

    /// Returns the path; `None` for an open file.
    pub(super) fn path(&self) -> Option<&CStr> {
        match self {
            At::File(_) => None,
            At::Path(path) => Some(path),
        }
    }

    /// Returns the address of the path, which is empty for an open file.
    pub(super) fn addr(&self) -> u64 {
        self.path().unwrap_or_default().as_ptr() as u64
    }
}
