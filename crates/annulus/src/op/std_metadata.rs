//! # Safety
//!
//! `metadata`, as the type of std, which only std can make: `statx` by std, on the caller's thread or on a blocking
//! thread. Owns the path, or the descriptor (Open). Points to nothing (Lent).
//!
//! If the lookup of a path starts on a mount that is known to be local, the caller's thread first looks the path up in
//! the kernel's cache. A path that is cached has its inode in memory, so the query does not block either.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::at::At;
use super::{FileOp, Op, OpInfo, Returns, SyncAttempt, table};
use crate::fd::Fd;
use crate::sys::call;
use crate::sys::engine_error::error_of;
use crate::sys::sqe::{Sqe, opcode};

/// Reads the metadata of a file, by path or by descriptor, as std does.
#[derive(Debug)]
pub(crate) struct StdMetadata {
    at: At,
    follow: bool,
    /// The caller's thread may try the query.
    here: bool,
    found: Option<io::Result<Metadata>>,
}

impl StdMetadata {
    /// Reads the metadata of the file at a path, relative to the working directory.
    pub(crate) fn path(at: At, follow: bool) -> StdMetadata {
        StdMetadata {
            at,
            follow,
            here: true,
            found: None,
        }
    }

    /// Reads the metadata of an open file; `here`: on the caller's thread, because the call does not block.
    pub(crate) fn file(fd: Fd, here: bool) -> StdMetadata {
        StdMetadata {
            here,
            ..StdMetadata::path(At::File(fd), true)
        }
    }

    /// Stores what a query has found. Returns 0 or a negative errno.
    fn store(&mut self, found: io::Result<Metadata>) -> i32 {
        let errno = found.as_ref().err().and_then(io::Error::raw_os_error);
        self.found = Some(found);
        errno.map_or(0, |errno| -errno)
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

// SAFETY: Lent: points to nothing.
unsafe impl Op for StdMetadata {
    const INFO: OpInfo = table::METADATA;

    fn sqe(&mut self) -> Sqe {
        // No ring supports the opcode.
        Sqe::new(opcode::NOP, -1)
    }

    fn complete(self, res: i32) -> io::Result<Metadata> {
        self.found.unwrap_or_else(|| Err(error_of(-res)))
    }
}

impl Returns for StdMetadata {
    type Output = io::Result<Metadata>;
}

impl FileOp for StdMetadata {
    fn opcode(&self) -> u8 {
        opcode::BY_THREAD
    }

    fn syscall(&mut self) -> i32 {
        let found = match (self.at.path(), self.follow) {
            (None, _) => call::std_metadata(self.at.raw()),
            (Some(path), true) => std::fs::metadata(as_path(path.to_bytes())),
            (Some(path), false) => std::fs::symlink_metadata(as_path(path.to_bytes())),
        };
        self.store(found)
    }

    fn try_sync(&mut self) -> SyncAttempt {
        if !std::mem::replace(&mut self.here, false) {
            return SyncAttempt::NotTried;
        }
        if self.at.path().is_none() {
            let found = call::std_metadata(self.at.raw());
            return SyncAttempt::Done(self.store(found));
        }
        match self.at.look_up_cached(self.follow) {
            Ok(handle) => SyncAttempt::Done(self.store(File::from(handle).metadata())),
            Err(attempt) => attempt,
        }
    }

    fn has_sync_path(&self) -> bool {
        self.here
    }
}
