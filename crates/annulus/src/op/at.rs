//! The file of an operation: an open file, or a path, which may be relative to an open directory.

use std::ffi::{CStr, CString};
use std::os::fd::{OwnedFd, RawFd};

use super::SyncAttempt;
use crate::fd::Fd;
use crate::sys::{call, mount};

/// The file of an operation. It owns the path, whose bytes are on the heap, and keeps the descriptor.
#[derive(Clone, Debug)]
pub(crate) enum At {
    File(Fd),
    /// Relative to the working directory.
    Path(CString),
    /// Relative to an open directory.
    In(Fd, CString),
}

impl At {
    /// Returns the descriptor that the path is relative to, or that of the open file. None of these calls depends on
    /// `O_NONBLOCK`.
    pub(super) fn raw(&self) -> RawFd {
        match self {
            At::File(fd) | At::In(fd, _) => fd.raw_for_brief_call(),
            At::Path(_) => call::AT_FDCWD,
        }
    }

    /// Returns the path; `None` for an open file.
    pub(super) fn path(&self) -> Option<&CStr> {
        match self {
            At::File(_) => None,
            At::Path(path) | At::In(_, path) => Some(path),
        }
    }

    /// Returns the directory and the path, which is empty for an open file.
    pub(crate) fn dir_path(&self) -> (RawFd, &CStr) {
        (self.raw(), self.path().unwrap_or_default())
    }

    /// Looks the path up in the kernel's cache, if the lookup starts on a mount that is known to be local. A path that
    /// is cached has its inode in memory, so a query of the returned handle does not block. `Err`: no handle, and the
    /// outcome of the attempt.
    pub(super) fn look_up_cached(&self, follow: bool) -> Result<OwnedFd, SyncAttempt> {
        let path = self.dir_path();
        if mount::local_start(path).is_none() {
            return Err(SyncAttempt::NotTried);
        }
        match call::look_up_here(path, follow) {
            Some(Ok(handle)) => Ok(handle),
            Some(Err(errno)) => Err(SyncAttempt::Done(-errno)),
            None => Err(SyncAttempt::Missed),
        }
    }

    /// Returns the address of the path.
    pub(super) fn addr(&self) -> u64 {
        self.dir_path().1.as_ptr() as u64
    }
}
