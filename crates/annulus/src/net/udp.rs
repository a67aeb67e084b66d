//! UDP.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::datagram::{Datagram, DatagramReceiver, Received};
use super::listen::bind_shared;
use super::options::SocketOptions;
use super::resolve::try_each;
use super::tcp::first;
use crate::buf::{IoBuf, IoBufMut};
use crate::driver::core::{Claim, Core, SocketOperation};
use crate::error::{BufError, BufResult, WholeResult};
use crate::fd::Socket;
use crate::op::{Connect, ReceivedMessage};
use crate::sys::message::INTERNET_NAME_BYTES;
use crate::sys::net::{self, Address, Kind};

/// A UDP socket. It stays on its core.
#[derive(Debug)]
pub struct UdpSocket(Rc<DatagramReceiver>, Option<Claim>);

impl UdpSocket {
    /// A socket at `address`, the first of those it stands for that can be had. It shares it with no other socket:
    /// for a server of several cores there is [`bind_shared`](UdpSocket::bind_shared).
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another socket has it.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::bind_with(address, |_| Ok(()))
    }

    /// As [`bind`](UdpSocket::bind), with options that are to be set first: sockets of one user share an address, in
    /// whatever processes they are, with [`set_reuse_port`](SocketOptions::set_reuse_port).
    ///
    /// # Errors
    ///
    /// As for [`bind`](UdpSocket::bind), and those of `before`.
    pub fn bind_with(
        address: impl ToSocketAddrs,
        before: impl Fn(SocketOptions<'_>) -> io::Result<()>,
    ) -> io::Result<UdpSocket> {
        first(address, |address| {
            let core = super::core()?;
            let address = net::internet(address);
            let fd = net::socket(&address, Kind::Datagram, core.wants_nonblocking())?;
            let socket = core.socket(fd);
            before(SocketOptions::of(&socket))?;
            net::bind(socket.raw(), &address)?;
            Ok(UdpSocket::of(core, socket))
        })
    }

    /// As [`bind`](UdpSocket::bind), for a server of several cores: the other cores of this runtime may bind the same
    /// address by this call, once each, and the kernel spreads senders over them. Sockets of other runtimes and
    /// processes are refused it, unless they set `SO_REUSEPORT` by themselves, as the same user. Port 0 is a new port
    /// for each call.
    ///
    /// Not for clients: an answer may come to another core than the one that asked.
    ///
    /// # Errors
    ///
    /// As for [`bind`](UdpSocket::bind).
    pub fn bind_shared(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(address, |address| {
            let core = super::core()?;
            let name = net::internet(address);
            let fd = net::socket(&name, Kind::Datagram, core.wants_nonblocking())?;
            let socket = core.socket(fd);
            let claim = bind_shared(&core, &socket, address, Kind::Datagram, || {
                net::bind(socket.raw(), &name)
            })?;
            let mut shared = UdpSocket::of(core, socket);
            shared.1 = claim;
            Ok(shared)
        })
    }

    /// Takes over std's socket.
    ///
    /// # Errors
    ///
    /// Outside a runtime.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        let core = super::core()?;
        let socket = core.socket(OwnedFd::from(socket));
        net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
        Ok(UdpSocket::of(core, socket))
    }

    fn of(core: Rc<Core>, socket: Rc<Socket>) -> UdpSocket {
        UdpSocket(
            DatagramReceiver::new(core, socket, INTERNET_NAME_BYTES),
            None,
        )
    }

    /// Sets the peer: [`send`](UdpSocket::send) sends to `address`, and datagrams from other addresses are discarded.
    ///
    /// A host name is resolved on a blocking thread, and its addresses are tried in order; see
    /// [`TcpStream::connect`](super::TcpStream::connect).
    ///
    /// # Errors
    ///
    /// The error of `connect(2)` for the last address that was tried, or an error that names the host that could not
    /// be resolved.
    pub async fn connect(&self, address: impl super::ToSocketAddrs) -> io::Result<()> {
        let attempt = async |address| {
            let connect = Connect::new(Rc::clone(&self.0.socket), net::internet(address));
            SocketOperation::new(Rc::clone(&self.0.core), connect).await
        };
        try_each(address.target(), attempt).await
    }

    /// Sends `buf`, which comes back, as one datagram.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: it is too long for one.
    pub async fn send_to<B: IoBuf>(&self, buf: B, address: SocketAddr) -> WholeResult<B> {
        self.0.send(buf, Some(&net::internet(address))).await
    }

    /// Sends `buf`, which comes back, as one datagram to whom the socket is connected to.
    ///
    /// # Errors
    ///
    /// `EDESTADDRREQ`: nobody. `ECONNREFUSED`: an earlier datagram has reached a machine where nobody listens.
    pub async fn send<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        self.0.send(buf, None).await
    }

    /// Receives a datagram into `buf`, and says whose it is. A datagram that comes when the future has been
    /// dropped is the next receive's, cut to the length of the buffer that was dropped; `is_truncated` says so.
    /// Receives of several tasks are answered in the order of their first polls: one that is neither polled to its end
    /// nor dropped holds up those behind it.
    ///
    /// # Errors
    ///
    /// What `recvmsg(2)` says.
    pub async fn recv_from<B: IoBufMut>(&self, buf: B) -> BufResult<Received<SocketAddr>, B> {
        let (received, buf) = self.0.recv(buf).await?;
        let Received {
            bytes,
            from,
            is_truncated,
        } = received;
        match sender(from) {
            Ok(from) => {
                let received = Received {
                    bytes,
                    from,
                    is_truncated,
                };
                Ok((received, buf))
            }
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }

    /// Receives a datagram into `buf`: how many bytes. What did not fit is gone;
    /// [`recv_from`](UdpSocket::recv_from) says whether anything was.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`: an earlier datagram has reached a machine where nobody listens.
    pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
        let (received, buf) = self.0.recv(buf).await?;
        Ok((received.bytes, buf))
    }

    /// Receives datagrams into buffers of the core, by one request to the kernel for all that come. Since
    /// Linux 6.0; before that, and without a ring, one by one. A buffer takes 44 bytes less of a datagram than
    /// it has. At most 64 wait to be read; then the kernel keeps them, and drops what it has no room for.
    pub fn recv_multishot(&self) -> Datagrams<'_> {
        Datagrams(&self.0)
    }

    /// Its own address.
    ///
    /// # Errors
    ///
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sender(Some(net::local_address(self.0.socket.raw())?))
    }

    /// Whom it is connected to.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: nobody.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sender(Some(net::peer_address(self.0.socket.raw())?))
    }

    /// Its options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.0.socket)
    }
}

fn sender(address: Option<Address>) -> io::Result<SocketAddr> {
    let internet = address.and_then(net::to_internet);
    internet.ok_or_else(|| {
        let what = "a datagram's sender has no internet address";
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The datagrams that a socket receives, one after another. Made by
/// [`UdpSocket::recv_multishot`]. Dropped, it leaves what has come to the socket's next receive.
pub struct Datagrams<'a>(&'a Rc<DatagramReceiver>);

impl Datagrams<'_> {
    /// The next datagram, or what went wrong: the socket goes on after an error. `None` when the runtime ends.
    pub async fn next(&mut self) -> Option<io::Result<Datagram<SocketAddr>>> {
        self.0
            .next()
            .await
            .map(|received| received.and_then(datagram))
    }

    /// As [`next`](Datagrams::next), for those who poll. Between two polls it does not keep its position among the
    /// tasks that receive on this socket: while receives of others wait, it comes after them.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Datagram<SocketAddr>>>> {
        let next = std::task::ready!(self.0.poll_next(context));
        Poll::Ready(next.map(|received| received.and_then(datagram)))
    }
}

fn datagram(received: ReceivedMessage) -> io::Result<Datagram<SocketAddr>> {
    Ok(Datagram {
        from: sender(received.sender)?,
        chunk: received.chunk,
        is_truncated: received.is_truncated,
    })
}

impl fmt::Debug for Datagrams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Datagrams").field(self.0).finish()
    }
}
