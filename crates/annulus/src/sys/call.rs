//! # Safety
//!
//! Positional file calls for the blocking threads. They take the arguments of the corresponding SQE and return the same
//! result (`res`: a count or minus an errno). Pointers come from an operation that owns the memory they point to
//! (Lent). The call returns before the operation is touched again.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::ops::Range;
#[cfg(feature = "tokio")]
use std::os::fd::FromRawFd;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::fs as rfs;
use rustix::io::Errno;

/// `struct iovec`, for the vectored calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IoVec {
    pub base: *mut u8,
    pub bytes: usize,
}

const _: () = assert!(size_of::<IoVec>() == size_of::<libc::iovec>());

pub(crate) const AT_FDCWD: RawFd = libc::AT_FDCWD;

#[inline]
pub(super) fn last(ret: libc::c_long) -> i32 {
    if ret >= 0 {
        // A descriptor or a count. The kernel keeps both below 2^31 (`MAX_RW_COUNT`).
        i32::try_from(ret).unwrap_or(i32::MAX)
    } else {
        -std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EIO)
    }
}

fn res<T: TryInto<i32>>(result: Result<T, Errno>) -> i32 {
    match result {
        Ok(n) => n.try_into().unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

fn unit(result: Result<(), Errno>) -> i32 {
    res(result.map(|()| 0))
}

/// Closes a descriptor once. EINTR is not retried: on Linux the descriptor is closed nevertheless.
///
/// # Safety
///
/// Open: the caller owns `fd`, and no operation in flight uses it.
pub(crate) unsafe fn close(fd: RawFd) -> i32 {
    // SAFETY: Open: the caller upholds the contract in `# Safety`.
    last(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// Wraps `fd` as a rustix `BorrowedFd`. The caller keeps `fd` open while the result lives. With a wrong number a system
/// call fails or acts on another file, but no memory is touched.
#[inline]
pub(crate) fn borrow_fd<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: Open: each caller owns the descriptor, or holds a reference to its owner, while it uses the result.
    // `AT_FDCWD` is not a descriptor, but rustix represents it by the same type.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The descriptor of a directory, or `AT_FDCWD`, and a path that is relative to it.
pub(crate) type DirPath<'a> = (RawFd, &'a CStr);

pub(crate) fn openat((dir, path): DirPath<'_>, flags: u32, mode: u32) -> i32 {
    let (flags, mode) = (
        rfs::OFlags::from_bits_retain(flags),
        rfs::Mode::from_raw_mode(mode),
    );
    descriptor(rfs::openat(borrow_fd(dir), path, flags, mode))
}

fn descriptor(opened: Result<OwnedFd, Errno>) -> i32 {
    res(opened.map(IntoRawFd::into_raw_fd))
}

/// `struct open_how`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct OpenHow {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

/// The flags of a file that is only read.
pub(crate) const O_TO_READ: u32 = O_RDONLY | O_CLOEXEC;

/// Opens a file for reading as [`open_here`] does, by a ring, which does not leave `O_NONBLOCK` in the open file.
pub(crate) static READ_HERE: OpenHow = OpenHow {
    flags: O_TO_READ as u64,
    mode: 0,
    resolve: HERE.bits(),
};

/// The lookup does not block, and stays on the mount that it starts on.
const HERE: rfs::ResolveFlags = rfs::ResolveFlags::CACHED.union(rfs::ResolveFlags::NO_XDEV);

/// `RESOLVE_BENEATH`.
pub(crate) const RESOLVE_BENEATH: u64 = rfs::ResolveFlags::BENEATH.bits();

impl OpenHow {
    /// Returns the options of an open that fails with EXDEV if the lookup leaves the directory.
    pub(crate) fn beneath(flags: u32, mode: u32) -> OpenHow {
        // Other than `openat`, the call refuses a mode that is not used.
        let creates = flags & O_CREAT != 0 || flags & O_TMPFILE == O_TMPFILE;
        OpenHow {
            flags: flags.into(),
            mode: if creates { mode.into() } else { 0 },
            resolve: RESOLVE_BENEATH,
        }
    }
}

/// `openat2(2)`. Since Linux 5.6.
pub(crate) fn openat2((dir, path): DirPath<'_>, how: &OpenHow) -> i32 {
    let (how, bytes) = (std::ptr::from_ref(how), size_of::<OpenHow>());
    // SAFETY: Lent: path and options are borrowed for the call, which does not outlast them.
    last(unsafe { libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), how, bytes) })
}

/// `openat2(2)` without blocking in the lookup, in a pipe, or for a lease. Fails with EAGAIN if the lookup would block,
/// and with EXDEV if it would leave the mount that it starts on, or with `beneath` the directory. `flags` has no
/// `O_CREAT` and no `O_TRUNC`. The open file also has `O_NONBLOCK`.
pub(crate) fn open_here((dir, path): DirPath<'_>, flags: u32, beneath: bool) -> i32 {
    let flags = rfs::OFlags::from_bits_retain(flags | O_NONBLOCK);
    let (mut resolve, mode) = (HERE, rfs::Mode::empty());
    resolve.set(rfs::ResolveFlags::BENEATH, beneath);
    descriptor(rfs::openat2(borrow_fd(dir), path, flags, mode, resolve))
}

/// Looks up a path without blocking, as [`open_here`] does, and returns a handle for queries, or ENOENT. `None` if the
/// path is not cached, leaves its mount, or cannot be looked up.
pub(crate) fn look_up_here((dir, path): DirPath<'_>, follow: bool) -> Option<Result<OwnedFd, i32>> {
    let mut flags = rfs::OFlags::PATH | rfs::OFlags::CLOEXEC;
    flags.set(rfs::OFlags::NOFOLLOW, !follow);
    match rfs::openat2(borrow_fd(dir), path, flags, rfs::Mode::empty(), HERE) {
        Ok(handle) => Some(Ok(handle)),
        Err(Errno::NOENT) => Some(Err(Errno::NOENT.raw_os_error())),
        Err(_) => None,
    }
}

/// Queries an open file as std does.
#[cfg(feature = "tokio")]
pub(crate) fn std_metadata(fd: RawFd) -> std::io::Result<std::fs::Metadata> {
    // SAFETY: Open: the caller holds the descriptor, which this file never closes.
    let file = std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    file.metadata()
}

pub(crate) fn fsync(fd: RawFd, data_only: bool) -> i32 {
    unit(if data_only {
        rfs::fdatasync(borrow_fd(fd))
    } else {
        rfs::fsync(borrow_fd(fd))
    })
}

pub(crate) fn sync_file_range(fd: RawFd, offset: u64, bytes: u64, flags: u32) -> i32 {
    // SAFETY: Open: the calling operation holds the descriptor. No pointer is passed.
    last(unsafe { libc::syscall(libc::SYS_sync_file_range, fd, offset, bytes, flags) })
}

/// A descriptor, and an offset in its file.
pub(crate) type Position = (RawFd, u64);

/// `copy_file_range(2)` from one offset to another. The positions of the files are not used.
pub(crate) fn copy_file_range(from: Position, into: Position, bytes: u32) -> i32 {
    let ((from, mut at), (into, mut into_at)) = (from, into);
    let (from, into) = (borrow_fd(from), borrow_fd(into));
    let (at, into_at) = (Some(&mut at), Some(&mut into_at));
    res(rfs::copy_file_range(
        from,
        at,
        into,
        into_at,
        bytes as usize,
    ))
}

/// Returns the next range of data from `at` on; an empty one at the end of the file if there is none. On a file system
/// that does not know its holes, all is data. Moves the position.
pub(crate) fn next_data(fd: RawFd, at: u64) -> Range<u64> {
    let seek = |to| rfs::seek(borrow_fd(fd), to);
    match seek(rfs::SeekFrom::Data(at)) {
        Ok(start) => start..seek(rfs::SeekFrom::Hole(start)).unwrap_or(u64::MAX),
        Err(Errno::NXIO) => {
            let end = seek(rfs::SeekFrom::End(0)).unwrap_or(at);
            end..end
        }
        Err(_) => at..u64::MAX,
    }
}

/// `ioctl(FICLONE)`: makes `into`, an empty file, share the blocks of `from`.
pub(crate) fn clone_file(from: RawFd, into: RawFd) -> i32 {
    unit(rfs::ioctl_ficlone(borrow_fd(into), borrow_fd(from)))
}

/// `sendfile(2)`, which splices through a pipe of the kernel. Moves the position of `into`.
pub(crate) fn splice_file((from, mut at): Position, (into, into_at): Position, bytes: u32) -> i32 {
    let (from, into) = (borrow_fd(from), borrow_fd(into));
    let moved = rfs::seek(into, rfs::SeekFrom::Start(into_at));
    res(moved.and_then(|_| rfs::sendfile(into, from, Some(&mut at), bytes as usize)))
}

pub(crate) fn fallocate(fd: RawFd, mode: u32, offset: u64, bytes: u64) -> i32 {
    unit(rfs::fallocate(
        borrow_fd(fd),
        rfs::FallocateFlags::from_bits_retain(mode),
        offset,
        bytes,
    ))
}

pub(crate) fn ftruncate(fd: RawFd, bytes: u64) -> i32 {
    unit(rfs::ftruncate(borrow_fd(fd), bytes))
}

pub(crate) fn fadvise(fd: RawFd, offset: u64, bytes: u64, advice: u32) -> i32 {
    // SAFETY: Open: the calling operation holds the descriptor. No pointer is passed.
    last(unsafe { libc::syscall(libc::SYS_fadvise64, fd, offset, bytes, advice) })
}

pub(crate) fn renameat((dir, from): DirPath<'_>, (to_dir, to): DirPath<'_>, flags: u32) -> i32 {
    let flags = rfs::RenameFlags::from_bits_retain(flags);
    let (dir, to_dir) = (borrow_fd(dir), borrow_fd(to_dir));
    unit(rfs::renameat_with(dir, from, to_dir, to, flags))
}

pub(crate) fn unlinkat((dir, path): DirPath<'_>, flags: u32) -> i32 {
    let flags = rfs::AtFlags::from_bits_retain(flags);
    unit(rfs::unlinkat(borrow_fd(dir), path, flags))
}

pub(crate) fn mkdirat((dir, path): DirPath<'_>, mode: u32) -> i32 {
    let mode = rfs::Mode::from_raw_mode(mode);
    unit(rfs::mkdirat(borrow_fd(dir), path, mode))
}

pub(crate) fn linkat((dir, file): DirPath<'_>, (name_dir, name): DirPath<'_>, flags: u32) -> i32 {
    let flags = rfs::AtFlags::from_bits_retain(flags);
    let (dir, name_dir) = (borrow_fd(dir), borrow_fd(name_dir));
    unit(rfs::linkat(dir, file, name_dir, name, flags))
}

pub(crate) fn symlinkat(target: &CStr, (dir, name): DirPath<'_>) -> i32 {
    unit(rfs::symlinkat(target, borrow_fd(dir), name))
}

/// `readlinkat(2)` into `into`. Returns the length of the target, cut to that of `into`.
pub(crate) fn readlinkat((dir, path): DirPath<'_>, into: &mut [u8]) -> i32 {
    // SAFETY: Lent: `path` is NUL-terminated by its type, and `into` is borrowed for the call, which does not outlast
    // it.
    last(unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            dir,
            path.as_ptr(),
            into.as_mut_ptr(),
            into.len(),
        )
    })
}

/// `realpath(3)` into `into`. Returns the length of the path.
pub(crate) fn realpath(path: &CStr, into: &mut [u8]) -> i32 {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let found = match std::fs::canonicalize(path) {
        Ok(found) => found.into_os_string().into_vec(),
        Err(error) => return -error.raw_os_error().unwrap_or(libc::EIO),
    };
    match into.get_mut(..found.len()) {
        Some(part) => part.copy_from_slice(&found),
        None => return -libc::ENAMETOOLONG,
    }
    i32::try_from(found.len()).unwrap_or(i32::MAX)
}

pub(crate) fn fchmod(fd: RawFd, mode: u32) -> i32 {
    unit(rfs::fchmod(borrow_fd(fd), rfs::Mode::from_raw_mode(mode)))
}

pub(crate) fn chmodat((dir, path): DirPath<'_>, mode: u32) -> i32 {
    let (mode, flags) = (rfs::Mode::from_raw_mode(mode), rfs::AtFlags::empty());
    unit(rfs::chmodat(borrow_fd(dir), path, mode, flags))
}

/// `utimensat(2)`, or `futimens(3)` without a path.
pub(crate) fn utimensat(fd: RawFd, path: Option<&CStr>, times: &[Timespec; 2]) -> i32 {
    let [last_access, last_modification] = *times;
    let times = rfs::Timestamps {
        last_access,
        last_modification,
    };
    unit(match path {
        None => rfs::futimens(borrow_fd(fd), &times),
        Some(path) => rfs::utimensat(borrow_fd(fd), path, &times, rfs::AtFlags::empty()),
    })
}

/// `getxattr(2)`, or `fgetxattr(2)` without a path. Returns the length of the value.
pub(crate) fn getxattr(fd: RawFd, path: Option<&CStr>, name: &CStr, into: &mut [u8]) -> i32 {
    res(match path {
        None => rfs::fgetxattr(borrow_fd(fd), name, into),
        Some(path) => rfs::getxattr(path, name, into),
    })
}

/// `setxattr(2)`, or `fsetxattr(2)` without a path.
pub(crate) fn setxattr(fd: RawFd, path: Option<&CStr>, name: &CStr, value: &[u8]) -> i32 {
    let flags = rfs::XattrFlags::empty();
    unit(match path {
        None => rfs::fsetxattr(borrow_fd(fd), name, value, flags),
        Some(path) => rfs::setxattr(path, name, value, flags),
    })
}

/// `listxattr(2)`, or `flistxattr(2)` without a path. Returns the length of the list.
pub(crate) fn listxattr(fd: RawFd, path: Option<&CStr>, into: &mut [u8]) -> i32 {
    res(match path {
        None => rfs::flistxattr(borrow_fd(fd), into),
        Some(path) => rfs::listxattr(path, into),
    })
}

/// `removexattr(2)`, or `fremovexattr(2)` without a path.
pub(crate) fn removexattr(fd: RawFd, path: Option<&CStr>, name: &CStr) -> i32 {
    unit(match path {
        None => rfs::fremovexattr(borrow_fd(fd), name),
        Some(path) => rfs::removexattr(path, name),
    })
}

/// `statx(2)` into `out`, which the operation owns.
///
/// # Safety
///
/// Lent: `out` is valid for a write of a whole `Statx`.
pub(crate) unsafe fn statx(fd: RawFd, path: &CStr, flags: u32, mask: u32, out: *mut Statx) -> i32 {
    // SAFETY: Lent: the caller upholds the contract in `# Safety`; `path` is NUL-terminated by its
    // type.
    last(unsafe { libc::syscall(libc::SYS_statx, fd, path.as_ptr(), flags, mask, out) })
}

/// `getdents64(2)`.
///
/// # Safety
///
/// Lent: `base` is valid for writes of `bytes`.
pub(crate) unsafe fn getdents(fd: RawFd, base: *mut u8, bytes: usize) -> i32 {
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    last(unsafe { libc::syscall(libc::SYS_getdents64, fd, base, bytes) })
}

/// Returns the size of an open file, bytes; `None` if the query fails.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub(crate) fn file_bytes(fd: RawFd) -> Option<u64> {
    u64::try_from(rfs::fstat(borrow_fd(fd)).ok()?.st_size).ok()
}

/// Returns the kind of a directory entry as in `d_type`, by `fstatat(2)` without following links; `None` if that fails.
pub(crate) fn entry_kind((dir, name): DirPath<'_>) -> Option<u8> {
    let found = rfs::statat(borrow_fd(dir), name, rfs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    u8::try_from((found.st_mode & S_IFMT) >> 12).ok()
}

pub(crate) use rustix::fs::{Statx, StatxTimestamp, UTIME_OMIT};
pub(crate) use rustix::time::Timespec;

/// The `AT_*` and `STATX_*` constants under their kernel names.
pub(crate) const AT_EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
pub(crate) const AT_SYMLINK_NOFOLLOW: u32 = libc::AT_SYMLINK_NOFOLLOW as u32;
pub(crate) const AT_SYMLINK_FOLLOW: u32 = libc::AT_SYMLINK_FOLLOW as u32;
pub(crate) const AT_REMOVEDIR: u32 = libc::AT_REMOVEDIR as u32;
pub(crate) const STATX_BASIC_STATS: u32 = libc::STATX_BASIC_STATS;
pub(crate) const STATX_BTIME: u32 = libc::STATX_BTIME;
pub(crate) const STATX_DIOALIGN: u32 = libc::STATX_DIOALIGN;
pub(crate) const STATX_TYPE: u32 = libc::STATX_TYPE;
pub(crate) const STATX_NLINK: u32 = libc::STATX_NLINK;
pub(crate) const STATX_SIZE: u32 = libc::STATX_SIZE;
/// The ID of a mount that is never reused. Since Linux 6.8.
pub(crate) const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
pub(crate) const AT_STATX_DONT_SYNC: u32 = libc::AT_STATX_DONT_SYNC as u32;

pub(crate) fn empty_statx() -> Statx {
    // SAFETY: Written. `Statx` is plain integers, for which zero bytes are a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The access and creation flags of `open(2)`.
pub(crate) const O_RDONLY: u32 = libc::O_RDONLY as u32;
pub(crate) const O_WRONLY: u32 = libc::O_WRONLY as u32;
pub(crate) const O_RDWR: u32 = libc::O_RDWR as u32;
pub(crate) const O_ACCMODE: u32 = libc::O_ACCMODE as u32;
pub(crate) const O_APPEND: u32 = libc::O_APPEND as u32;
pub(crate) const O_CREAT: u32 = libc::O_CREAT as u32;
pub(crate) const O_EXCL: u32 = libc::O_EXCL as u32;
pub(crate) const O_TRUNC: u32 = libc::O_TRUNC as u32;
pub(crate) const O_CLOEXEC: u32 = libc::O_CLOEXEC as u32;
pub(crate) const O_NONBLOCK: u32 = libc::O_NONBLOCK as u32;
pub(crate) const O_DIRECT: u32 = libc::O_DIRECT as u32;
pub(crate) const O_DIRECTORY: u32 = libc::O_DIRECTORY as u32;
pub(crate) const O_NOFOLLOW: u32 = libc::O_NOFOLLOW as u32;
/// Includes `O_DIRECTORY`.
pub(crate) const O_TMPFILE: u32 = libc::O_TMPFILE as u32;

/// `renameat2(2)`: fails if the new name exists.
pub(crate) const RENAME_NOREPLACE: u32 = libc::RENAME_NOREPLACE;
/// `renameat2(2)`: both names exist, and are exchanged.
pub(crate) const RENAME_EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// The file-type bits of a mode.
pub(crate) const S_IFMT: u32 = libc::S_IFMT;

/// Values of the file-type bits.
pub(crate) mod file_type {
    pub(crate) const REGULAR: u32 = libc::S_IFREG;
    pub(crate) const DIRECTORY: u32 = libc::S_IFDIR;
    pub(crate) const SYMLINK: u32 = libc::S_IFLNK;
}

/// Waits until a read returns without blocking, or for a signal.
pub(crate) fn wait_until_readable(fd: RawFd) {
    let fd = borrow_fd(fd);
    let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
}

/// Returns whether a descriptor has offsets. Files, directories and disks have them; pipes and sockets do not.
pub(crate) fn is_seekable(fd: RawFd) -> bool {
    rfs::seek(borrow_fd(fd), rfs::SeekFrom::Current(0)).is_ok()
}

/// Moves the position of a descriptor.
#[cfg(feature = "tokio")]
pub(crate) fn seek_to(fd: RawFd, position: u64) -> std::io::Result<()> {
    rfs::seek(borrow_fd(fd), rfs::SeekFrom::Start(position))?;
    Ok(())
}

/// `fcntl(F_GETFL)`: the open flags of a descriptor, including O_DIRECT.
pub(crate) fn open_flags(fd: RawFd) -> std::io::Result<u32> {
    Ok(rustix::fs::fcntl_getfl(borrow_fd(fd))?.bits())
}

/// `fcntl(F_SETFL)`. The flags are some that the kernel has accepted for this file before, so it does not fail.
pub(crate) fn set_open_flags(fd: RawFd, flags: u32) {
    let _ = rfs::fcntl_setfl(borrow_fd(fd), rfs::OFlags::from_bits_retain(flags));
}

/// Returns the monotonic time in ns. All deadlines use this clock.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative: the clock starts at 0.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Converts a duration in ns to the kernel's `timespec`.
#[inline]
pub(crate) fn timespec(ns: u64) -> Timespec {
    // Both are far below 2^63.
    Timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    }
}
