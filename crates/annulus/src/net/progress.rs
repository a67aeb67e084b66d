//! How far a connection's sends have come: what its peer has acknowledged, asked by a system call.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};

use super::stream::Stream;
use crate::fd::Socket;
use crate::sys::net;

/// Tells how much of a connection's sends its peer has acknowledged, also while a send is under way. Made by
/// [`TcpStream::send_progress`](super::TcpStream::send_progress). Does not keep the connection open.
pub struct SendProgress {
    socket: Weak<Socket>,
}

/// What a [`SendProgress`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acknowledged {
    /// The bytes that the peer's kernel has acknowledged since the connection was made, which only grows. A Unix stream
    /// has no such count: a number that changes when the peer takes something.
    pub bytes: u64,
    /// Whether these are all that this side's kernel has been given to send.
    pub all: bool,
}

impl SendProgress {
    pub(super) fn of(stream: &Stream) -> SendProgress {
        SendProgress {
            socket: Rc::downgrade(&stream.socket),
        }
    }

    /// Asks the kernel (`TCP_INFO`, or `SIOCOUTQ` for a Unix stream). `None` when the connection has been closed.
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn look(&self) -> io::Result<Option<Acknowledged>> {
        let Some(socket) = self.socket.upgrade() else {
            return Ok(None);
        };
        let (bytes, all) = net::acknowledged(socket.raw())?;
        Ok(Some(Acknowledged { bytes, all }))
    }
}

impl fmt::Debug for SendProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendProgress")
            .field(&self.socket.upgrade())
            .finish()
    }
}
