//! An open socket of one core: counted by whoever uses it, closed with the last of them (Open). It stays
//! on the core's thread.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use super::order::SendOrder;

/// Who closes a core's sockets.
pub(crate) trait CloseSocket {
    /// Nothing uses the descriptor any more. `watched`: the name it is polled under.
    fn close(&self, raw: RawFd, watched: Option<u32>);
}

/// An open socket.
pub(crate) struct Socket {
    raw: RawFd,
    closer: Rc<dyn CloseSocket>,
    /// Where its readiness is kept, on a core without a ring.
    watched: Cell<Option<u32>>,
    /// Whose turn to send it is.
    order: SendOrder,
    zero_copy: Cell<ZeroCopy>,
    /// Whether a ring's socket has been told not to wait: see `net::file`.
    never_waits: Cell<bool>,
    /// Its last operation is with the kernel and somebody else closes it.
    given_up: Cell<bool>,
}

/// How a socket's zero-copy sends are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopy {
    /// With a report whether there was a copy after all.
    Reported,
    /// Without it: the kernel does not know that yet.
    Unreported,
    /// Not at all: the kernel has refused, or copies anyway.
    Never,
}

impl Socket {
    /// Takes over `fd`.
    pub(crate) fn new(fd: OwnedFd, closer: Rc<dyn CloseSocket>) -> Rc<Socket> {
        Rc::new(Socket {
            raw: fd.into_raw_fd(),
            closer,
            watched: Cell::new(None),
            order: SendOrder::default(),
            zero_copy: Cell::new(ZeroCopy::Reported),
            never_waits: Cell::new(false),
            given_up: Cell::new(false),
        })
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.raw
    }

    #[inline]
    pub(super) fn order(&self) -> &SendOrder {
        &self.order
    }

    /// The errno of a send that nobody waited for, or 0. What was to follow it can't be sent either.
    #[inline]
    pub(crate) fn send_failed(&self) -> i32 {
        self.order.failed()
    }

    /// Tells the peer that nothing follows, once all that is being sent, or waits for its turn, has been.
    pub(crate) fn finish_sending(&self) {
        self.order.finish(self);
    }

    #[inline]
    pub(crate) fn watched(&self) -> Option<u32> {
        self.watched.get()
    }

    pub(crate) fn zero_copy(&self) -> ZeroCopy {
        self.zero_copy.get()
    }

    pub(crate) fn set_zero_copy(&self, way: ZeroCopy) {
        self.zero_copy.set(way);
    }

    #[inline]
    pub(crate) fn never_waits(&self) -> bool {
        self.never_waits.get()
    }

    pub(crate) fn set_never_waits(&self, never: bool) {
        self.never_waits.set(never);
    }

    /// Leaves the closing to the caller: behind the last operation, which alone has the socket.
    pub(crate) fn give_up(&self) -> RawFd {
        self.given_up.set(true);
        self.raw
    }

    /// Whether its number may be another file's by now: nothing more may be asked of it.
    #[inline]
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.get()
    }

    pub(crate) fn set_watched(&self, place: u32) {
        self.watched.set(Some(place));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.given_up.get() {
            self.closer.close(self.raw, self.watched.get());
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.raw)
    }
}
