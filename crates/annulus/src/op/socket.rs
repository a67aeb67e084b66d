//! The trait of socket operations. Unlike a file operation, a socket operation stays on its core's thread. Its
//! fallback is a nonblocking system call: the driver waits until the socket is ready.

use std::rc::Rc;

use super::Op;
use crate::fd::Socket;
use crate::sys::errno::EAGAIN;

/// The readiness that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Readable: data, the end of the stream, or a connection to accept.
    Read,
    /// Writable: space in the send buffer, or an established connection.
    Write,
}

/// An operation on a socket.
pub(crate) trait SocketOp: Op {
    const INTEREST: Interest = Interest::Read;
    /// Set if the operation continues when its future is dropped; otherwise it is cancelled.
    const CONTINUES_AFTER_DROP: bool = false;

    fn socket(&self) -> &Rc<Socket>;

    /// Returns the readiness that this operation needs, if it is not the same for all of its type.
    fn interest(&self) -> Interest {
        Self::INTEREST
    }

    /// Runs the operation as a nonblocking system call. Returns a count or a negative errno: EAGAIN if the socket is
    /// not ready.
    fn attempt(&mut self) -> i32;

    /// Returns whether this result of `attempt` means that the socket is not ready.
    fn is_unready(&self, res: i32) -> bool {
        res == -EAGAIN
    }

    /// Called with the notification of a zero-copy send, which reports what the kernel did. The result follows.
    fn on_zero_copy_notice(&mut self, _usage: i32) {}

    /// Called when the core ends and the kernel, which has completed with `res`, still uses the memory until the peer
    /// has acknowledged the data.
    fn on_core_end(&self, _res: i32) {}

    /// Called when the operation is leaked, because the kernel does not complete it.
    fn on_leak(&self) {}

    /// Handles the final result of an operation whose future was dropped.
    fn on_drop(self, res: i32) {
        drop(self.complete(res));
    }
}
