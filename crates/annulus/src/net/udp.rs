//! UDP sockets.

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
use crate::driver::core::{Core, SocketOperation};
use crate::error::{BufError, BufResult, WholeResult};
use crate::fd::{Claim, Socket};
use crate::item_stream::item_stream;
use crate::op::{Connect, ReceivedMessage};
use crate::sys::message::INTERNET_NAME_BYTES;
use crate::sys::net::{self, Address, SocketKind};

/// A UDP socket. It stays on its core.
///
/// ```
/// use annulus::net::UdpSocket;
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let server = UdpSocket::bind("127.0.0.1:0")?;
///     let client = UdpSocket::bind("127.0.0.1:0")?;
///     client.send_to("ping", server.local_addr()?).await?;
///     let (received, buf) = server.recv_from(vec![0; 1500]).await?;
///     assert_eq!(&buf[..received.bytes], b"ping");
///     assert_eq!(received.from, client.local_addr()?);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct UdpSocket(pub(super) Rc<DatagramReceiver>, Option<Claim>);

impl UdpSocket {
    /// Opens a socket at `address`. If it resolves to several addresses, the first one that can be bound is used. A
    /// host name is resolved on the calling thread, which blocks the core.
    ///
    /// No other socket shares the address; see [`bind_shared`](UdpSocket::bind_shared) for a server of several cores.
    ///
    /// # Errors
    ///
    /// Fails with `EADDRINUSE` if another socket has the address. Fails if the calling thread is not a runtime core.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::bind_with(address, |_| Ok(()))
    }

    /// Opens a socket at `address` after `before` has set options; see [`bind`](UdpSocket::bind). With
    /// [`set_reuse_port`](SocketOptions::set_reuse_port), sockets of the same user share an address, also across
    /// processes.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind_with("127.0.0.1:0", |options| {
    ///     options.set_receive_buffer_bytes(1 << 16) // before the first datagram can arrive
    /// })?;
    /// # drop(socket);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](UdpSocket::bind) does, or with the error of `before`.
    pub fn bind_with(
        address: impl ToSocketAddrs,
        before: impl Fn(SocketOptions<'_>) -> io::Result<()>,
    ) -> io::Result<UdpSocket> {
        first(address, |address| {
            let core = super::core()?;
            let address = net::internet(address);
            let fd = net::socket(&address, SocketKind::Datagram, core.wants_nonblocking())?;
            let socket = core.socket(fd);
            before(SocketOptions::of(&socket))?;
            net::bind(socket.raw(), &address)?;
            Ok(UdpSocket::of(core, socket))
        })
    }

    /// Opens a socket at an address that the cores of this runtime share, for a server of several cores. Each core
    /// may bind the address once with this function, and the kernel spreads senders over the cores. Port 0 selects a
    /// new port at each call.
    ///
    /// Sockets of other runtimes and processes can't bind the address, except those of the same user that set
    /// `SO_REUSEPORT`. Not for clients: a response may arrive at another core than the one that sent the request.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let server = UdpSocket::bind_shared("127.0.0.1:0")?;
    /// let address = server.local_addr()?; // the other cores bind this one
    /// let error = UdpSocket::bind_shared(address).unwrap_err(); // once per core
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](UdpSocket::bind) does.
    pub fn bind_shared(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        first(address, |address| {
            let core = super::core()?;
            let name = net::internet(address);
            let fd = net::socket(&name, SocketKind::Datagram, core.wants_nonblocking())?;
            let socket = core.socket(fd);
            let claim = bind_shared(&core, &socket, address, SocketKind::Datagram, || {
                net::bind(socket.raw(), &name)
            })?;
            let mut shared = UdpSocket::of(core, socket);
            shared.1 = claim;
            Ok(shared)
        })
    }

    /// Takes over a socket of std.
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core.
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
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let (server, other) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// let client = UdpSocket::bind("127.0.0.1:0")?;
    /// client.connect(server.local_addr()?).await?;
    /// other.send_to("spam", client.local_addr()?).await?; // the kernel discards it
    /// server.send_to("pong", client.local_addr()?).await?;
    /// let (bytes, buf) = client.recv(vec![0; 1500]).await?;
    /// assert_eq!(&buf[..bytes], b"pong");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of `connect(2)` for the last address that was tried. If the host can't be resolved, the
    /// error names it.
    pub async fn connect(&self, address: impl super::ToSocketAddrs) -> io::Result<()> {
        let attempt = async |address| {
            let connect = Connect::new(Rc::clone(&self.0.socket), net::internet(address));
            SocketOperation::new(Rc::clone(&self.0.core), connect).await
        };
        try_each(address.target(), attempt).await
    }

    /// Sends `buf` as one datagram and returns it. A dropped send that has begun still sends the datagram.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let socket = UdpSocket::bind("127.0.0.1:0")?;
    /// let error = socket.send_to(vec![0; 70_000], socket.local_addr()?).await.unwrap_err();
    /// # const EMSGSIZE: i32 = 90;
    /// assert_eq!(error.error().raw_os_error(), Some(EMSGSIZE)); // at most 65,507 bytes over IPv4
    /// assert_eq!(error.into_buf().map(|buf| buf.len()), Some(70_000));
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `EMSGSIZE` if the buffer is too long for one datagram. The error contains the buffer.
    pub async fn send_to<B: IoBuf>(&self, buf: B, address: SocketAddr) -> WholeResult<B> {
        self.0.send(buf, Some(&net::internet(address))).await
    }

    /// Receives a datagram into `buf`. Returns its length and its sender.
    ///
    /// Receives of several tasks complete in the order of their first polls. A future that is neither polled to its
    /// end nor dropped therefore blocks those behind it.
    ///
    /// Dropping the future loses no datagram: one that arrives for it is returned by the next receive, truncated to
    /// the length of the dropped buffer, with `is_truncated` set.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let (server, client) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// client.send_to("hello", server.local_addr()?).await?;
    /// let (received, buf) = server.recv_from(vec![0; 4]).await?;
    /// assert!(received.is_truncated); // the rest of the datagram is lost
    /// assert_eq!(&buf[..received.bytes], b"hell");
    /// server.send_to("too long", received.from).await?;
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `recvmsg(2)`, unchanged. The error contains the buffer.
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

    /// Receives datagrams into the core's buffers, with one multishot request for many of them. Needs Linux 6.0; on
    /// older kernels and without a ring, each receive is a separate request.
    ///
    /// A datagram may be as long as a core buffer less 44 bytes. The socket stops receiving while 64 datagrams are
    /// unread; the kernel then queues further ones, and drops them when its buffer is full.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let (server, client) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// for text in ["one", "two"] {
    ///     client.send_to(text, server.local_addr()?).await?;
    /// }
    /// let mut datagrams = server.recv_multishot();
    /// let first = datagrams.next().await.expect("`None` only when the runtime ends")?;
    /// assert_eq!((&first.chunk[..], first.from), (&b"one"[..], client.local_addr()?));
    /// drop(datagrams); // the second datagram is not lost
    /// assert_eq!(server.recv(vec![0; 1500]).await?.0, 3);
    /// # Ok(()) })? }
    /// ```
    pub fn recv_multishot(&self) -> Datagrams<'_> {
        Datagrams(&self.0)
    }

    /// Returns the local address.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockname(2)`, unchanged.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sender(Some(net::local_address(self.0.socket.raw())?))
    }

    /// Returns the address of the connected peer.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let (server, client) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// assert_eq!(client.peer_addr().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    /// client.connect(server.local_addr()?).await?; // sends nothing
    /// assert_eq!(client.peer_addr()?, server.local_addr()?);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `ENOTCONN` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sender(Some(net::peer_address(self.0.socket.raw())?))
    }
}

fn sender(address: Option<Address>) -> io::Result<SocketAddr> {
    let internet = address.and_then(net::to_internet);
    internet.ok_or_else(|| {
        let text = "the address of a datagram socket is neither IPv4 nor IPv6";
        io::Error::new(io::ErrorKind::InvalidData, text)
    })
}

/// The datagrams that a socket receives, one after another. Made by [`UdpSocket::recv_multishot`].
///
/// Dropping it loses no datagram: the socket's next receive returns those that have arrived.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::UdpSocket;
///
/// let (server, client) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
/// client.send_to("hello", server.local_addr()?).await?;
/// let mut datagrams = server.recv_multishot();
/// while let Some(received) = datagrams.next().await {
///     let Ok(datagram) = received else { continue }; // the socket goes on after an error
///     server.send_to(datagram.chunk, datagram.from).await?; // a chunk is a buffer to send
///     break;
/// }
/// assert_eq!(client.recv(vec![0; 1500]).await?.0, 5);
/// # Ok(()) })? }
/// ```
pub struct Datagrams<'a>(&'a Rc<DatagramReceiver>);

impl Datagrams<'_> {
    /// Waits for the next datagram. Returns `None` when the runtime ends. The socket continues after an error.
    pub async fn next(&mut self) -> Option<io::Result<Datagram<SocketAddr>>> {
        self.0
            .next()
            .await
            .map(|received| received.and_then(datagram))
    }

    /// Polls for the next datagram; see [`next`](Datagrams::next).
    ///
    /// The caller keeps no position in the queue of receives between two polls: while others wait, it comes after
    /// them.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Datagram<SocketAddr>>>> {
        let next = std::task::ready!(self.0.poll_next(context));
        Poll::Ready(next.map(|received| received.and_then(datagram)))
    }
}

item_stream!(['a] Datagrams<'a>, io::Result<Datagram<SocketAddr>>);

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
