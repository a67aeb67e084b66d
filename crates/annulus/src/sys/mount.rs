//! # Safety
//!
//! The file systems of mounts, learned once per mount and process. A call on a local file system waits for nothing but
//! its own disk, so some calls on its files are made on the caller's thread. A call on FUSE or NFS may wait forever.
//!
//! A mount is known by its unique ID (`STATX_MNT_ID_UNIQUE`, Linux 6.8), which the kernel never gives out again. Mount
//! IDs and device numbers are reused after an unmount. `statmount` (6.8) names the file system of such an ID without a
//! call of the file system, so no thread is needed to learn it. On older kernels no mount is known, and none is local.
//!
//! The system calls here use memory of the calling stack frame only (Lent).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};

use rustix::fs as rfs;

use super::call::{self, AT_EMPTY_PATH, Statx, borrow_fd};

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FileSystem {
    /// Neither known to be local nor FUSE.
    Other = 0,
    /// Opens of cached paths, `statx` and closes of files that were only read do not wait for another process or
    /// machine.
    Local = 1,
    /// A process serves it.
    Fuse = 2,
}

const FUSE_SUPER_MAGIC: u32 = 0x6573_5546;

/// File systems that keep inodes in memory while a path is cached. Overlayfs is not one of them: its layers may lie on
/// FUSE or NFS.
const LOCAL_MAGICS: [u32; 5] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x0102_1994, // tmpfs
];

impl FileSystem {
    fn of_magic(magic: u64) -> FileSystem {
        match u32::try_from(magic) {
            Ok(FUSE_SUPER_MAGIC) => FileSystem::Fuse,
            Ok(magic) if LOCAL_MAGICS.contains(&magic) => FileSystem::Local,
            _ => FileSystem::Other,
        }
    }

    /// Queries the file system of a mount (`statmount(2)`). Does not block. `None` if the kernel or a filter refuses.
    fn of_mount(mount: u64) -> Option<FileSystem> {
        /// `__NR_statmount`, the same on every architecture that the library supports.
        const NUMBER: libc::c_long = 457;
        /// `STATMOUNT_SB_BASIC`.
        const SB_BASIC: u64 = 1;
        /// `struct mnt_id_req`.
        #[repr(C)]
        struct Request {
            size_bytes: u32,
            reserved: u32,
            mount: u64,
            fields: u64,
        }
        let request = Request {
            size_bytes: 24,
            reserved: 0,
            mount,
            fields: SB_BASIC,
        };
        // `struct statmount`: its second word has the returned fields, the fourth one the magic number.
        let mut out = [0_u64; 64];
        let (at, bytes) = (out.as_mut_ptr(), size_of_val(&out));
        // SAFETY: Lent: `request` and `out` are on this stack frame, which the call does not outlast.
        let res = unsafe { libc::syscall(NUMBER, &raw const request, at, bytes, 0) };
        (res == 0 && out[1] & SB_BASIC != 0).then(|| FileSystem::of_magic(out[3]))
    }

    /// Queries the file system of an open file (`fstatfs(2)`). May block: FUSE and NFS ask their server.
    fn of_file(fd: RawFd) -> FileSystem {
        let Ok(stat) = rfs::fstatfs(borrow_fd(fd)) else {
            return FileSystem::Other;
        };
        // The type's width and sign differ between architectures; magic numbers have 32 bits.
        #[allow(clippy::useless_conversion, reason = "not on every architecture")]
        let magic = i64::from(stat.f_type).cast_unsigned() & u64::from(u32::MAX);
        FileSystem::of_magic(magic)
    }
}

/// The maximum number of known mounts. At the limit, all are forgotten and learned again.
const KNOWN_MAX: usize = 256;

static KNOWN: RwLock<Vec<(u64, FileSystem)>> = RwLock::new(Vec::new());

/// The mount of the root directory if it is local, `UNKNOWN` or `NOT_LOCAL`.
static ROOT: AtomicU64 = AtomicU64::new(UNKNOWN);
/// Unique IDs are larger than these.
const UNKNOWN: u64 = 0;
const NOT_LOCAL: u64 = 1;

/// Returns the file system of a mount, if it has been learned.
pub(crate) fn known(mount: u64) -> Option<FileSystem> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    let found = known.iter().find(|(id, _)| *id == mount);
    found.map(|&(_, file_system)| file_system)
}

fn remember(mount: u64, file_system: FileSystem) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= KNOWN_MAX {
        known.clear();
    }
    if !known.iter().any(|(id, _)| *id == mount) {
        known.push((mount, file_system));
    }
}

/// The properties of an open file that the library needs before its first use.
pub(crate) struct Identity {
    pub(super) statx: Statx,
}

impl Identity {
    /// Queries an open file. Does not block: the kernel answers from memory (`AT_STATX_DONT_SYNC`).
    pub(crate) fn of(fd: RawFd) -> std::io::Result<Identity> {
        Identity::at(fd, c"", AT_EMPTY_PATH)
    }

    /// Returns the identity of a file that cannot be queried.
    #[cfg(feature = "tokio")]
    pub(crate) fn unknown() -> Identity {
        Identity {
            statx: call::empty_statx(),
        }
    }

    /// Queries a path, and follows links. May block in the lookup.
    pub(crate) fn of_path((dir, path): call::DirPath<'_>) -> std::io::Result<Identity> {
        Identity::at(dir, path, 0)
    }

    fn at(fd: RawFd, path: &CStr, flags: u32) -> std::io::Result<Identity> {
        let mut statx = call::empty_statx();
        let mask = call::STATX_TYPE | call::STATX_NLINK | call::STATX_SIZE;
        let mask = mask | call::STATX_DIOALIGN | call::STATX_MNT_ID_UNIQUE;
        let flags = flags | call::AT_STATX_DONT_SYNC;
        // SAFETY: Lent: `statx` is on this stack frame, which the call does not outlast.
        let res = unsafe { call::statx(fd, path, flags, mask, &raw mut statx) };
        super::errno::check(res).map(|_| Identity { statx })
    }

    /// Returns the unique ID of the mount. `None` before Linux 6.8.
    pub(crate) fn mount(&self) -> Option<u64> {
        mount_of(&self.statx)
    }

    /// Returns whether the file has offsets, without doubt.
    pub(crate) fn has_offsets(&self) -> bool {
        self.is(libc::S_IFREG) || self.is(libc::S_IFDIR) || self.is(libc::S_IFBLK)
    }

    /// Returns the size of a regular file, bytes; `None` for another one. May be old on a network file system.
    pub(crate) fn regular_bytes(&self) -> Option<u64> {
        self.is(libc::S_IFREG).then_some(self.statx.stx_size)
    }

    fn is(&self, kind: u32) -> bool {
        is(&self.statx, kind)
    }

    /// Returns the alignment of memory and offsets for direct I/O, bytes. `None` before Linux 6.1.
    pub(crate) fn direct_alignment(&self) -> Option<(u32, u32)> {
        let known = self.statx.stx_mask & call::STATX_DIOALIGN != 0;
        let (memory, offset) = (
            self.statx.stx_dio_mem_align,
            self.statx.stx_dio_offset_align,
        );
        (known && offset != 0).then_some((memory.max(1), offset))
    }
}

fn is(statx: &Statx, kind: u32) -> bool {
    u32::from(statx.stx_mode) & libc::S_IFMT == kind
}

fn mount_of(statx: &Statx) -> Option<u64> {
    let unique = statx.stx_mask & call::STATX_MNT_ID_UNIQUE != 0;
    unique.then_some(statx.stx_mnt_id)
}

/// Returns the mount of a file, if it is known to be local.
fn local_mount_of(statx: &Statx) -> Option<u64> {
    mount_of(statx).filter(|&mount| known(mount) == Some(FileSystem::Local))
}

/// Returns the file system of an open file, and learns its mount. A file system that cannot be recognised later is
/// never local.
///
/// Blocks only where `statmount` is missing or forbidden, and then for a new mount, or before Linux 6.8 for every file.
pub(crate) fn learn(fd: RawFd, file: &Identity) -> FileSystem {
    learn_root();
    match file.mount() {
        Some(mount) => learn_mount(mount, Some(fd)).unwrap_or(FileSystem::Other),
        None if FileSystem::of_file(fd) == FileSystem::Fuse => FileSystem::Fuse,
        None => FileSystem::Other,
    }
}

/// Learns the mount of a path by its ID. Returns `false` if that needs an open file, for `learn`. Does not block.
pub(crate) fn learn_by_id(path: &Identity) -> bool {
    path.mount()
        .is_none_or(|mount| learn_mount(mount, None).is_some())
}

/// Learns the mount of the root directory, for new engines on the real kernel, and again when `closing` has noticed
/// another one. It may block where the root directory is on a network file system.
pub(crate) fn learn_root() {
    if ROOT.load(Relaxed) == UNKNOWN {
        ROOT.store(local_root().unwrap_or(NOT_LOCAL), Relaxed);
    }
}

/// Returns the mount of the root directory, if it is local. A directory that cannot be read can be queried, too.
fn local_root() -> Option<u64> {
    let mut options = std::fs::File::options();
    let root = options
        .read(true)
        .custom_flags(libc::O_PATH)
        .open("/")
        .ok()?;
    let mount = Identity::of(root.as_raw_fd()).ok()?.mount()?;
    (learn_mount(mount, Some(root.as_raw_fd()))? == FileSystem::Local).then_some(mount)
}

/// Learns a mount, by `statmount` or by one of its files.
fn learn_mount(mount: u64, file: Option<RawFd>) -> Option<FileSystem> {
    let known = known(mount);
    if known.is_some() {
        return known;
    }
    let learned = FileSystem::of_mount(mount).or_else(|| file.map(FileSystem::of_file))?;
    remember(mount, learned);
    Some(learned)
}

/// Returns the mount on which a lookup starts, that of the root directory or of the directory that the path is relative
/// to, if it is known to be local.
///
/// The root directory is assumed to stay on its mount, because a query for each open would cost a system call. A change
/// (`chroot`, `pivot_root`, `setns`) is noticed by `closing` and `closes_briefly`.
pub(crate) fn local_start((dir, path): call::DirPath<'_>) -> Option<u64> {
    if path.to_bytes().starts_with(b"/") {
        let root = ROOT.load(Relaxed);
        return (root > NOT_LOCAL).then_some(root);
    }
    // The process may change its working directory at any time.
    let here = Identity::at(dir, c"", AT_EMPTY_PATH).ok()?;
    local_mount_of(&here.statx)
}

/// The amount of work of a close on a local mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The close has nothing to do.
    Brief,
    /// The close may have work to do.
    Usual,
    /// The close frees the blocks of a file that has no name any more, which takes long for a large file.
    Frees,
}

/// The largest file whose close is brief even if its last name is removed before, bytes. Freeing it takes about as long
/// as reading it.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// Returns how the close of a file on a local mount would proceed.
pub(crate) fn closing(fd: RawFd) -> Closing {
    Identity::of(fd).map_or(Closing::Usual, |now| closing_of(&now.statx))
}

/// Returns whether the close of a file on a local mount will be brief, by a query with `STATX_MNT_ID_UNIQUE`.
pub(crate) fn closes_briefly(statx: &Statx) -> bool {
    statx.stx_size <= SMALL_BYTES_MAX && closing_of(statx) == Closing::Brief
}

fn closing_of(statx: &Statx) -> Closing {
    if local_mount_of(statx).is_none() {
        // The root directory was on another mount than assumed.
        ROOT.store(UNKNOWN, Relaxed);
        return Closing::Usual;
    }
    match statx.stx_nlink {
        0 => Closing::Frees,
        _ if is(statx, libc::S_IFREG) => Closing::Brief,
        _ => Closing::Usual,
    }
}
