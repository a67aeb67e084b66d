//! # Safety
//!
//! One operation per file: its SQE, the system call it stands for, how the answer is read.
//!
//! The types here name operations in signatures; they are made by [`File`](crate::File) and
//! [`Engine`](crate::Engine). Each implementation owns everything its SQE points to (Lent, Still, Open).
#![allow(unsafe_code)]

#[cfg(feature = "net")]
mod accept;
mod advise;
mod allocate;
mod close;
#[cfg(feature = "net")]
mod connect;
mod fsync;
mod list_dir;
mod mkdir;
mod nop;
mod open;
#[cfg(feature = "net")]
mod poll;
mod read_at;
mod read_vectored_at;
#[cfg(feature = "net")]
mod recv;
#[cfg(feature = "net")]
mod recv_message;
mod rename;
#[cfg(feature = "net")]
mod run_blocking;
#[cfg(feature = "net")]
mod send;
#[cfg(feature = "net")]
mod send_message;
#[cfg(feature = "net")]
mod send_vectored;
#[cfg(feature = "net")]
mod send_zero_copy;
mod sleep;
#[cfg(feature = "net")]
mod socket;
#[cfg(feature = "net")]
mod splice;
mod statx;
mod table;
mod truncate;
mod unlink;
mod vectors;
mod write_at;
mod write_vectored_at;

#[cfg(feature = "net")]
pub use accept::Accept;
pub use advise::{Advice, Advise};
pub use allocate::{Allocate, AllocateMode};
pub use close::Close;
#[cfg(feature = "net")]
pub use connect::Connect;
pub use fsync::Fsync;
pub use list_dir::ListDir;
pub use mkdir::MakeDir;
pub use nop::Nop;
pub use open::OpenAt;
#[cfg(feature = "net")]
pub use poll::Poll;
pub use read_at::ReadAt;
pub use read_vectored_at::ReadVectoredAt;
#[cfg(feature = "net")]
pub use recv::Recv;
#[cfg(feature = "net")]
pub use recv_message::RecvMessage;
pub use rename::Rename;
#[cfg(feature = "net")]
pub use run_blocking::{RunBlocking, RunBlockingError};
#[cfg(feature = "net")]
pub use send::{SendAll, SendThen};
#[cfg(feature = "net")]
pub use send_message::SendMessage;
#[cfg(feature = "net")]
pub use send_vectored::SendVectored;
#[cfg(feature = "net")]
pub use send_zero_copy::SendZeroCopy;
pub use sleep::Sleep;
#[cfg(feature = "net")]
pub use socket::{Interest, SocketOp};
#[cfg(feature = "net")]
pub use splice::Splice;
pub use statx::StatAt;
pub use table::OpInfo;
pub use truncate::Truncate;
pub use unlink::Unlink;
pub use write_at::WriteAt;
pub use write_vectored_at::WriteVectoredAt;

pub(crate) use list_dir::Listed;
pub(crate) use table::{ALL, NAMES, ON_FILES, OperationNumber};

use std::io;

use crate::error::BufError;
use crate::narrow::to_u32;
use crate::sys::errno::{EAGAIN, EINTR, ENOMEM};
use crate::sys::sqe::Sqe;

pub(crate) use crate::sys::cached::READS_PER_STEP;
#[cfg(feature = "net")]
pub(crate) use accept::multishot as accept_multishot;
pub(crate) use read_at::{FAST_PATH_BYTES_MAX, Target, Try, Until, read_cached};
#[cfg(feature = "net")]
pub(crate) use recv::{ReceiveKind, into_group as recv_into_group};
#[cfg(feature = "net")]
pub(crate) use recv::{ReceivePermit, UnreadBuffer};
#[cfg(feature = "net")]
pub(crate) use recv_message::{MessageInfo, ReceiveQueue, ReceivedMessage, Shape};
#[cfg(feature = "net")]
pub(crate) use socket::Refusals;
pub(crate) use statx::{StatResult, Statx};

/// What to do after an answer of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// This is the answer: a count or minus an errno.
    Done(i32),
    /// Ask again, for the rest.
    Again,
}

/// What came of the attempt to answer on the caller's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAttempt {
    /// Nothing was asked.
    NotTried,
    /// It was asked; not all of it was there.
    Missed,
    /// A count.
    Done(i32),
}

/// An operation. Sealed: the implementations are the library's own.
///
/// # Safety
///
/// Lent, Still, Open: everything the SQE points to or names — buffers, paths, vectors, the
/// descriptor — is owned by the op and stays where it is when the op is moved.
#[doc(hidden)]
pub unsafe trait Op: Send + Sized + 'static {
    const INFO: OpInfo;
    type Output: Send;

    /// What io_uring is asked. Called again for the rest of an unfinished transfer.
    fn sqe(&mut self) -> Sqe;

    /// Where it goes: to a ring whose kernel has this opcode, or to a thread that may block.
    #[inline]
    fn opcode(&self) -> u8 {
        Self::INFO.opcode
    }

    /// The same without io_uring, on a thread that may block: a count or minus an errno.
    fn syscall(&mut self) -> i32;

    /// The answer, where it can be had on the caller's thread without blocking.
    fn try_sync(&mut self) -> SyncAttempt {
        SyncAttempt::NotTried
    }

    /// Returns whether `try_sync` may complete the operation.
    fn has_sync_path(&self) -> bool {
        false
    }

    /// Whether it is for the ring that polls devices, where there is one.
    fn is_polled(&self) -> bool {
        false
    }

    /// That ring has refused it: its file is not polled any more.
    fn stop_polling(&mut self) {}

    /// Looks at an answer; most ops take any but an interruption for final.
    fn resume(&mut self, res: i32) -> Resume {
        retry_interrupted(res)
    }

    /// Bytes of buffers lent, for the in-flight limit.
    fn bytes(&self) -> u32 {
        0
    }

    /// Reads the final answer.
    fn complete(self, res: i32) -> Self::Output;

    /// The answer without the op, which stays with the driver (its timeout passed).
    fn on_timeout(error: io::Error) -> Self::Output;
}

/// EINTR: a signal. EAGAIN, ENOMEM: the kernel's own shortage (XFS reads, request memory). None of
/// them reaches the caller unless it comes again and again (traps 43 and 57): `retries_max`.
#[inline]
pub(crate) fn retry_interrupted(res: i32) -> Resume {
    match -res {
        EINTR | EAGAIN | ENOMEM => Resume::Again,
        _ => Resume::Done(res),
    }
}

/// How often in a row an operation that is answered with `res` is asked again before that is its answer: a
/// file that says EAGAIN a hundred times means it, and would keep a driver busy without end; some kernels say
/// ENOMEM once without need (trap 57); each signal is somebody's.
#[inline]
pub(crate) fn retries_max(res: i32) -> u32 {
    match -res {
        ENOMEM => 2,
        EAGAIN => 100,
        _ => u32::MAX,
    }
}

/// The kernel's own bound on one transfer, bytes (`MAX_RW_COUNT`); a longer one comes back short.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// Bytes, or vectors, of one transfer as an SQE has them. Of more than a transfer takes the rest is asked for later.
#[inline]
pub(crate) fn transfer_len(count: usize) -> u32 {
    to_u32(count.min(TRANSFER_MAX))
}

/// The kernel's bound on the vectors of one transfer (`IOV_MAX`).
pub(crate) const VECTORS_MAX: usize = 1024;

/// An exact read met the end of the file.
pub(crate) fn ended<B>(bytes: usize, want: usize, buf: B) -> BufError<B> {
    let what = format!("the file ended after {bytes} of {want} bytes");
    BufError::new(
        io::Error::new(io::ErrorKind::UnexpectedEof, what),
        Some(buf),
    )
}

/// A file stopped taking bytes without an error.
pub(crate) fn refused<B>(bytes: usize, want: usize, buf: B) -> BufError<B> {
    let what = format!("the file took {bytes} of {want} bytes and no more");
    BufError::new(io::Error::new(io::ErrorKind::WriteZero, what), Some(buf))
}
