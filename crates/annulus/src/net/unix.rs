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

/// A listener at a path.
#[derive(Debug)]
pub struct UnixListener {
    acceptor: Rc<Acceptor>,
}

impl UnixListener {
    /// Listens at `path`, which must not exist; it stays when the listener goes.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: there is something at that path.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixListener> {
        UnixListener::bind_with(path, &ListenOptions::new())
    }

    /// As [`bind`](UnixListener::bind), with a backlog. The other options are TCP's: several cores listen at a path by
    /// clones of one listener ([`from_std`](UnixListener::from_std)).
    ///
    /// # Errors
    ///
    /// As for [`bind`](UnixListener::bind).
    pub fn bind_with(path: impl AsRef<Path>, options: &ListenOptions) -> io::Result<UnixListener> {
        let core = super::core()?;
        let address = net::unix(path.as_ref())?;
        let fd = net::socket(&address, Kind::Stream, core.wants_nonblocking())?;
        let socket = core.socket(fd);
        net::bind(socket.raw(), &address)?;
        net::listen(socket.raw(), options.backlog_of_kernel())?;
        Ok(UnixListener {
            acceptor: Acceptor::new(core, socket),
        })
    }

    /// Takes over std's listener; clones of one may be given to several cores, which then take turns.
    ///
    /// # Errors
    ///
    /// Outside a runtime.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
        let core = super::core()?;
        let socket = core.socket(OwnedFd::from(listener));
        net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
        Ok(UnixListener {
            acceptor: Acceptor::new(core, socket),
        })
    }

    /// Accepts all connections that come; see
    /// [`TcpListener::accept_multishot`](super::TcpListener::accept_multishot).
    pub fn accept_multishot(self) -> Incoming<UnixStream> {
        Incoming::new(Rc::clone(&self.acceptor))
    }
}

/// Who is at the other end of a Unix stream, as it was when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process; 0 for one that is not visible from here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// A connection to or from a path; see [`TcpStream`](super::TcpStream).
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
    /// What `connect(2)` says.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
        Ok(UnixStream(
            Stream::connect(net::unix(path.as_ref())?).await?,
        ))
    }

    /// Two streams, connected to each other.
    ///
    /// # Errors
    ///
    /// What `socketpair(2)` says.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let core = super::core()?;
        let (one, other) = net::pair(Kind::Stream, core.wants_nonblocking())?;
        let stream = |fd| UnixStream(Stream::new(Rc::clone(&core), fd));
        Ok((stream(one), stream(other)))
    }

    /// As [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        self.0.recv(buf)
    }

    /// As [`TcpStream::recv_exact`](super::TcpStream::recv_exact).
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        self.0.recv_exact(buf)
    }

    /// As [`TcpStream::writer`](super::TcpStream::writer).
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// As [`TcpStream::split`](super::TcpStream::split).
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(&self.0)
    }

    /// As [`TcpStream::into_split`](super::TcpStream::into_split).
    pub fn into_split(self) -> (OwnedReadHalf<UnixStream>, OwnedWriteHalf<UnixStream>) {
        split::into_split(self.0)
    }

    /// As [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        self.0.recv_multishot()
    }

    /// As [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
        self.0.send_all(buf)
    }

    /// Sends all of several buffers, which come back, one after the other. What holds for a
    /// [`Send`] that is dropped holds for this.
    ///
    /// # Errors
    ///
    /// What `sendmsg(2)` says.
    pub async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
        self.0.send_vectored_all(bufs).await
    }

    /// Ready when there is something to read, an end, or an error.
    ///
    /// # Errors
    ///
    /// What `poll(2)` says.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await
    }

    /// Ready when there is room to write, or an error.
    ///
    /// # Errors
    ///
    /// What `poll(2)` says.
    pub async fn writable(&self) -> io::Result<()> {
        self.0.writable().await
    }

    /// Its options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.0.socket)
    }

    /// Who connected, or who listens.
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        let (pid, uid, gid) = net::peer_credentials(self.0.socket.raw())?;
        Ok(PeerCredentials { pid, uid, gid })
    }

    /// As [`TcpStream::try_send`](super::TcpStream::try_send).
    ///
    /// # Errors
    ///
    /// The buffer.
    #[inline]
    pub fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
        self.0.try_send(buf)
    }

    /// As [`try_send`](UnixStream::try_send), for a buffer that is to be used again: `then` is given it when all
    /// of it has been sent, or could not be. It may be called before this returns.
    ///
    /// # Errors
    ///
    /// The buffer.
    #[inline]
    pub fn try_send_then<B: IoBuf>(&self, buf: B, then: impl FnOnce(B) + 'static) -> Result<(), B> {
        self.0.try_send_then(buf, then)
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that takes nothing, in place of the runtime's
    /// [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout); [`Duration::MAX`] without a limit. The peer
    /// then reads an end: a Unix stream can't be reset. Bytes count as taken when the peer has read the whole of a
    /// kernel buffer, which has up to 32 KiB.
    pub fn set_close_timeout(&self, timeout: Duration) {
        self.0.socket.set_close_timeout(timeout);
    }

    /// As [`TcpStream::shutdown`](super::TcpStream::shutdown).
    ///
    /// # Errors
    ///
    /// What `shutdown(2)` says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }
}
