//! What a file system knows about a file: the answer of `statx(2)`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::op::{StatAnswer, Statx};
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

/// Facts about a file.
#[derive(Debug)]
pub struct Metadata(Box<Statx>);

impl Metadata {
    pub(crate) fn new(answer: StatAnswer) -> Metadata {
        Metadata(answer.0)
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

    /// Device it is on, as (major, minor).
    pub fn device(&self) -> (u32, u32) {
        (self.0.stx_dev_major, self.0.stx_dev_minor)
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

    /// The alignment direct I/O would need, bytes, as (memory, offset and length). Since Linux 6.1;
    /// before that, and where the file has no direct I/O, `None`.
    pub fn direct_align_bytes(&self) -> Option<(u32, u32)> {
        let known = self.0.stx_mask & STATX_DIOALIGN != 0 && self.0.stx_dio_offset_align != 0;
        known.then_some((self.0.stx_dio_mem_align, self.0.stx_dio_offset_align))
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
