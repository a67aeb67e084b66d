//! What a file system knows about a file: the answer of `statx(2)`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::DirectAlignment;
use crate::op::{StatResult, Statx};
use crate::sys::call::{S_IFMT, STATX_BTIME, STATX_DIOALIGN, StatxTimestamp, file_type};

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket, a device; or a directory entry whose file system does not say.
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

    /// Of a directory entry's `d_type`, which is the mode's file type, shifted.
    pub(crate) fn of_entry(kind: u8) -> FileKind {
        FileKind::of_mode(u16::from(kind) << 12)
    }
}

/// A device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct DeviceNumber {
    /// The driver's number.
    pub major: u32,
    /// The number among the driver's devices.
    pub minor: u32,
}

/// Facts about a file.
#[derive(Debug)]
pub struct Metadata(Box<Statx>);

impl Metadata {
    pub(crate) fn new(result: StatResult) -> Metadata {
        Metadata(result.0)
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // As in std: a fact about a file, not about a container.
    pub fn len(&self) -> u64 {
        self.0.stx_size
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.0.stx_mode)
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::File
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Dir
    }

    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & !S_IFMT
    }

    /// Number within its file system.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Number of names.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Owner's user id.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Owner's group id.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// Returns the number of the device that the file is on.
    pub fn device(&self) -> DeviceNumber {
        DeviceNumber {
            major: self.0.stx_dev_major,
            minor: self.0.stx_dev_minor,
        }
    }

    /// Bytes of storage in use; less than the length for a file with holes.
    pub fn allocated_bytes(&self) -> u64 {
        self.0.stx_blocks * 512
    }

    /// The file system's preferred transfer size, bytes.
    pub fn block_bytes(&self) -> u32 {
        self.0.stx_blksize
    }

    /// Last change of the contents.
    pub fn modified(&self) -> SystemTime {
        time(&self.0.stx_mtime)
    }

    /// Last read, as far as the mount keeps it.
    pub fn accessed(&self) -> SystemTime {
        time(&self.0.stx_atime)
    }

    /// Last change of the contents or of these facts.
    pub fn changed(&self) -> SystemTime {
        time(&self.0.stx_ctime)
    }

    /// When it was made, where the file system keeps it.
    pub fn created(&self) -> Option<SystemTime> {
        (self.0.stx_mask & STATX_BTIME != 0).then(|| time(&self.0.stx_btime))
    }

    /// Returns the alignment that direct I/O would need. Since Linux 6.1; `None` before that, and if the file has no
    /// direct I/O.
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
