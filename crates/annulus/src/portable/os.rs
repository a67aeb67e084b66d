//! The calls that Unix and Windows have in different forms.

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

#[cfg(unix)]
mod unix {
    use std::fs::OpenOptions;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    pub(crate) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(into, offset)
    }

    pub(crate) fn write_at(file: &File, from: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(from, offset)
    }

    /// Returns whether both paths lead to the same file.
    pub(crate) fn is_same_file(one: &Path, other: &Path) -> io::Result<bool> {
        let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    }

    /// Opens a file or directory to set its times: for writing if it may not be read.
    pub(crate) fn open_for_times(path: &Path) -> io::Result<File> {
        File::open(path).or_else(|_| OpenOptions::new().write(true).open(path))
    }
}

#[cfg(windows)]
mod windows {
    use std::fs::OpenOptions;
    use std::os::windows::fs::{FileExt, OpenOptionsExt};

    use super::*;

    const FILE_WRITE_ATTRIBUTES: u32 = 0x100;
    const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;

    /// Also moves the position of the file, which nothing uses.
    pub(crate) fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(into, offset)
    }

    pub(crate) fn write_at(file: &File, from: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(from, offset)
    }

    /// Returns whether both paths lead to the same name. Windows itself refuses to copy a file onto another of its
    /// names.
    pub(crate) fn is_same_file(one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one.canonicalize()? == other.canonicalize()?)
    }

    /// Opens a file or directory to set its times.
    pub(crate) fn open_for_times(path: &Path) -> io::Result<File> {
        OpenOptions::new()
            .access_mode(FILE_WRITE_ATTRIBUTES)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS)
            .open(path)
    }
}
