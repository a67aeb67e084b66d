//! Unix datagram sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::datagram::{DatagramReceiver, Received};
use crate::buf::{IoBuf, IoBufMut};
use crate::driver::core::SocketOperation;
use crate::error::{BufError, BufResult, WholeResult};
use crate::op::Connect;
use crate::sys::message::UNIX_NAME_BYTES;
use crate::sys::net::{self, SocketKind};

/// A datagram socket within the machine. It stays on its core. Datagrams are neither lost nor reordered: a send waits
/// until the receiver has space. Paths may be [abstract addresses](super::UnixListener).
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let dir = tempfile::tempdir()?; let (log, from) = (dir.path().join("log"), dir.path().join("from"));
/// use annulus::net::UnixDatagram;
///
/// let server = UnixDatagram::bind(&log)?;
/// let (named, unnamed) = (UnixDatagram::bind(&from)?, UnixDatagram::unbound()?);
/// named.send_to("one", &log).await?;
/// unnamed.send_to("two", &log).await?;
/// let (first, buf) = server.recv_from(vec![0; 64]).await?;
/// assert_eq!(first.from.as_deref(), Some(from.as_path()));
/// let (second, _) = server.recv_from(buf).await?;
/// assert_eq!(second.from, None); // no path to reply to
/// # Ok(()) })? }
/// ```
#[derive(Debug)]
pub struct UnixDatagram(pub(super) Rc<DatagramReceiver>);

impl UnixDatagram {
    /// Opens a socket at `path`, which must not exist. The path remains after the socket has closed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("socket");
    /// use annulus::net::UnixDatagram;
    ///
    /// drop(UnixDatagram::bind(&path)?);
    /// let error = UnixDatagram::bind(&path).unwrap_err(); // the path remains
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// std::fs::remove_file(&path)?;
    /// UnixDatagram::bind(&path)?;
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `EADDRINUSE` if the path exists. Fails if the calling thread is not a runtime core.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let address = net::unix(path.as_ref())?;
        let socket = UnixDatagram::unbound()?;
        net::bind(socket.0.socket.raw(), &address)?;
        Ok(socket)
    }

    /// Opens a socket without a path. It can send, but its peers can't reply.
    ///
    /// # Errors
    ///
    /// Fails with `EMFILE` if descriptors have run out. Fails if the calling thread is not a runtime core.
    pub fn unbound() -> io::Result<UnixDatagram> {
        let core = super::core()?;
        let fd = net::unix_socket(SocketKind::Datagram, core.wants_nonblocking())?;
        UnixDatagram::of(fd)
    }

    /// Opens two sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// Fails with any error of `socketpair(2)`, unchanged. Fails if the calling thread is not a runtime core.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let core = super::core()?;
        let (one, other) = net::pair(SocketKind::Datagram, core.wants_nonblocking())?;
        Ok((UnixDatagram::of(one)?, UnixDatagram::of(other)?))
    }

    fn of(fd: OwnedFd) -> io::Result<UnixDatagram> {
        let core = super::core()?;
        let socket = core.socket(fd);
        Ok(UnixDatagram(DatagramReceiver::new(
            core,
            socket,
            UNIX_NAME_BYTES,
        )))
    }

    /// Sets the peer: from now on, the socket sends to `path` and receives only from there.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("socket");
    /// use annulus::net::UnixDatagram;
    ///
    /// let socket = UnixDatagram::unbound()?;
    /// assert!(socket.connect(&path).await.is_err()); // no socket is open there yet
    /// let server = UnixDatagram::bind(&path)?;
    /// socket.connect(&path).await?;
    /// socket.send("hello").await?;
    /// assert_eq!(server.recv(vec![0; 64]).await?.0, 5);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `ECONNREFUSED` if no socket is open at `path`.
    pub async fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let address = net::unix(path.as_ref())?;
        let connect = Connect::new(Rc::clone(&self.0.socket), address);
        SocketOperation::new(Rc::clone(&self.0.core), connect).await?;
        self.0.to_path.set(true);
        Ok(())
    }

    /// Sends `buf` as one datagram to the socket at `path` and returns it. Waits while the queue of that socket is
    /// full; a future that is dropped meanwhile sends nothing.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UnixDatagram;
    ///
    /// let socket = UnixDatagram::unbound()?;
    /// let error = socket.send_to(b"lost".to_vec(), "/nonexistent/socket").await.unwrap_err();
    /// assert_eq!(error.error().kind(), std::io::ErrorKind::NotFound);
    /// assert_eq!(error.into_buf().unwrap(), b"lost"); // for another attempt
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `EMSGSIZE` if the buffer is longer than the send buffer, and with `ECONNREFUSED` if no socket is
    /// open at `path`. The error contains the buffer.
    pub async fn send_to<B: IoBuf>(&self, buf: B, path: impl AsRef<Path>) -> WholeResult<B> {
        match net::unix(path.as_ref()) {
            Ok(address) => self.0.send(buf, Some(&address)).await,
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }

    /// Receives a datagram into `buf`. Returns its length and the sender's path; `None` if the sender has no path.
    ///
    /// Receives of several tasks complete in the order of their first polls. A future that is neither polled to its
    /// end nor dropped therefore blocks those behind it.
    ///
    /// Dropping the future loses no datagram: one that arrives for it is returned by the next receive, truncated to
    /// the length of the dropped buffer, with `is_truncated` set.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("client");
    /// use annulus::net::UnixDatagram;
    ///
    /// let (server, client) = (UnixDatagram::bind(dir.path().join("server"))?, UnixDatagram::bind(&path)?);
    /// client.send_to("question", dir.path().join("server")).await?;
    /// let (received, buf) = server.recv_from(vec![0; 4]).await?;
    /// assert!(received.is_truncated && &buf[..] == b"ques");
    /// let client_path = received.from.expect("it is bound to a path");
    /// server.send_to("answer", client_path).await?;
    /// assert_eq!(client.recv(vec![0; 64]).await?.0, 6);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `recvmsg(2)`, unchanged. The error contains the buffer.
    pub async fn recv_from<B: IoBufMut>(&self, buf: B) -> BufResult<Received<Option<PathBuf>>, B> {
        let (received, buf) = self.0.recv(buf).await?;
        let received = Received {
            bytes: received.bytes,
            from: received.from.and_then(net::to_path),
            is_truncated: received.is_truncated,
        };
        Ok((received, buf))
    }
}
