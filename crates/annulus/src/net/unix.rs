//! Unix stream sockets.

use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::rc::Rc;

use super::acceptor::{Accepted, Acceptor, Incoming};
use super::receiver::Receiving;
use super::stream::{Receive, Send, Stream};
use crate::buf::{IoBuf, IoBufMut};
use crate::driver::core::SocketOperation;
use crate::op::Connect;
use crate::sys::net::{self, Kind};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

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
        let core = super::core()?;
        let address = net::unix(path.as_ref())?;
        let fd = net::socket(&address, Kind::Stream, core.wants_nonblocking())?;
        let socket = core.socket(fd);
        net::bind(socket.raw(), &address)?;
        net::listen(socket.raw(), BACKLOG)?;
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

/// A connection to or from a path; see [`TcpStream`](super::TcpStream).
#[derive(Debug)]
pub struct UnixStream(Stream);

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
        let core = super::core()?;
        let address = net::unix(path.as_ref())?;
        let fd = net::socket(&address, Kind::Stream, core.wants_nonblocking())?;
        let stream = Stream::new(Rc::clone(&core), fd);
        let connect = Connect::new(Rc::clone(&stream.socket), address);
        SocketOperation::new(core, connect).await?;
        Ok(UnixStream(stream))
    }

    /// Two streams, connected to each other.
    ///
    /// # Errors
    ///
    /// What `socketpair(2)` says.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let core = super::core()?;
        let (one, other) = net::pair(core.wants_nonblocking())?;
        let stream = |fd| UnixStream(Stream::new(Rc::clone(&core), fd));
        Ok((stream(one), stream(other)))
    }

    /// As [`TcpStream::recv`](super::TcpStream::recv).
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Receive<'_, B> {
        self.0.recv(buf)
    }

    /// As [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
    pub fn recv_multishot(&self) -> Receiving<'_> {
        self.0.recv_multishot()
    }

    /// As [`TcpStream::send_all`](super::TcpStream::send_all).
    pub fn send_all<B: IoBuf>(&self, buf: B) -> Send<'_, B> {
        self.0.send_all(buf)
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
