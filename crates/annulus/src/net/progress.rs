//! The amount of sent data that a peer has acknowledged, read with a system call.

use std::fmt;
use std::io;
use std::rc::{Rc, Weak};

use super::stream::Stream;
use crate::fd::Socket;
use crate::sys::net;

/// Reports how much of a connection's sent data the peer has acknowledged, also during a send. Made by
/// [`TcpStream::send_progress`](super::TcpStream::send_progress). It does not keep the connection open.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
/// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
/// # let far = listener.accept().await?;
/// let progress = near.send_progress();
/// let before = progress.acknowledged()?.expect("the connection is open");
/// near.send_all("hello").await?;
/// far.recv_exact(vec![0; 5]).await?;
/// let mut now = progress.acknowledged()?.unwrap();
/// while !now.all {
///     annulus::runtime::yield_now().await; // a server compares two results some seconds apart
///     now = progress.acknowledged()?.unwrap();
/// }
/// assert_eq!(now.bytes - before.bytes, 5);
/// # Ok(()) })? }
/// ```
pub struct SendProgress {
    socket: Weak<Socket>,
}

/// A result of [`SendProgress::acknowledged`].
///
/// A client that accepts nothing, and one that is slow:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
/// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
/// # let far = listener.accept().await?;
/// let progress = near.send_progress();
/// let before = progress.acknowledged()?.unwrap();
/// assert!(near.try_send(vec![7; 8 << 20]).is_ok()); // more than the kernel buffers
/// let now = progress.acknowledged()?.unwrap();
/// if !now.all && now.bytes == before.bytes {
///     // Nothing moved since the last look. A server ends the connection after several of those.
/// }
/// near.abort();
/// # drop(far);
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acknowledged {
    /// The number of bytes that the peer's kernel has acknowledged since the connection was made. It never decreases.
    ///
    /// A Unix stream has no such count: the number only changes when the peer reads something.
    pub bytes: u64,
    /// Set if the peer has acknowledged everything that this side's kernel was given.
    pub all: bool,
}

impl SendProgress {
    pub(super) fn of(stream: &Stream) -> SendProgress {
        SendProgress {
            socket: Rc::downgrade(&stream.socket),
        }
    }

    /// Queries the kernel (`TCP_INFO`, or `SIOCOUTQ` for a Unix stream). Returns `None` if the connection has been
    /// closed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// let progress = near.send_progress(); // does not keep the connection open
    /// drop(near);
    /// while progress.acknowledged()?.is_some() {
    ///     annulus::runtime::yield_now().await; // the core closes it soon
    /// }
    /// # drop(far);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn acknowledged(&self) -> io::Result<Option<Acknowledged>> {
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
