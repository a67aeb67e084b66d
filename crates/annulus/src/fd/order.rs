//! The order of a stream's sends: one at a time, as they came (trap 34).

use std::cell::Cell;
use std::net::Shutdown;

use super::Socket;
use super::line::{Line, Place, Queued, Turn};
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
pub(crate) type SendTurn = Turn<Socket>;

/// A sender's place in the line.
pub(crate) type SendPlace = Place<Socket>;

impl SendOrder {
    #[inline]
    pub(super) fn failed(&self) -> i32 {
        self.failed.get()
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

impl SendTurn {
    #[inline]
    pub(crate) fn socket(&self) -> &std::rc::Rc<Socket> {
        self.owner()
    }

    /// A send whose future was dropped has failed.
    pub(crate) fn fail(&self, errno: i32) {
        let failed = &self.owner().order().failed;
        if failed.get() == 0 {
            failed.set(errno);
        }
    }
}
