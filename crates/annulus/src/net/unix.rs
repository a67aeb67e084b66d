//! Unix stream sockets.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::listen::ListenOptions;
use super::stream::Stream;
use crate::sys::net::{self, SocketKind};
use crate::sys::on_core::OnCore;

/// A Unix stream listener at a path.
///
/// A path that begins with a NUL byte (`"\0name"`) is an abstract address of Linux, as in Tokio: a name of any bytes
/// without a file, which is free again when its last socket has closed. Streams and datagrams take such paths as well.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("socket");
/// use annulus::net::{UnixListener, UnixStream};
///
/// let listener = UnixListener::bind(&path)?;
/// let client = UnixStream::connect(&path).await?;
/// let server = listener.accept().await?;
/// client.send_all("hello").await?;
/// assert_eq!(server.recv_exact(vec![0; 5]).await?, b"hello");
/// drop(listener);
/// assert!(UnixListener::bind(&path).is_err()); // the path remains
/// std::fs::remove_file(&path)?;
/// UnixListener::bind(&path)?;
/// # Ok(()) })? }
/// ```
#[derive(Debug)]
pub struct UnixListener {
    pub(super) acceptor: OnCore<Rc<Acceptor>>,
}

impl UnixListener {
    /// Listens at `path`, which must not exist. The path remains after the listener has closed.
    ///
    /// # Errors
    ///
    /// Fails with `EADDRINUSE` if the path exists. Fails if the calling thread is not a runtime core.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::bind_with(path, &ListenOptions::new())
    }

    /// Listens at `path` with the backlog of `options`; the other options apply to TCP only. Several cores can listen
    /// at one path with clones of a listener ([`from_std`](UnixListener::from_std)).
    ///
    /// Several cores share a path with clones of one listener of std:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("socket");
    /// use annulus::net::{UnixListener, UnixStream};
    ///
    /// let bound = std::os::unix::net::UnixListener::bind(&path)?;
    /// let listener = UnixListener::from_std(bound.try_clone()?)?; // a clone for each core
    /// let _client = UnixStream::connect(&path).await?;
    /// listener.accept().await?;
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](UnixListener::bind) does.
    pub fn bind_with(path: impl AsRef<Path>, options: &ListenOptions) -> io::Result<UnixListener> {
        let core = super::core()?;
        let address = net::unix(path.as_ref())?;
        let fd = net::socket(&address, SocketKind::Stream, core.wants_nonblocking())?;
        let socket = core.socket(fd);
        net::bind(socket.raw(), &address)?;
        net::listen(socket.raw(), options.backlog_of_kernel())?;
        Ok(UnixListener {
            acceptor: Acceptor::new(core, socket).into(),
        })
    }
}

/// The process at the other end of a Unix stream, at the time when it connected or started to listen.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let peer = far.peer_cred()?;
/// assert_eq!(peer.pid, std::process::id() as i32); // both ends of this pair are in this process
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process id; 0 if the process is not visible from this pid namespace.
    pub pid: i32,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
}

/// A Unix stream; see [`TcpStream`](super::TcpStream).
///
/// The peer's end may live in another process:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::io::Write;
///
/// let (mut child, parent) = std::os::unix::net::UnixStream::pair()?;
/// let parent = annulus::net::UnixStream::from_std(parent)?;
/// std::thread::spawn(move || child.write_all(b"hello")); // stands for the other process
/// assert_eq!(parent.recv_exact(vec![0; 5]).await?, b"hello");
/// assert_eq!(parent.recv(vec![0; 1]).await?.0, 0); // it has closed its end
/// # Ok(()) })? }
/// ```
#[derive(Debug)]
pub struct UnixStream(pub(super) Stream);

impl UnixStream {
    /// Connects to the listener at `path`, which may be an [abstract address](UnixListener). If the future is dropped,
    /// the attempt ends and its socket is closed.
    ///
    /// An abstract address needs no file, and no cleaning up:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{UnixListener, UnixStream};
    ///
    /// let name = format!("\0example-{}", std::process::id());
    /// assert!(UnixStream::connect(&name).await.is_err()); // nothing listens
    /// let listener = UnixListener::bind(&name)?;
    /// UnixStream::connect(&name).await?;
    /// # drop(listener);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `connect(2)`, unchanged. Fails if the calling thread is not a runtime core.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Ok(UnixStream(
            Stream::connect(net::unix(path.as_ref())?).await?,
        ))
    }

    /// Opens two streams that are connected to each other.
    ///
    /// Two tasks of one core, with a stream between them instead of a channel:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UnixStream;
    /// use annulus::runtime;
    ///
    /// let (near, far) = UnixStream::pair()?;
    /// let echo = runtime::spawn(async move {
    ///     let line = far.recv_exact(vec![0; 5]).await?;
    ///     far.send_all(line).await.map_err(std::io::Error::from)
    /// });
    /// near.send_all("hello").await?;
    /// assert_eq!(near.recv_exact(vec![0; 5]).await?, b"hello");
    /// echo.await??;
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `socketpair(2)`, unchanged. Fails if the calling thread is not a runtime core.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let core = super::core()?;
        let (one, other) = net::pair(SocketKind::Stream, core.wants_nonblocking())?;
        let stream = |fd| UnixStream(Stream::new(Rc::clone(&core), fd));
        Ok((stream(one), stream(other)))
    }

    /// Returns the credentials of the process that connected, or that listens.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        let (pid, uid, gid) = net::peer_credentials(self.0.socket.raw())?;
        Ok(PeerCredentials { pid, uid, gid })
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that reads nothing. [`Duration::MAX`] is no
    /// limit. The default is the runtime's [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout).
    ///
    /// When the time is over, the peer reads the end of the stream, because a Unix stream can't be reset. Bytes count
    /// as read when the peer has read a whole kernel buffer, which holds up to 32 KiB.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// near.set_close_timeout(std::time::Duration::from_secs(2));
    /// assert!(near.try_send(vec![7; 1 << 20]).is_ok());
    /// drop(near); // goes on sending, while the peer reads something every 2 s
    /// assert_eq!(far.recv_exact(vec![0; 1 << 20]).await?.len(), 1 << 20);
    /// # Ok(()) })? }
    /// ```
    pub fn set_close_timeout(&self, timeout: Duration) {
        self.0.socket.set_close_timeout(timeout);
    }
}
