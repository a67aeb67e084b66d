//! # Safety
//!
//! `metadata`: STATX, or `statx`. Owns the path, the descriptor if it has one (Open), and the buffer that the kernel
//! fills, which must live until the final CQE (Lent, Still; trap 3).
//!
//! An open file on a mount that is known to be local is queried on the caller's thread: a ring would start a worker. So
//! is a path that is in the kernel's cache: its inode is in memory, so the query does not block either.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;

use super::at::At;
use super::{FileOp, Op, OpInfo, Returns, SyncAttempt, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::errno::check;
use crate::sys::mount;
use crate::sys::sqe::{Sqe, opcode};

pub(crate) use crate::sys::call::Statx;

/// Reads the metadata of a file, by path or by descriptor.
pub struct StatAt {
    at: At,
    flags: u32,
    out: Box<Statx>,
    /// The caller's thread may try the query.
    here: bool,
}

/// The requested fields: those of `std::fs::Metadata`, the birth time, the direct-I/O alignment, and the mount.
const MASK: u32 =
    call::STATX_BASIC_STATS | call::STATX_BTIME | call::STATX_DIOALIGN | call::STATX_MNT_ID_UNIQUE;

impl StatAt {
    /// Reads the metadata of the file at a path; `here`: on the caller's thread, if the path is cached.
    pub(crate) fn path(at: At, follow: bool, here: bool) -> StatAt {
        let flags = if follow { 0 } else { call::AT_SYMLINK_NOFOLLOW };
        StatAt {
            at,
            flags,
            out: Box::new(call::empty_statx()),
            here,
        }
    }

    /// Reads the metadata of an open file; `here`: on the caller's thread, because the call does not block.
    pub(crate) fn file(fd: Fd, here: bool) -> StatAt {
        StatAt {
            flags: call::AT_EMPTY_PATH,
            ..StatAt::path(At::File(fd), true, here)
        }
    }
}

// SAFETY: Lent, Still, Open: the buffer is on the heap; `At` owns the path and keeps the descriptor.
unsafe impl Op for StatAt {
    const INFO: OpInfo = table::METADATA;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.at.addr(),
            len: MASK,
            off: (&raw mut *self.out) as u64,
            op_flags: self.flags,
            ..Sqe::new(opcode::STATX, self.at.raw())
        }
    }

    fn complete(self, res: i32) -> io::Result<StatResult> {
        check(res).map(|_| StatResult(self.out))
    }
}

impl Returns for StatAt {
    type Output = io::Result<StatResult>;
}

impl FileOp for StatAt {
    fn syscall(&mut self) -> i32 {
        let (dir, path) = self.at.dir_path();
        // SAFETY: Lent: `out` is the op's own, and is not touched during the call.
        unsafe { call::statx(dir, path, self.flags, MASK, &raw mut *self.out) }
    }

    fn try_sync(&mut self) -> SyncAttempt {
        if !std::mem::replace(&mut self.here, false) {
            return SyncAttempt::NotTried;
        }
        if let At::File(fd) = &self.at {
            let fd = fd.clone();
            let res = self.syscall();
            if res == 0 {
                fd.set_closes_briefly(mount::closes_briefly(&self.out));
            }
            return SyncAttempt::Done(res);
        }
        let follow = self.flags & call::AT_SYMLINK_NOFOLLOW == 0;
        match self.at.look_up_cached(follow) {
            Ok(handle) => {
                let (raw, flags) = (handle.as_raw_fd(), call::AT_EMPTY_PATH);
                // SAFETY: Lent: `out` is the op's own, and is not touched during the call.
                let res = unsafe { call::statx(raw, c"", flags, MASK, &raw mut *self.out) };
                SyncAttempt::Done(res)
            }
            Err(attempt) => attempt,
        }
    }

    fn has_sync_path(&self) -> bool {
        self.here
    }
}

/// The result of a statx; becomes a [`Metadata`](crate::fs::Metadata).
#[derive(Debug)]
pub struct StatResult(pub(crate) Box<Statx>);
