//! # Safety
//!
//! The conversions between files and descriptors. `from_raw_fd` has the contract of std's (Open).
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::file::File;

/// The descriptor, moved to the position of the file.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.move_descriptor();
        self.file().as_fd()
    }
}

/// The descriptor, moved to the position of the file.
impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File::from_std(fd.into())
    }
}

impl FromRawFd for File {
    unsafe fn from_raw_fd(fd: RawFd) -> File {
        // SAFETY: Open: the caller owns the number and gives it up.
        File::from_std(unsafe { std::fs::File::from_raw_fd(fd) })
    }
}
