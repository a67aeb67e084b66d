//! # Safety
//!
//! `open`: OPENAT or OPENAT2, or `openat` or `openat2`. Owns the path (Lent, Still), and keeps its directory (Open).
//! The result is a descriptor, which `complete` wraps immediately, so that an abandoned operation closes it (trap 4).
//!
//! If the lookup starts on a mount that is known to be local, the caller's thread first tries to open a cached path of
//! that mount. Otherwise the file system's own open may wait for another process or machine, although the path is
//! cached. A ring therefore gives all other opens to a worker thread (`ASYNC`).
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::at::At;
use super::{FileOp, Op, OpInfo, Returns, SyncAttempt, table};
use crate::fd::{CloseFd, Fd};
use crate::narrow::to_u32;
use crate::sys::call::{self, OpenHow};
use crate::sys::errno::{ENOENT, check};
use crate::sys::mount::{self, FileSystem};
use crate::sys::sqe::{ASYNC, Sqe, opcode};

/// Opens a file.
pub struct OpenAt {
    at: At,
    flags: u32,
    mode: u32,
    /// For `openat2`: the lookup stays below the directory.
    beneath: Option<Box<OpenHow>>,
    closer: Option<Arc<dyn CloseFd>>,
    attempt: Attempt,
}

/// The attempt to open a file on the caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Not made, or failed.
    No,
    Planned,
    /// Succeeded: the file is on this local mount.
    Succeeded {
        mount: u64,
    },
}

impl OpenAt {
    pub(crate) fn new(at: At, flags: u32, mode: u32, closer: Option<Arc<dyn CloseFd>>) -> OpenAt {
        OpenAt {
            at,
            flags,
            mode,
            beneath: None,
            closer,
            attempt: Attempt::No,
        }
    }

    /// Makes the open fail if the lookup leaves the directory that the path is relative to.
    pub(crate) fn beneath(mut self) -> OpenAt {
        self.beneath = Some(Box::new(OpenHow::beneath(self.flags, self.mode)));
        self
    }

    /// Makes the caller's thread try to open the file first.
    pub(crate) fn attempted(mut self) -> OpenAt {
        // The kernel never creates or truncates a file without blocking.
        let changes = call::O_CREAT | call::O_TRUNC | call::O_TMPFILE & !call::O_DIRECTORY;
        if self.flags & changes == 0 && self.closer.is_none() {
            self.attempt = Attempt::Planned;
        }
        self
    }
}

// SAFETY: Lent, Still, Open: the options are on the heap; `At` owns the path and keeps the directory.
unsafe impl Op for OpenAt {
    const INFO: OpInfo = table::OPEN;

    fn sqe(&mut self) -> Sqe {
        let mut sqe = Sqe {
            addr: self.at.addr(),
            flags: ASYNC,
            ..Sqe::new(self.opcode(), self.at.raw())
        };
        match &self.beneath {
            None => (sqe.len, sqe.op_flags) = (self.mode, self.flags),
            Some(how) => {
                sqe.len = to_u32(size_of::<OpenHow>());
                sqe.off = (&raw const **how) as u64;
            }
        }
        sqe
    }

    fn complete(self, res: i32) -> io::Result<OpenedFd> {
        check(res)?;
        // SAFETY: Open: the kernel has just opened this descriptor, and nothing else owns it.
        let fd = unsafe { Fd::own(res, self.closer) };
        fd.set_open_flags(self.flags);
        let mut on = None;
        if let Attempt::Succeeded { mount } = self.attempt {
            fd.set_file_system(FileSystem::Local);
            fd.note_nonblocking();
            on = Some(mount);
        }
        Ok(OpenedFd {
            fd,
            flags: self.flags,
            mount: on,
        })
    }
}

impl Returns for OpenAt {
    type Output = io::Result<OpenedFd>;
}

impl FileOp for OpenAt {
    fn opcode(&self) -> u8 {
        match self.beneath {
            None => opcode::OPENAT,
            Some(_) => opcode::OPENAT2,
        }
    }

    fn syscall(&mut self) -> i32 {
        match &self.beneath {
            None => call::openat(self.at.dir_path(), self.flags, self.mode),
            Some(how) => call::openat2(self.at.dir_path(), how),
        }
    }

    fn try_sync(&mut self) -> SyncAttempt {
        let attempt = std::mem::replace(&mut self.attempt, Attempt::No);
        if attempt == Attempt::No {
            return SyncAttempt::NotTried;
        }
        let Some(mount) = mount::local_start(self.at.dir_path()) else {
            return SyncAttempt::NotTried;
        };
        match call::open_here(self.at.dir_path(), self.flags, self.beneath.is_some()) {
            res if res >= 0 => {
                self.attempt = Attempt::Succeeded { mount };
                SyncAttempt::Done(res)
            }
            res if res == -ENOENT => SyncAttempt::Done(res),
            // Not cached, on another mount, or an error that may be due to the attempt.
            _ => SyncAttempt::Missed,
        }
    }

    fn has_sync_path(&self) -> bool {
        self.attempt != Attempt::No
    }
}

/// The result of an open; becomes a [`File`](crate::File).
#[derive(Debug)]
pub struct OpenedFd {
    pub(crate) fd: Fd,
    pub(crate) flags: u32,
    /// The unique ID of the mount, if it is known already.
    pub(crate) mount: Option<u64>,
}
