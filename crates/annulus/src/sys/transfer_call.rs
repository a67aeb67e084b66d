//! # Safety
//!
//! Reads and writes of files for the blocking threads and the calling thread, like the calls of `call`: they take the
//! arguments of the corresponding SQE and return the same result. The memory is that of an operation, which is not
//! touched during the call, or is borrowed for it (Lent).
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use super::call::{IoVec, fsync, last};
use super::errno::{ENOSYS, EOPNOTSUPP};
use super::sqe::RWF_DSYNC;
use super::transfer_flags::TransferFlags;

/// `preadv2(2)` of one range.
///
/// # Safety
///
/// Lent: `base` is valid for writes of `bytes` until this returns.
#[inline]
pub(crate) unsafe fn pread(
    fd: RawFd,
    base: *mut u8,
    bytes: usize,
    at: u64,
    flags: TransferFlags,
) -> i32 {
    let iovec = IoVec { base, bytes };
    // SAFETY: Lent: the caller upholds the contract in `# Safety`; the iovec lives on this stack
    // for the call.
    unsafe { preadv(fd, &iovec, 1, at, flags) }
}

/// `pwritev2(2)` of one range.
///
/// # Safety
///
/// Lent: `base` is valid for reads of `bytes` until this returns.
pub(crate) unsafe fn pwrite(
    fd: RawFd,
    base: *const u8,
    bytes: usize,
    at: u64,
    flags: TransferFlags,
) -> i32 {
    let iovec = IoVec {
        base: base.cast_mut(),
        bytes,
    };
    // SAFETY: Lent: the caller upholds the contract in `# Safety`; a write only reads through the
    // pointer.
    unsafe { pwritev(fd, &iovec, 1, at, flags) }
}

/// `preadv2(2)`.
///
/// # Safety
///
/// Lent: the `count` vectors, and what they point to, are valid for writes until this returns.
#[inline]
pub(crate) unsafe fn preadv(
    fd: RawFd,
    vectors: *const IoVec,
    count: usize,
    at: u64,
    flags: TransferFlags,
) -> i32 {
    let calls = [libc::SYS_preadv2, libc::SYS_preadv, libc::SYS_readv];
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    unsafe { transfer(calls, fd, vectors, count, at, flags) }
}

/// `pwritev2(2)`.
///
/// # Safety
///
/// Lent: the `count` vectors, and what they point to, are valid for reads until this returns.
pub(crate) unsafe fn pwritev(
    fd: RawFd,
    vectors: *const IoVec,
    count: usize,
    at: u64,
    flags: TransferFlags,
) -> i32 {
    let calls = [libc::SYS_pwritev2, libc::SYS_pwritev, libc::SYS_writev];
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    unsafe { transfer(calls, fd, vectors, count, at, flags) }
}

/// Makes the first of three calls: with flags, with an offset, without. Linux before 4.6, qemu-user before 8, and some
/// filters have only the others. Flags that those cannot replace get the answer of a kernel that does not know them.
///
/// # Safety
///
/// Lent: the `count` vectors, and what they point to, are valid for the calls until this returns.
#[inline]
unsafe fn transfer(
    [with_flags, with_offset, without]: [libc::c_long; 3],
    fd: RawFd,
    vectors: *const IoVec,
    count: usize,
    at: u64,
    flags: TransferFlags,
) -> i32 {
    let offset = at.cast_signed();
    let call = |number| {
        // SAFETY: Lent: the caller upholds the contract in `# Safety`. The kernel takes the offset in two halves; on
        // 64-bit systems the second one is 0. Calls without an offset or flags ignore these arguments.
        last(unsafe { libc::syscall(number, fd, vectors, count, offset, 0, flags.bits()) })
    };
    let res = call(with_flags);
    if res != -ENOSYS {
        return res;
    }
    if flags.without(RWF_DSYNC).bits() != 0 {
        return -EOPNOTSUPP;
    }
    let res = call(if at == AT_POSITION {
        without
    } else {
        with_offset
    });
    match res > 0 && flags.has(RWF_DSYNC) {
        true => match fsync(fd, true) {
            0 => res,
            failed => failed,
        },
        false => res,
    }
}

/// The offset of `preadv2` and `pwritev2` that stands for the position of the open file.
pub(crate) const AT_POSITION: u64 = u64::MAX;

/// Reads into `into`. Fails with minus the errno, EAGAIN if the flags have `RWF_NOWAIT` and the read would block.
pub(crate) fn pread_into(
    fd: RawFd,
    into: &mut [u8],
    at: u64,
    flags: TransferFlags,
) -> Result<usize, i32> {
    // SAFETY: Lent: `into` is borrowed for the call, which does not outlast it.
    let res = unsafe { pread(fd, into.as_mut_ptr(), into.len(), at, flags) };
    usize::try_from(res).map_err(|_| res)
}
