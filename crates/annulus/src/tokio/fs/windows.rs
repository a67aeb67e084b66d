//! # Safety
//!
//! The parts of the file API that Tokio has on Windows only. `from_raw_handle` has the contract of std's (Open).
#![allow(unsafe_code)]

use std::io;
use std::os::windows::io::{
    AsHandle, AsRawHandle, BorrowedHandle, FromRawHandle, OwnedHandle, RawHandle,
};
use std::path::Path;

use super::file::File;
use super::process::run_blocking;

/// Creates a symbolic link to a directory.
///
/// # Errors
///
/// Fails with any error of the system. Users without a privilege cannot create links.
pub async fn symlink_dir(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    run_blocking(move || std::os::windows::fs::symlink_dir(original, link)).await
}

/// Creates a symbolic link to a file.
///
/// # Errors
///
/// Fails like [`symlink_dir`].
pub async fn symlink_file(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref().to_owned(), link.as_ref().to_owned());
    run_blocking(move || std::os::windows::fs::symlink_file(original, link)).await
}

/// The handle, moved to the position of the file.
impl AsHandle for File {
    fn as_handle(&self) -> BorrowedHandle<'_> {
        self.move_descriptor();
        self.file().as_handle()
    }
}

impl AsRawHandle for File {
    fn as_raw_handle(&self) -> RawHandle {
        self.as_handle().as_raw_handle()
    }
}

impl From<OwnedHandle> for File {
    fn from(handle: OwnedHandle) -> File {
        File::from_std(handle.into())
    }
}

impl FromRawHandle for File {
    unsafe fn from_raw_handle(handle: RawHandle) -> File {
        // SAFETY: Open: the caller owns the handle and gives it up.
        File::from_std(unsafe { std::fs::File::from_raw_handle(handle) })
    }
}
