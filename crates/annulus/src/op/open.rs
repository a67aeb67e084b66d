//! # Safety
//!
//! `open`: OPENAT, or `openat`. Owns the path (Lent, Still). The result is a descriptor, which `complete` wraps
//! immediately, so that an abandoned operation closes it (trap 4).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::sync::Arc;

use super::{Op, OpInfo, table};
use crate::fd::{CloseFd, Fd};
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Opens a file.
pub struct OpenAt {
    path: CString,
    flags: u32,
    mode: u32,
    closer: Option<Arc<dyn CloseFd>>,
}

impl OpenAt {
    pub(crate) fn new(
        path: CString,
        flags: u32,
        mode: u32,
        closer: Option<Arc<dyn CloseFd>>,
    ) -> OpenAt {
        OpenAt {
            path,
            flags,
            mode,
            closer,
        }
    }
}

// SAFETY: Lent, Still: the op owns the path, whose bytes are on the heap.
unsafe impl Op for OpenAt {
    const INFO: OpInfo = table::OPEN;
    type Output = io::Result<OpenedFd>;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.path.as_ptr() as u64,
            len: self.mode,
            op_flags: self.flags,
            ..Sqe::new(opcode::OPENAT, call::AT_FDCWD)
        }
    }

    fn syscall(&mut self) -> i32 {
        call::openat(&self.path, self.flags, self.mode)
    }

    fn complete(self, res: i32) -> io::Result<OpenedFd> {
        check(res)?;
        // SAFETY: Open: the kernel has just opened this descriptor, and nothing else owns it.
        Ok(OpenedFd(unsafe { Fd::own(res, self.closer) }))
    }

    fn on_timeout(error: io::Error) -> io::Result<OpenedFd> {
        Err(error)
    }
}

/// The result of an open; becomes a [`File`](crate::File).
#[derive(Debug)]
pub struct OpenedFd(pub(crate) Fd);
