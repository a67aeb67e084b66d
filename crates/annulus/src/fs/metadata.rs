//! File metadata: the result of `statx(2)`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{DirectAlignment, FileKind};
use crate::op::{StatResult, Statx};
use crate::sys::call::{S_IFMT, STATX_BTIME, STATX_DIOALIGN, StatxTimestamp, file_type};

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
///
/// Hard links and renames work within one device only:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// let from = engine.metadata(dir.path()).await?.device();
/// let to = engine.metadata("/proc").await?.device();
/// assert_ne!(from, to); // a rename from one to the other fails with `EXDEV`
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct DeviceNumber {
    /// The number of the driver.
    pub major: u32,
    /// The number of the device within the driver.
    pub minor: u32,
}

/// The metadata of a file.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data");
/// let file = engine.create(&path).await?;
/// let before = file.metadata().await?;
/// file.write_all_at("hello", 0).await?;
/// assert_eq!(before.len(), 0); // a snapshot, which does not follow the file
/// assert_eq!(file.metadata().await?.len(), 5);
/// # Ok(()) }) }
/// ```
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
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("key");
    /// use annulus::OpenOptions;
    ///
    /// let mut options = OpenOptions::new();
    /// let file = engine.open_with(options.write(true).create_new(true).mode(0o600), &path).await?;
    /// let metadata = file.metadata().await?;
    /// assert_eq!(metadata.mode(), 0o600); // without the bits of the kind, unlike `st_mode`
    /// assert_eq!(metadata.mode() & 0o077, 0, "others could read the key");
    /// # Ok(()) }) }
    /// ```
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & !S_IFMT
    }

    /// Returns the inode number. Linux only.
    pub fn inode(&self) -> u64 {
        self.0.stx_ino
    }

    /// Returns the number of hard links. Linux only.
    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// Returns the user ID of the owner. Linux only.
    pub fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Returns the group ID of the owner. Linux only.
    pub fn gid(&self) -> u32 {
        self.0.stx_gid
    }

    /// Returns the number of the device that holds the file. Linux only.
    pub fn device(&self) -> DeviceNumber {
        DeviceNumber {
            major: self.0.stx_dev_major,
            minor: self.0.stx_dev_minor,
        }
    }

    /// Returns the storage in use, in bytes. Less than the length if the file has holes. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("sparse");
    /// let file = engine.create(&path).await?;
    /// file.set_len(1 << 30).await?; // one hole
    /// let metadata = file.metadata().await?;
    /// assert_eq!(metadata.len(), 1 << 30);
    /// assert!(metadata.allocated_bytes() < 1 << 20);
    /// # Ok(()) }) }
    /// ```
    pub fn allocated_bytes(&self) -> u64 {
        self.0.stx_blocks * 512
    }

    /// Returns the file system's preferred transfer size, in bytes. Linux only.
    pub fn block_bytes(&self) -> u32 {
        self.0.stx_blksize
    }

    /// Returns the time of the last change of the contents.
    ///
    /// Two writes may have the same time: the kernel's clock for it advances every few milliseconds.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data");
    /// let file = engine.create(&path).await?;
    /// let before = file.metadata().await?.modified();
    /// file.write_all_at("hello", 0).await?;
    /// assert!(file.metadata().await?.modified() >= before);
    /// # Ok(()) }) }
    /// ```
    pub fn modified(&self) -> SystemTime {
        time(&self.0.stx_mtime)
    }

    /// Returns the time of the last read, as far as the mount records it.
    pub fn accessed(&self) -> SystemTime {
        time(&self.0.stx_atime)
    }

    /// Returns the time of the last change of the contents or the metadata. Linux only.
    pub fn changed(&self) -> SystemTime {
        time(&self.0.stx_ctime)
    }

    /// Returns the creation time, if the file system records it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// match engine.metadata(dir.path()).await?.created() {
    ///     Some(created) => println!("created at {created:?}"),
    ///     None => println!("the file system does not record it"),
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn created(&self) -> Option<SystemTime> {
        (self.0.stx_mask & STATX_BTIME != 0).then(|| time(&self.0.stx_btime))
    }

    /// Returns the alignment that direct I/O would need. Needs Linux 6.1; `None` before that, and if the file does not
    /// support direct I/O. Linux only.
    ///
    /// Whether direct I/O is worth an attempt, before the file is opened:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// let direct = engine.metadata(&path).await?.direct_alignment().is_some();
    /// let file = engine.open_with(annulus::OpenOptions::new().read(true).direct(direct), &path).await?;
    /// # assert_eq!(file.read_exact_at(vec![0; 4096], 0).await?[0], 7);
    /// # Ok(()) }) }
    /// ```
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
