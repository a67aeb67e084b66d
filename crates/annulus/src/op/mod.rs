//! The types of operations, which appear in signatures. [`File`](crate::File) and [`Engine`](crate::Engine) make them.
//!
//! An operation that is kept in a struct names its type:
//!
//! ```
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let engine = annulus::Engine::new()?;
//! # std::fs::write(dir.path().join("data"), "0123")?;
//! use annulus::op::ReadAt;
//! use annulus::{BufResult, Operation};
//!
//! struct Ahead<'a> {
//!     page: Operation<'a, ReadAt<Vec<u8>>, BufResult<usize, Vec<u8>>>,
//! }
//! let file = engine.open(dir.path().join("data")).await?;
//! let ahead = Ahead { page: file.read_at(vec![0; 4096], 0) };
//! let (bytes, _) = ahead.page.await?;
//! assert_eq!(bytes, 4);
//! # Ok(()) }) }
//! ```
//!
//! # Safety
//!
//! One operation per file: its SQE, the equivalent system call, and how its result is read. Each implementation owns
//! everything that its SQE points to (Lent, Still, Open).
#![allow(unsafe_code)]

#[cfg(feature = "net")]
mod accept;
mod advise;
mod allocate;
mod at;
mod canonicalize;
mod close;
#[cfg(feature = "net")]
mod connect;
mod copy_file;
mod copy_range;
mod fsync;
mod get_xattr;
mod link;
mod list_dir;
mod list_xattrs;
mod mkdir;
mod nop;
mod open;
#[cfg(feature = "net")]
mod poll;
mod read_at;
mod read_file;
mod read_link;
#[cfg(feature = "net")]
mod recv;
#[cfg(feature = "net")]
mod recv_message;
mod remove_xattr;
mod rename;
mod retry;
#[cfg(any(feature = "net", feature = "tokio"))]
mod run_blocking;
#[cfg(feature = "net")]
mod send;
#[cfg(feature = "net")]
mod send_message;
#[cfg(feature = "net")]
mod send_vectored;
#[cfg(feature = "net")]
mod send_zero_copy;
mod set_permissions;
mod set_times;
mod set_xattr;
mod shape;
mod sleep;
#[cfg(feature = "net")]
mod socket;
#[cfg(feature = "net")]
mod splice;
mod split_range;
mod statx;
#[cfg(feature = "tokio")]
mod std_metadata;
mod symlink;
mod sync_range;
mod table;
mod transfer;
mod truncate;
mod unlink;
mod xattr_buffer;

pub use advise::{Advice, Advise};
pub use allocate::{Allocate, AllocateMode};
pub use canonicalize::Canonicalize;
pub use close::Close;
pub(crate) use copy_file::CopyFile;
pub use copy_range::CopyRange;
pub use fsync::Fsync;
pub use get_xattr::GetXattr;
pub use link::Link;
pub use list_dir::ListDir;
pub use list_xattrs::ListXattrs;
pub use mkdir::MakeDir;
pub use nop::Nop;
pub use open::OpenAt;
pub use read_at::ReadAt;
pub use read_file::ReadFile;
pub use read_link::ReadLink;
pub use remove_xattr::RemoveXattr;
pub use rename::Rename;
#[cfg(any(feature = "net", feature = "tokio"))]
pub use run_blocking::{RunBlocking, RunBlockingError};
pub use set_permissions::SetPermissions;
pub use set_times::SetTimes;
pub use set_xattr::SetXattr;
pub use sleep::Sleep;
pub use statx::StatAt;
pub use symlink::Symlink;
pub use sync_range::{SyncRange, SyncRangeMode};
pub use table::OpInfo;
pub use transfer::{ReadVectoredAt, WriteAt, WriteVectoredAt};
pub use truncate::Truncate;
pub use unlink::Unlink;

pub(crate) use at::At;
pub(crate) use list_dir::{Listed, Piece};
pub(crate) use open::OpenedFd;
pub(crate) use table::{ALL, NAMES, ON_FILES, OperationNumber};

#[doc(hidden)]
pub use crate::error::Failure;
pub(crate) use crate::error::{ended, refused};

use std::io;
use std::time::Duration;

use crate::narrow::to_u32;
use crate::sys::errno::check;
use crate::sys::sqe::Sqe;

pub(crate) use crate::sys::cached::READS_PER_STEP;
#[cfg(feature = "net")]
pub(crate) use accept::{Accept, multishot as accept_multishot};
#[cfg(feature = "net")]
pub(crate) use connect::Connect;
#[cfg(feature = "net")]
pub(crate) use poll::Poll;
pub(crate) use read_at::{FAST_PATH_BYTES_MAX, ReadMemory, Try, Until, read_cached};
pub(crate) use read_file::FileRead;
#[cfg(feature = "net")]
pub(crate) use recv::{
    ReceiveKind, ReceivePermit, Recv, UnreadBuffer, into_group as recv_into_group,
};
#[cfg(feature = "net")]
pub(crate) use recv_message::{MessageInfo, ReceiveQueue, ReceivedMessage, RecvMessage, Shape};
pub(crate) use retry::{REFUSALS_MAX, Refusals, retry_interrupted};
#[cfg(feature = "net")]
pub(crate) use send::{SendAll, SendThen};
#[cfg(feature = "net")]
pub(crate) use send_message::SendMessage;
#[cfg(feature = "net")]
pub(crate) use send_vectored::SendVectored;
#[cfg(feature = "net")]
pub(crate) use send_zero_copy::SendZeroCopy;
#[cfg(feature = "net")]
pub(crate) use socket::{Interest, SocketOp};
#[cfg(feature = "net")]
pub(crate) use splice::Splice;
pub(crate) use statx::{StatResult, Statx};
#[cfg(feature = "tokio")]
pub(crate) use std_metadata::StdMetadata;

/// The next step after a result of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resume {
    /// The operation is complete with this result: a count, or a negative errno.
    Done(i32),
    /// Submit the operation again, for the rest.
    Again,
    /// Submit the operation's next request, which is no repetition.
    Next,
}

/// The outcome of the non-blocking fast path on the caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyncAttempt {
    /// No attempt was made.
    NotTried,
    /// The attempt was made, and not all data was available.
    Missed,
    /// The operation is complete with this count.
    Done(i32),
}

/// The output of an operation. Separate from [`Op`], so that it places no condition on a buffer's lifetimes.
#[doc(hidden)]
pub trait Returns {
    type Output;
}

/// An operation: its request to the kernel, and the reading of the kernel's results. Sealed: only this crate
/// implements it. [`FileOp`] and `SocketOp` add what replaces the ring, and which driver runs the operation.
///
/// # Safety
///
/// Lent, Still, Open: the op owns everything that the SQE points to or names (buffers, paths, vectors, the
/// descriptor), and moving the op does not move it.
#[doc(hidden)]
pub unsafe trait Op: Returns + Sized + 'static {
    const INFO: OpInfo;

    /// Returns the SQE. Called again for the rest of an unfinished transfer.
    fn sqe(&mut self) -> Sqe;

    /// Decides what to do after a result. By default, every result except an interruption is final.
    fn resume(&mut self, res: i32) -> Resume {
        retry_interrupted(res)
    }

    /// Returns the output for the final result.
    fn complete(self, res: i32) -> Self::Output;
}

/// An operation that any thread may submit and run: on a ring, or as a system call on a thread that may block.
#[doc(hidden)]
pub trait FileOp: Op<Output: Failure + Send> + Send {
    /// Returns the opcode that selects the ring, if its kernel supports the opcode, or else a blocking thread.
    #[inline]
    fn opcode(&self) -> u8 {
        Self::INFO.opcode
    }

    /// Runs the operation as a system call on a thread that may block. Returns a count or a negative errno.
    fn syscall(&mut self) -> i32;

    /// Attempts the operation on the caller's thread without blocking.
    fn try_sync(&mut self) -> SyncAttempt {
        SyncAttempt::NotTried
    }

    /// Returns whether `try_sync` may complete the operation.
    fn has_sync_path(&self) -> bool {
        false
    }

    /// Takes a timeout into account. Returns the time after which the driver completes the operation.
    fn limit(&mut self, timeout: Duration) -> Duration {
        timeout
    }

    /// Returns whether the operation goes to the ring that polls devices, if one exists.
    fn is_polled(&self) -> bool {
        false
    }

    /// Called when that ring has refused the operation: its file is not polled any more.
    fn stop_polling(&mut self) {}

    /// Returns the size of the lent buffers, for the in-flight limit, bytes.
    fn bytes(&self) -> u32 {
        0
    }
}

#[cfg(test)]
impl Failure for i32 {
    fn failure(error: io::Error) -> i32 {
        -crate::sys::engine_error::code_of(&error).unwrap_or_default()
    }
}

/// A file operation whose result is only success or an error.
///
/// # Safety
///
/// As for [`Op`].
#[doc(hidden)]
pub unsafe trait UnitOp: Send + Sized + 'static {
    const INFO: OpInfo;

    /// Returns the SQE.
    fn sqe(&mut self) -> Sqe;

    /// Runs the operation as a system call on a thread that may block. Returns 0 or a negative errno.
    fn syscall(&mut self) -> i32;

    /// Decides what to do after a result.
    fn resume(&mut self, res: i32) -> Resume {
        retry_interrupted(res)
    }
}

// SAFETY: Lent, Still, Open: `UnitOp` has the same contract.
unsafe impl<T: UnitOp> Op for T {
    const INFO: OpInfo = <T as UnitOp>::INFO;

    #[inline]
    fn sqe(&mut self) -> Sqe {
        UnitOp::sqe(self)
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        UnitOp::resume(self, res)
    }

    #[inline]
    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }
}

impl<T: UnitOp> Returns for T {
    type Output = io::Result<()>;
}

impl<T: UnitOp> FileOp for T {
    fn syscall(&mut self) -> i32 {
        UnitOp::syscall(self)
    }
}

/// The kernel's limit on one transfer, bytes (`MAX_RW_COUNT`). A longer transfer is cut short.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// Returns the bytes, or vectors, of one transfer as an SQE field. The rest is transferred later.
#[inline]
pub(crate) fn transfer_len(count: usize) -> u32 {
    to_u32(count.min(TRANSFER_MAX))
}

/// The kernel's limit on the vectors of one transfer (`IOV_MAX`).
pub(crate) const VECTORS_MAX: usize = 1024;
