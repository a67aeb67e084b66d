//! An open socket of one core: counted by whoever uses it, closed with the last of them (Open). It stays
//! on the core's thread.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

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
}

impl Socket {
    /// Takes over `fd`.
    pub(crate) fn new(fd: OwnedFd, closer: Rc<dyn CloseSocket>) -> Rc<Socket> {
        Rc::new(Socket {
            raw: fd.into_raw_fd(),
            closer,
            watched: Cell::new(None),
        })
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.raw
    }

    #[inline]
    pub(crate) fn watched(&self) -> Option<u32> {
        self.watched.get()
    }

    pub(crate) fn set_watched(&self, place: u32) {
        self.watched.set(Some(place));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.closer.close(self.raw, self.watched.get());
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.raw)
    }
}
