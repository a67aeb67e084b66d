//! # Safety
//!
//! `copy`: `ioctl(FICLONE)`, then `copy_file_range`, then `splice`, until one of them works; holes
//! are not copied; on a blocking thread,
//! because io_uring has no opcode for the first two. Owns both descriptors (Open).
#![allow(unsafe_code)]

use std::io;

use super::copy_range::CopyRange;
use super::{FileOp, Op, OpInfo, Resume, Returns, table};
use crate::narrow::low_half;
use crate::sys::call::{self, Position};
use crate::sys::errno::ECANCELED;
use crate::sys::sqe::{Sqe, opcode};

/// Copies a whole file into an empty one, in the kernel. Fails if the kernel has no way to copy these two.
#[derive(Debug)]
pub(crate) struct CopyFile {
    /// The index of the call in `WAYS`.
    way: usize,
    range: CopyRange,
}

/// The ways to copy, in the order in which they are tried. Each way avoids work of the next one.
const WAYS: [fn(Position, Position, u32) -> i32; 3] = [
    // Both files share the blocks. No data is copied.
    |from, into, _| call::clone_file(from.0, into.0),
    // The kernel copies, between files of one file system. Network file systems copy on the server.
    call::copy_file_range,
    // The kernel copies, between any two files.
    call::splice_file,
];
const CLONE: usize = 0;
const RANGE: usize = 1;

impl CopyFile {
    /// Copies the range, which is the whole file.
    pub(crate) fn new(range: CopyRange) -> CopyFile {
        CopyFile { way: CLONE, range }
    }
}

// SAFETY: Open: the range keeps both descriptors; no memory is lent.
unsafe impl Op for CopyFile {
    const INFO: OpInfo = table::COPY;

    fn sqe(&mut self) -> Sqe {
        match self.way {
            RANGE => self.range.sqe(),
            // For the simulated kernel, which has neither shared blocks nor pipes.
            _ => Sqe::new(opcode::COPY_FILE, self.range.rest().0.0),
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if self.way == CLONE && res == 0 {
            self.range.copied = self.range.bytes;
            return Resume::Done(res);
        }
        match self.range.resume(res) {
            // File systems refuse with many errnos. An error that has another cause returns in the next way.
            Resume::Done(..0) if self.way + 1 < WAYS.len() && res != -ECANCELED => {
                self.way += 1;
                Resume::Again
            }
            resume => resume,
        }
    }

    fn complete(self, res: i32) -> io::Result<u64> {
        self.range.complete(res)
    }
}

impl Returns for CopyFile {
    type Output = io::Result<u64>;
}

impl FileOp for CopyFile {
    fn syscall(&mut self) -> i32 {
        let (from, into, bytes) = self.range.rest();
        if self.way == CLONE {
            return WAYS[CLONE](from, into, bytes);
        }
        let ((raw, at), left) = (from, self.range.bytes - self.range.copied);
        let data = call::next_data(raw, at);
        match data.start.saturating_sub(at).min(left) {
            0 => {
                let bytes = low_half(data.end.saturating_sub(at).min(u64::from(bytes)));
                WAYS[self.way](from, into, bytes)
            }
            // The target has no bytes there, so a greater length makes a hole.
            hole_bytes => match call::ftruncate(into.0, into.1 + hole_bytes) {
                0 => {
                    self.range.copied += hole_bytes;
                    self.syscall()
                }
                res => res,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::Fd;

    fn copy() -> CopyFile {
        let null = || Fd::adopt(std::fs::File::open("/dev/null").unwrap());
        CopyFile::new(CopyRange::new((null(), 0), (null(), 0), 100))
    }

    #[test]
    fn each_refusal_leads_to_the_next_way() {
        let refusals = [
            libc::EXDEV,
            libc::EOPNOTSUPP,
            libc::ENOTTY,
            libc::EINVAL,
            libc::ENOSYS,
            libc::ETXTBSY,
            libc::EPERM,
            libc::EBADF,
            libc::EISDIR,
            libc::EOVERFLOW,
            libc::EIO,
            libc::ENOSPC,
        ];
        for errno in refusals {
            let mut copy = copy();
            assert_eq!(copy.resume(-errno), Resume::Again);
            assert_eq!(copy.way, RANGE);
            assert_eq!(copy.resume(40), Resume::Again);
            assert_eq!(copy.way, RANGE);
            assert_eq!(copy.resume(-errno), Resume::Again);
            assert_eq!(copy.way, RANGE + 1);
            let ((_, at), (_, into_at), bytes) = copy.range.rest();
            assert_eq!(
                (at, into_at, bytes),
                (40, 40, 60),
                "continues after the part"
            );
            assert_eq!(copy.resume(-errno), Resume::Done(-errno));
            assert_eq!(copy.complete(-errno).unwrap(), 40);
        }
    }

    #[test]
    fn a_shared_file_is_complete_and_a_cancel_ends_the_copy() {
        let mut shared = copy();
        assert_eq!(shared.resume(0), Resume::Done(0));
        assert_eq!(shared.complete(0).unwrap(), 100);
        let mut cancelled = copy();
        assert_eq!(cancelled.resume(-ECANCELED), Resume::Done(-ECANCELED));
        assert!(cancelled.complete(-ECANCELED).is_err());
        let mut interrupted = copy();
        assert_eq!(interrupted.resume(-libc::EINTR), Resume::Again);
        assert_eq!(interrupted.way, CLONE);
    }
}
