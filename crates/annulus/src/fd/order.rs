//! The order of a stream's sends: one at a time, in the order of their first polls (trap 34).

use std::cell::Cell;
use std::net::Shutdown;
use std::task::Waker;

use super::Socket;
use super::line::{Line, Permit, Queued, QueuedTask};
use crate::sys::errno::EPIPE;
use crate::sys::net;

/// The send queue of one socket.
#[derive(Debug, Default)]
pub(crate) struct SendOrder {
    line: Line,
    /// The errno of a failed send whose future was dropped.
    failed: Cell<i32>,
    /// The direction ends (FIN) once the queue is empty.
    ends: Cell<bool>,
}

/// The right to send on a socket, which it keeps open.
pub(crate) type SendPermit = Permit<Socket>;

/// A sender's position in the queue.
pub(crate) type QueuedSend = QueuedTask<Socket>;

impl SendOrder {
    #[inline]
    pub(super) fn failed(&self) -> i32 {
        self.failed.get()
    }

    /// Returns whether a send is under way.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        self.line.is_taken()
    }

    /// Ends the sending direction (FIN) once all queued sends are complete.
    pub(super) fn finish(&self, socket: &Socket) {
        self.ends.set(true);
        self.end_if_idle(socket);
    }

    /// Ends the direction, if that was requested and nothing is left to send.
    #[inline]
    pub(super) fn end_if_idle(&self, socket: &Socket) {
        if self.ends.get() && !self.line.is_taken() && !socket.has_unsent_writer() {
            self.end(socket);
        }
    }

    #[cold]
    fn end(&self, socket: &Socket) {
        self.ends.set(false);
        if socket.is_cut() {
            // A FIN would tell the peer that its data is complete.
            return;
        }
        // The call fails with ENOTCONN if the peer has disconnected; then no FIN is needed.
        let _ = net::shutdown(socket.raw(), Shutdown::Write);
    }
}

impl Queued for Socket {
    #[inline]
    fn line(&self) -> &Line {
        &self.order().line
    }

    #[inline]
    fn idle(&self) {
        self.order().end_if_idle(self);
    }

    fn wake(&self, next: Waker) {
        self.wake_foreign(next);
    }
}

impl SendPermit {
    #[inline]
    pub(crate) fn socket(&self) -> &std::rc::Rc<Socket> {
        self.owner()
    }

    /// Records that an abandoned send has failed, and was not sent whole.
    pub(crate) fn fail(&self, errno: i32) {
        let failed = &self.owner().order().failed;
        if failed.get() == 0 {
            failed.set(errno);
        }
        self.cut(errno);
    }

    /// Records that a send has failed with `errno` after a part of it was sent.
    pub(crate) fn cut(&self, errno: i32) {
        // With EPIPE the direction has ended already: the peer knows, or has disconnected.
        if errno != EPIPE {
            self.owner().cut();
        }
    }
}
