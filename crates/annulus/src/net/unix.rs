//! Unix stream sockets.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::acceptor::{Accepted, Acceptor, Incoming};
use super::exact::RecvExact;
use super::listen::ListenOptions;
use super::options::SocketOptions;
use super::receiver::RecvStream;
use super::split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::{Recv, SendAll, Stream};
use super::writer::Writer;
use crate::buf::{IoBuf, IoBufMut};
use crate::error::WholeResult;
use crate::sys::net::{self, Kind};
use crate::sys::on_core::OnCore;

/// A Unix stream listener at a path.
#[derive(Debug)]
pub struct UnixListener {
    acceptor: OnCore<Rc<Acceptor>>,
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
    /// # Errors
    ///
    /// Fails as [`bind`](UnixListener::bind) does.
    pub fn bind_with(path: impl AsRef<Path>, options: &ListenOptions) -> io::Result<UnixListener> {
        let core = super::core()?;
        let address = net::unix(path.as_ref())?;
        let fd = net::socket(&address, Kind::Stream, core.wants_nonblocking())?;
        let socket = core.socket(fd);
        net::bind(socket.raw(), &address)?;
        net::listen(socket.raw(), options.backlog_of_kernel())?;
        Ok(UnixListener {
            acceptor: Acceptor::new(core, socket).into(),
        })
    }

    /// Takes over a listener of std. Several cores may each take over a clone of one listener, and share its
    /// connections.
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        let core = super::core()?;
        let socket = core.socket(OwnedFd::from(listener));
        net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
        Ok(UnixListener {
            acceptor: Acceptor::new(core, socket).into(),
        })
    }

    /// Returns the connections that arrive; see
    /// [`TcpListener::accept_multishot`](super::TcpListener::accept_multishot).
    pub fn accept_multishot(self) -> Incoming<UnixStream> {
        Incoming::new(Rc::clone(&self.acceptor))
    }
}

/// The process at the other end of a Unix stream, at the time when it connected or started to listen.
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
#[derive(Debug)]
pub struct UnixStream(pub(super) Stream);

impl From<Accepted> for UnixStream {
    fn from(Accepted(stream): Accepted) -> UnixStream {
        UnixStream(stream)
    }
}

impl UnixStream {
    /// Connects to the listener at `path`.
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
    /// # Errors
    ///
    /// Fails with any error of `socketpair(2)`, unchanged. Fails if the calling thread is not a runtime core.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let core = super::core()?;
        let (one, other) = net::pair(Kind::Stream, core.wants_nonblocking())?;
        let stream = |fd| UnixStream(Stream::new(Rc::clone(&core), fd));
        Ok((stream(one), stream(other)))
    }

    /// Receives the available bytes; see [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        self.0.recv(buf)
    }

    /// Receives until the buffer is full; see [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        self.0.recv_exact(buf)
    }

    /// Returns a writer that gathers small writes; see [`TcpStream::writer`](super::TcpStream::writer).
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// Borrows the two directions of the stream; see [`TcpStream::split`](super::TcpStream::split).
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(&self.0)
    }

    /// Splits the stream into two owned halves; see [`TcpStream::into_split`](super::TcpStream::into_split).
    pub fn into_split(self) -> (OwnedReadHalf<UnixStream>, OwnedWriteHalf<UnixStream>) {
        split::into_split(self.0)
    }

    /// Receives into the core's buffers; see [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        self.0.recv_multishot()
    }

    /// Sends all of `buf` and returns it; see [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
        self.0.send_all(buf)
    }

    /// Sends all of several buffers, in order, and returns them. A dropped future behaves like a dropped [`SendAll`].
    ///
    /// # Errors
    ///
    /// Fails with any error of `sendmsg(2)`, unchanged. The error contains the buffers.
    pub async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
        self.0.send_vectored_all(bufs).await
    }

    /// Waits until the stream is readable: data, the end of the stream, or an error. Data that has been received but
    /// not read counts.
    ///
    /// # Errors
    ///
    /// Fails with any error of `poll(2)`, unchanged.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// Waits until the stream is writable, or has an error.
    ///
    /// # Errors
    ///
    /// Fails with any error of `poll(2)`, unchanged.
    pub async fn writable(&self) -> io::Result<()> {
        self.0.writable().await
    }

    /// Returns a handle for reading and setting socket options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.0.socket)
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

    /// Starts to send all of `buf` without waiting; see [`TcpStream::try_send`](super::TcpStream::try_send).
    ///
    /// # Errors
    ///
    /// Returns the buffer if another send is under way, or an earlier one has failed.
    #[inline]
    pub fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
        self.0.try_send(buf)
    }

    /// Starts a send like [`try_send`](UnixStream::try_send), and passes the buffer to `then` once all of it has been
    /// sent, or the send has failed. `then` may run before this function returns.
    ///
    /// # Errors
    ///
    /// Returns the buffer if another send is under way, or an earlier one has failed.
    #[inline]
    pub fn try_send_then<B: IoBuf>(&self, buf: B, then: impl FnOnce(B) + 'static) -> Result<(), B> {
        self.0.try_send_then(buf, then)
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that reads nothing. [`Duration::MAX`] is no
    /// limit. The default is the runtime's [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout).
    ///
    /// When the time is over, the peer reads the end of the stream, because a Unix stream can't be reset. Bytes count
    /// as read when the peer has read a whole kernel buffer, which holds up to 32 KiB.
    pub fn set_close_timeout(&self, timeout: Duration) {
        self.0.socket.set_close_timeout(timeout);
    }

    /// Shuts down one direction or both; see [`TcpStream::shutdown`](super::TcpStream::shutdown).
    ///
    /// # Errors
    ///
    /// Fails with any error of `shutdown(2)`, unchanged.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }
}
