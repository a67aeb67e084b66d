//! # Safety
//!
//! An entry of the submission queue, an entry of the completion queue, and the opcodes.
//!
//! `Sqe` has the kernel's layout (`struct io_uring_sqe`), so that pushing it to a ring is a copy. Its fields are named,
//! so that the simulated kernel can read it.
#![allow(unsafe_code)]

#[cfg(feature = "net")]
mod socket;

#[cfg(feature = "net")]
pub(crate) use socket::*;

use io_uring::opcode as abi;

/// A request to a kernel: 64 bytes in the layout of `struct io_uring_sqe`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the kernel's names")]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub off: u64,
    pub addr: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buf_index: u16,
    pub personality: u16,
    pub file_index: i32,
    pub addr3: u64,
    pub pad: u64,
}

const _: () = assert!(size_of::<Sqe>() == 64 && size_of::<io_uring::squeue::Entry>() == 64);

/// Converts an entry to the type of the ABI crate.
#[inline]
pub(super) fn to_entry(sqe: Sqe) -> io_uring::squeue::Entry {
    // SAFETY: Typed: both are `struct io_uring_sqe`; the sizes are asserted above.
    unsafe { std::mem::transmute(sqe) }
}

/// A completion of a request.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "__preload"),
    allow(unreachable_pub, reason = "only that feature exports it")
)]
pub struct Cqe {
    /// The `user_data` of the completed request.
    pub user_data: u64,
    /// A count, or minus an errno.
    pub res: i32,
    /// The kernel's flags (`IORING_CQE_F_…`).
    pub flags: u32,
}

#[cfg_attr(
    not(feature = "__preload"),
    allow(unreachable_pub, reason = "only that feature exports it")
)]
impl Cqe {
    /// Returns whether another CQE follows for the same operation (`IORING_CQE_F_MORE`).
    #[inline]
    pub fn more(&self) -> bool {
        io_uring::cqueue::more(self.flags)
    }

    /// Returns the buffer of the group that the kernel took. A completion with an error may name one, too (trap 4).
    #[inline]
    pub fn buffer_id(&self) -> Option<u16> {
        io_uring::cqueue::buffer_select(self.flags)
    }

    /// Returns whether the socket had more data than was received, or its end (`IORING_CQE_F_SOCK_NONEMPTY`, Linux
    /// 5.19).
    #[cfg(feature = "__preload")]
    pub fn leaves_more(&self) -> bool {
        io_uring::cqueue::sock_nonempty(self.flags)
    }

    /// Returns whether the kernel keeps the named buffer and continues in it (`IORING_CQE_F_BUF_MORE`).
    #[cfg(any(feature = "net", feature = "__preload"))]
    #[inline]
    pub fn keeps_buffer(&self) -> bool {
        io_uring::cqueue::buffer_more(self.flags)
    }
}

/// The kernel's opcodes, and the library's own above the kernel's range.
pub(crate) mod opcode {
    use super::abi;

    pub(crate) const NOP: u8 = abi::Nop::CODE;
    pub(crate) const READ: u8 = abi::Read::CODE;
    pub(crate) const WRITE: u8 = abi::Write::CODE;
    pub(crate) const READV: u8 = abi::Readv::CODE;
    pub(crate) const WRITEV: u8 = abi::Writev::CODE;
    pub(crate) const READ_FIXED: u8 = abi::ReadFixed::CODE;
    pub(crate) const WRITE_FIXED: u8 = abi::WriteFixed::CODE;
    pub(crate) const FSYNC: u8 = abi::Fsync::CODE;
    pub(crate) const SYNC_FILE_RANGE: u8 = abi::SyncFileRange::CODE;
    pub(crate) const OPENAT: u8 = abi::OpenAt::CODE;
    pub(crate) const OPENAT2: u8 = abi::OpenAt2::CODE;
    pub(crate) const CLOSE: u8 = abi::Close::CODE;
    pub(crate) const STATX: u8 = abi::Statx::CODE;
    pub(crate) const FALLOCATE: u8 = abi::Fallocate::CODE;
    pub(crate) const FADVISE: u8 = abi::Fadvise::CODE;
    pub(crate) const RENAMEAT: u8 = abi::RenameAt::CODE;
    pub(crate) const UNLINKAT: u8 = abi::UnlinkAt::CODE;
    pub(crate) const MKDIRAT: u8 = abi::MkDirAt::CODE;
    pub(crate) const LINKAT: u8 = abi::LinkAt::CODE;
    pub(crate) const SYMLINKAT: u8 = abi::SymlinkAt::CODE;
    pub(crate) const GETXATTR: u8 = abi::GetXattr::CODE;
    pub(crate) const FGETXATTR: u8 = abi::FGetXattr::CODE;
    pub(crate) const SETXATTR: u8 = abi::SetXattr::CODE;
    pub(crate) const FSETXATTR: u8 = abi::FSetXattr::CODE;
    pub(crate) const FTRUNCATE: u8 = abi::Ftruncate::CODE;
    pub(crate) const TIMEOUT: u8 = abi::Timeout::CODE;
    pub(crate) const TIMEOUT_REMOVE: u8 = abi::TimeoutRemove::CODE;
    pub(crate) const ASYNC_CANCEL: u8 = abi::AsyncCancel::CODE;
    pub(crate) const ACCEPT: u8 = abi::Accept::CODE;
    pub(crate) const CONNECT: u8 = abi::Connect::CODE;
    pub(crate) const SEND: u8 = abi::Send::CODE;
    pub(crate) const RECV: u8 = abi::Recv::CODE;
    pub(crate) const SENDMSG: u8 = abi::SendMsg::CODE;
    pub(crate) const RECVMSG: u8 = abi::RecvMsg::CODE;
    pub(crate) const POLL_ADD: u8 = abi::PollAdd::CODE;
    pub(crate) const SPLICE: u8 = abi::Splice::CODE;
    pub(crate) const SEND_ZC: u8 = abi::SendZc::CODE;
    #[cfg(feature = "__preload")]
    pub(crate) const FUTEX_WAIT: u8 = abi::FutexWait::CODE;
    /// Not an opcode of the kernel: `getdents64` runs on a blocking thread.
    pub(crate) const GETDENTS: u8 = 0xf0;
    /// Not an opcode of the kernel: the driver's clock completes it.
    pub(crate) const SLEEP: u8 = 0xf1;
    /// Not an opcode of the kernel: a transfer that a ring would do badly or incorrectly runs on a blocking thread.
    pub(crate) const BY_THREAD: u8 = 0xf2;
    /// Not an opcode of the kernel: a caller's closure runs on a blocking thread.
    pub(crate) const RUN: u8 = 0xf3;
    /// Not an opcode of the kernel: `fchmod` and `fchmodat` run on a blocking thread.
    pub(crate) const FCHMODAT: u8 = 0xf4;
    /// Not an opcode of the kernel: `readlinkat` runs on a blocking thread.
    pub(crate) const READLINKAT: u8 = 0xf5;
    /// Not an opcode of the kernel: `copy_file_range` runs on a blocking thread.
    pub(crate) const COPY_FILE_RANGE: u8 = 0xf6;
    /// Not an opcode of the kernel: `utimensat` runs on a blocking thread.
    pub(crate) const UTIMENSAT: u8 = 0xf7;
    /// Not an opcode of the kernel: `listxattr` and `flistxattr` run on a blocking thread.
    pub(crate) const LISTXATTR: u8 = 0xf8;
    /// Not an opcode of the kernel: `removexattr` and `fremovexattr` run on a blocking thread.
    pub(crate) const REMOVEXATTR: u8 = 0xf9;
    /// Not an opcode of the kernel: the calls that copy a file run on a blocking thread.
    pub(crate) const COPY_FILE: u8 = 0xfa;
    /// Not an opcode of the kernel: `realpath` runs on a blocking thread.
    pub(crate) const REALPATH: u8 = 0xfb;
}

/// `IOSQE_FIXED_FILE`: `fd` is a direct descriptor.
pub(crate) const FIXED_FILE: u8 = 1;
/// `IOSQE_ASYNC`: a kernel worker (io-wq) runs the request, without an attempt on the submitting thread.
pub(crate) const ASYNC: u8 = 1 << 4;
/// `IOSQE_CQE_SKIP_SUCCESS`: a CQE is posted only if the entry fails. Since Linux 5.17; before that, EINVAL.
pub(crate) const SKIP_SUCCESS: u8 = 1 << 6;
/// `IORING_TIMEOUT_UPDATE`: TIMEOUT_REMOVE changes the time instead. Since Linux 5.11.
pub(crate) const TIMEOUT_UPDATE: u32 = 1 << 1;
/// `IOSQE_BUFFER_SELECT`: the kernel takes a buffer of the group in `buf_index`.
pub(crate) const BUFFER_SELECT: u8 = 1 << 5;
/// `IORING_RECVSEND_POLL_FIRST`, in `ioprio`: data that is already available is received later, together with other
/// ready events, and not during the submission. Since Linux 5.19.
#[cfg(any(feature = "net", feature = "__preload"))]
pub(crate) const POLL_FIRST: u16 = 1;
/// `IORING_RECV_MULTISHOT`, in `ioprio`: one CQE per received part until the request ends. Since Linux 6.0.
#[cfg(any(feature = "net", feature = "__preload"))]
pub(crate) const RECV_MULTISHOT: u16 = 1 << 1;
/// Poll events: data, or the end of the stream.
pub(crate) const POLL_READ: u32 = (libc::POLLIN | libc::POLLRDHUP) as u32;
#[cfg(feature = "net")]
/// Returns the events as the kernel reads them: the halves are swapped on big-endian machines.
pub(crate) fn poll_mask(events: u32) -> u32 {
    if cfg!(target_endian = "big") {
        events.rotate_left(16)
    } else {
        events
    }
}

/// `IORING_FSYNC_DATASYNC`.
pub(crate) const FSYNC_DATASYNC: u32 = 1;
/// `RWF_DSYNC`: the write is on stable storage when it completes.
pub(crate) const RWF_DSYNC: u32 = libc::RWF_DSYNC as u32;

impl Sqe {
    /// Returns an entry with this opcode and descriptor, all else zero.
    pub fn new(opcode: u8, fd: i32) -> Sqe {
        Sqe {
            opcode,
            fd,
            ..Sqe::default()
        }
    }

    /// Returns a cancel of the operation with the token `target`; it matches at most one operation.
    pub(crate) fn cancel(target: u64, user_data: u64) -> Sqe {
        Sqe {
            addr: target,
            user_data,
            ..Sqe::new(opcode::ASYNC_CANCEL, -1)
        }
    }

    /// Returns a cancel of all operations. Since Linux 5.19; before that, EINVAL, and a drain waits.
    pub(crate) fn cancel_all(user_data: u64) -> Sqe {
        Sqe {
            op_flags: ASYNC_CANCEL_ALL | ASYNC_CANCEL_ANY,
            user_data,
            ..Sqe::new(opcode::ASYNC_CANCEL, -1)
        }
    }
}

/// `IORING_ASYNC_CANCEL_ALL`.
const ASYNC_CANCEL_ALL: u32 = 1;
/// `IORING_ASYNC_CANCEL_ANY`.
pub(crate) const ASYNC_CANCEL_ANY: u32 = 1 << 2;
