//! Unix datagram sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::datagram::{DatagramReceiver, Received};
use super::options::SocketOptions;
use crate::buf::{IoBuf, IoBufMut};
use crate::driver::core::SocketOperation;
use crate::error::{BufError, BufResult, WholeResult};
use crate::op::Connect;
use crate::sys::message::UNIX_NAME_BYTES;
use crate::sys::net::{self, Kind};

/// A datagram socket within the machine. It stays on its core. Datagrams are neither lost nor reordered: a
/// send waits until the receiver has room.
#[derive(Debug)]
pub struct UnixDatagram(Rc<DatagramReceiver>);

impl UnixDatagram {
    /// A socket at `path`, which must not exist; it stays when the socket goes.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: there is something at that path.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let address = net::unix(path.as_ref())?;
        let socket = UnixDatagram::unbound()?;
        net::bind(socket.0.socket.raw(), &address)?;
        Ok(socket)
    }

    /// A socket without a path: nobody can answer it.
    ///
    /// # Errors
    ///
    /// Outside a runtime; `EMFILE`.
    pub fn unbound() -> io::Result<UnixDatagram> {
        let core = super::core()?;
        let fd = net::unix_socket(Kind::Datagram, core.wants_nonblocking())?;
        UnixDatagram::of(fd)
    }

    /// Two sockets, connected to each other.
    ///
    /// # Errors
    ///
    /// What `socketpair(2)` says.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let core = super::core()?;
        let (one, other) = net::pair(Kind::Datagram, core.wants_nonblocking())?;
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

    /// Sends to the socket at `path` and receives from there only, from now on.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`: nobody has it open.
    pub async fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let address = net::unix(path.as_ref())?;
        let connect = Connect::new(Rc::clone(&self.0.socket), address);
        SocketOperation::new(Rc::clone(&self.0.core), connect).await
    }

    /// Sends `buf`, which comes back, as one datagram to the socket at `path`.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: it is longer than the send buffer. `ECONNREFUSED`: nobody has that path open.
    pub async fn send_to<B: IoBuf>(&self, buf: B, path: impl AsRef<Path>) -> WholeResult<B> {
        match net::unix(path.as_ref()) {
            Ok(address) => self.0.send(buf, Some(&address)).await,
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }

    /// Sends `buf`, which comes back, as one datagram to whom the socket is connected to.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: nobody.
    pub async fn send<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        self.0.send(buf, None).await
    }

    /// Receives a datagram into `buf`, and says from which path; `None` is a socket without one. A datagram
    /// that comes when the future has been dropped is the next receive's, cut to the length of the buffer that was
    /// dropped; `is_truncated` says so. Receives of several tasks are answered in the order of their first polls: one
    /// that is neither polled to its end nor dropped holds up those behind it.
    ///
    /// # Errors
    ///
    /// What `recvmsg(2)` says.
    pub async fn recv_from<B: IoBufMut>(&self, buf: B) -> BufResult<Received<Option<PathBuf>>, B> {
        let (received, buf) = self.0.recv(buf).await?;
        let received = Received {
            bytes: received.bytes,
            from: received.from.and_then(net::to_path),
            is_truncated: received.is_truncated,
        };
        Ok((received, buf))
    }

    /// Receives a datagram into `buf`: how many bytes. What did not fit is gone;
    /// [`recv_from`](UnixDatagram::recv_from) says whether anything was.
    ///
    /// # Errors
    ///
    /// What `recvmsg(2)` says.
    pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let (received, buf) = self.0.recv(buf).await?;
        Ok((received.bytes, buf))
    }

    /// Its options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.0.socket)
    }
}

impl Drop for UnixDatagram {
    fn drop(&mut self) {
        self.0.close();
    }
}
