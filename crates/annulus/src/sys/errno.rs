//! The errno values that the library handles, by their kernel names.

use std::io;

use super::engine_error::error_of;

pub(crate) const ESPIPE: i32 = libc::ESPIPE;
pub(crate) const EPERM: i32 = libc::EPERM;
pub(crate) const ENOENT: i32 = libc::ENOENT;
pub(crate) const EINTR: i32 = libc::EINTR;
/// An interrupted call that has done nothing yet, in the kernel's own code. io_uring returns it unchanged for some
/// opcodes, for example an open of a FIFO that is cancelled.
pub(crate) const ERESTARTSYS: i32 = 512;
pub(crate) const EAGAIN: i32 = libc::EAGAIN;
pub(crate) const ENOMEM: i32 = libc::ENOMEM;
pub(crate) const EACCES: i32 = libc::EACCES;
pub(crate) const EFAULT: i32 = libc::EFAULT;
pub(crate) const EBUSY: i32 = libc::EBUSY;
pub(crate) const EINVAL: i32 = libc::EINVAL;
#[cfg(any(feature = "net", feature = "test-util"))]
pub(crate) const EBADF: i32 = libc::EBADF;
#[cfg(feature = "net")]
pub(crate) const ECONNABORTED: i32 = libc::ECONNABORTED;
#[cfg(feature = "net")]
pub(crate) const ENOTSOCK: i32 = libc::ENOTSOCK;
pub(crate) const ELOOP: i32 = libc::ELOOP;
pub(crate) const ENOTDIR: i32 = libc::ENOTDIR;
pub(crate) const EMFILE: i32 = libc::EMFILE;
pub(crate) const ENFILE: i32 = libc::ENFILE;
pub(crate) const ENOBUFS: i32 = libc::ENOBUFS;
pub(crate) const ENOSYS: i32 = libc::ENOSYS;
pub(crate) const ETIME: i32 = libc::ETIME;
pub(crate) const ETIMEDOUT: i32 = libc::ETIMEDOUT;
pub(crate) const ECANCELED: i32 = libc::ECANCELED;
pub(crate) const ESHUTDOWN: i32 = libc::ESHUTDOWN;
pub(crate) const EBADR: i32 = libc::EBADR;
#[cfg(any(feature = "__preload", feature = "test-util"))]
pub(crate) const EBADFD: i32 = libc::EBADFD;
pub(crate) const EIO: i32 = libc::EIO;
#[cfg(feature = "net")]
pub(crate) const EPIPE: i32 = libc::EPIPE;
#[cfg(any(feature = "net", feature = "test-util"))]
pub(crate) const EALREADY: i32 = libc::EALREADY;
#[cfg(feature = "net")]
pub(crate) const EINPROGRESS: i32 = libc::EINPROGRESS;
pub(crate) const EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
pub(crate) const ERANGE: i32 = libc::ERANGE;

/// Errors that only the simulated kernel generates.
#[cfg(feature = "test-util")]
mod simulated {
    pub(crate) const EEXIST: i32 = libc::EEXIST;
    pub(crate) const EFBIG: i32 = libc::EFBIG;
    pub(crate) const E2BIG: i32 = libc::E2BIG;
    pub(crate) const EISDIR: i32 = libc::EISDIR;
    pub(crate) const ENAMETOOLONG: i32 = libc::ENAMETOOLONG;
    pub(crate) const ENODATA: i32 = libc::ENODATA;
    pub(crate) const ENOSPC: i32 = libc::ENOSPC;
    pub(crate) const ENOTEMPTY: i32 = libc::ENOTEMPTY;
    pub(crate) const EXDEV: i32 = libc::EXDEV;
}
#[cfg(feature = "test-util")]
pub(crate) use simulated::*;

/// Converts a `res` to a count or an error. A negative `res` is minus an errno or minus an
/// `EngineError`'s number.
#[inline]
pub(crate) fn check(res: i32) -> io::Result<usize> {
    if res >= 0 {
        Ok(count(res))
    } else {
        Err(error_of(-res))
    }
}

/// Returns the count in a `res` of the kernel; 0 for an error.
#[inline]
pub(crate) fn count(res: i32) -> usize {
    usize::try_from(res).unwrap_or(0)
}
