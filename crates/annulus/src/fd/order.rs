//! The order of a stream's sends: one at a time, as they came (trap 34).

use std::cell::Cell;
use std::net::Shutdown;

use super::Socket;
use super::line::{Line, Permit, Queued, QueuedTask};
use crate::sys::errno::EPIPE;
use crate::sys::net;

/// The senders of one socket.
#[derive(Debug, Default)]
pub(crate) struct SendOrder {
    line: Line,
    /// The errno of a send whose future was dropped.
    failed: Cell<i32>,
    /// Nothing follows what is in the line: the peer is to be told then.
    ends: Cell<bool>,
}

/// The right to send on a socket, which it keeps open.
pub(crate) type SendPermit = Permit<Socket>;

/// A sender's ticket in the queue.
pub(crate) type QueuedSend = QueuedTask<Socket>;

impl SendOrder {
    #[inline]
    pub(super) fn failed(&self) -> i32 {
        self.failed.get()
    }

    /// Whether somebody sends.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.line.is_busy()
    }

    /// The peer is told that nothing follows, when all who are in the line have sent.
    pub(super) fn finish(&self, socket: &Socket) {
        self.ends.set(true);
        if !self.line.is_busy() {
            self.end(socket);
        }
    }

    #[cold]
    fn end(&self, socket: &Socket) {
        self.ends.set(false);
        if socket.is_cut() {
            // An end would say that nothing is missing.
            return;
        }
        // Refused (ENOTCONN), the peer has gone, and needs not be told.
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
        let order = self.order();
        if order.ends.get() {
            order.end(self);
        }
    }
}

impl SendPermit {
    #[inline]
    pub(crate) fn socket(&self) -> &std::rc::Rc<Socket> {
        self.owner()
    }

    /// A send that nobody waits for has failed, and was not sent whole.
    pub(crate) fn fail(&self, errno: i32) {
        let failed = &self.owner().order().failed;
        if failed.get() == 0 {
            failed.set(errno);
        }
        self.cut(errno);
    }

    /// A send has ended by `errno` when a part of it was sent.
    pub(crate) fn cut(&self, errno: i32) {
        // The direction has ended already: the peer has been told so, or is gone.
        if errno != EPIPE {
            self.owner().cut();
        }
    }
}
