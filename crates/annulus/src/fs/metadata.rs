//! File metadata: the result of `statx(2)`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::DirectAlignment;
use crate::op::{StatResult, Statx};
use crate::sys::call::{S_IFMT, STATX_BTIME, STATX_DIOALIGN, StatxTimestamp, file_type};

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device, or a directory entry whose kind could not be found out.
    Other,
}

impl FileKind {
    fn of_mode(mode: u16) -> FileKind {
        match u32::from(mode) & S_IFMT {
            file_type::REGULAR => FileKind::File,
            file_type::DIRECTORY => FileKind::Dir,
            file_type::SYMLINK => FileKind::Symlink,
            _ => FileKind::Other,
        }
    }

    /// Converts the `d_type` of a directory entry, which is the file type of the mode, shifted.
    pub(crate) fn of_entry(kind: u8) -> FileKind {
        FileKind::of_mode(u16::from(kind) << 12)
    }
}

/// The number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device within the driver.
    pub minor: u32,
}

/// The metadata of a file.
#[derive(Debug)]
pub struct Metadata(Box<Statx>);

impl Metadata {
    pub(crate) fn new(result: StatResult) -> Metadata {
        Metadata(result.0)
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty)] // Like std: the length of a file, not of a container.
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.0.stx_mode)
    }

    /// Returns whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::File
    }

    /// Returns whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Dir
    }

    /// Returns the permission bits, including set-user-ID, set-group-ID and sticky.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & !S_IFMT
    }

    /// Returns the inode number.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Returns the number of hard links.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Returns the user ID of the owner.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Returns the group ID of the owner.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// Returns the number of the device that holds the file.
    pub fn device(&self) -> DeviceNumber {
        DeviceNumber {
            major: self.0.stx_dev_major,
            minor: self.0.stx_dev_minor,
        }
    }

    /// Returns the storage in use, in bytes. Less than the length if the file has holes.
    pub fn allocated_bytes(&self) -> u64 {
        self.0.stx_blocks * 512
    }

    /// Returns the file system's preferred transfer size, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.0.stx_blksize
    }

    /// Returns the time of the last change of the contents.
    pub fn modified(&self) -> SystemTime {
        time(&self.0.stx_mtime)
    }

    /// Returns the time of the last read, as far as the mount records it.
    pub fn accessed(&self) -> SystemTime {
        time(&self.0.stx_atime)
    }

    /// Returns the time of the last change of the contents or the metadata.
    pub fn changed(&self) -> SystemTime {
        time(&self.0.stx_ctime)
    }

    /// Returns the creation time, if the file system records it.
    pub fn created(&self) -> Option<SystemTime> {
        (self.0.stx_mask & STATX_BTIME != 0).then(|| time(&self.0.stx_btime))
    }

    /// Returns the alignment that direct I/O would need. Needs Linux 6.1; `None` before that, and if the file does not
    /// support direct I/O.
    pub fn direct_alignment(&self) -> Option<DirectAlignment> {
        let known = self.0.stx_mask & STATX_DIOALIGN != 0 && self.0.stx_dio_offset_align != 0;
        known.then_some(DirectAlignment {
            memory_bytes: self.0.stx_dio_mem_align as usize,
            offset_bytes: self.0.stx_dio_offset_align as usize,
        })
    }
}

fn time(stamp: &StatxTimestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(stamp.tv_nsec));
    let seconds = Duration::from_secs(stamp.tv_sec.unsigned_abs());
    let whole = if stamp.tv_sec >= 0 {
        UNIX_EPOCH.checked_add(seconds)
    } else {
        UNIX_EPOCH.checked_sub(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}
