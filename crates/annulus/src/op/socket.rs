//! # Safety
//!
//! What an operation on a socket is. Unlike those on files it stays on its core's thread, and its
//! fallback is a system call that does not wait: the driver waits until the socket is ready.
#![allow(unsafe_code)]

use std::rc::Rc;

use super::{OpInfo, Resume, retries_max, retry_interrupted};
use crate::fd::Socket;
use crate::sys::errno::EAGAIN;
use crate::sys::sqe::Sqe;

/// What a socket has to become before an operation can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// There is data, an end, or a connection to accept.
    Read,
    /// There is room, or the connection has been made.
    Write,
}

/// An operation on a socket. Sealed: the implementations are the library's own.
///
/// # Safety
///
/// Lent, Still, Open: everything the SQE points to or names is owned by the op and stays where it is
/// when the op is moved.
#[doc(hidden)]
pub unsafe trait SocketOp: Sized + 'static {
    const INFO: OpInfo;
    const INTEREST: Interest;
    /// It goes on when its future is dropped; else it is cancelled.
    const GOES_ON: bool = false;
    type Output;

    #[doc(hidden)]
    #[expect(private_interfaces)]
    fn socket(&self) -> &Rc<Socket>;

    /// What `socket` has to become, where that is not the same for all of its kind.
    fn interest(&self) -> Interest {
        Self::INTEREST
    }

    /// What io_uring is asked. Called again for the rest of an unfinished transfer.
    fn sqe(&mut self) -> Sqe;

    /// The same by a system call that does not wait: a count, or minus an errno; minus EAGAIN if the
    /// socket is not ready.
    fn attempt(&mut self) -> i32;

    /// Whether this answer of `attempt` says that the socket is not ready.
    fn is_unready(&self, res: i32) -> bool {
        res == -EAGAIN
    }

    /// Looks at an answer.
    fn resume(&mut self, res: i32) -> Resume {
        retry_interrupted(res)
    }

    /// The notification of a zero-copy send has come, and says what the kernel did. The answer follows.
    fn noticed(&mut self, _usage: i32) {}

    /// Reads the final answer.
    fn complete(self, res: i32) -> Self::Output;

    /// The core ends, and the kernel, which has answered `res`, keeps the memory until the peer has confirmed what is
    /// in it.
    fn kept_at_end(&self, _res: i32) {}

    /// It stays with a kernel that does not answer any more: nothing of it goes on.
    fn left_behind(&self) {}

    /// The final answer, when nobody waits for it any more.
    fn abandoned(self, res: i32) {
        drop(self.complete(res));
    }
}

/// Counts the refusals of one operation that is tried on the calling thread.
#[derive(Debug, Default)]
pub(crate) struct Refusals(u8);

impl Refusals {
    /// Decides what to do after `res`, for which the operation chose `resume`.
    #[inline]
    pub(crate) fn judge(&mut self, res: i32, resume: Resume) -> Resume {
        if resume != Resume::Again {
            return resume;
        }
        if res >= 0 {
            self.0 = 0;
            return Resume::Again;
        }
        if u32::from(self.0) >= retries_max(res) {
            return Resume::Done(res);
        }
        self.0 = self.0.saturating_add(1);
        Resume::Again
    }
}
