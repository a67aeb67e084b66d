//! Socket options. Each is one system call, which does not block.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::fd::Socket;
use crate::sys::call::borrow_fd;
use crate::sys::{net, option};

/// Reads and writes the socket options that servers use. The kernel refuses an option that the kind of socket lacks,
/// mostly with `EOPNOTSUPP` or `ENOPROTOOPT`.
///
/// The crate `socket2` has all others (keepalive, multicast, …): `socket2::SockRef::from(&stream.options())`.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
/// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
/// # let far = listener.accept().await?;
/// near.options().set_nodelay(true)?;
/// assert!(near.options().nodelay()?);
/// // Each kind of socket refuses the options of the others.
/// let (unix, _) = annulus::net::UnixStream::pair()?;
/// assert!(unix.options().set_nodelay(true).is_err());
/// # Ok(()) })? }
/// ```
#[derive(Clone, Copy)]
pub struct SocketOptions<'a>(&'a Socket);

impl AsFd for SocketOptions<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow_fd(self.0.raw())
    }
}

impl<'a> SocketOptions<'a> {
    pub(super) fn of(socket: &'a Socket) -> SocketOptions<'a> {
        SocketOptions(socket)
    }

    /// Sets whether the address can be bound while connections of an earlier listener are closing (`SO_REUSEADDR`).
    /// Set it before the bind.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_reuse_address(self, on: bool) -> io::Result<()> {
        option::set_reuse_address(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_reuse_address`](SocketOptions::set_reuse_address).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn reuse_address(self) -> io::Result<bool> {
        option::reuse_address(self.0.raw())
    }

    /// Sets whether several sockets may bind the same address; the kernel spreads incoming traffic over them
    /// (`SO_REUSEPORT`). Set it before the bind.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::UdpSocket;
    ///
    /// let shared = || UdpSocket::bind_with("127.0.0.1:0", |options| options.set_reuse_port(true));
    /// let first = shared()?;
    /// // After the bind it is too late, for either of the two sockets.
    /// assert!(UdpSocket::bind(first.local_addr()?).is_err());
    /// let second = UdpSocket::bind_with(first.local_addr()?, |options| options.set_reuse_port(true))?;
    /// # assert_eq!(first.local_addr()?, second.local_addr()?);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_reuse_port(self, on: bool) -> io::Result<()> {
        option::set_reuse_port(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_reuse_port`](SocketOptions::set_reuse_port).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn reuse_port(self) -> io::Result<bool> {
        option::reuse_port(self.0.raw())
    }

    /// Sets the size of the kernel's send buffer, bytes. The kernel doubles it for its own overhead (`SO_SNDBUF`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_send_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_send_buffer_bytes(self.0.raw(), bytes)
    }

    /// Returns the size of the kernel's send buffer, bytes; see
    /// [`set_send_buffer_bytes`](SocketOptions::set_send_buffer_bytes).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn send_buffer_bytes(self) -> io::Result<usize> {
        option::send_buffer_bytes(self.0.raw())
    }

    /// Sets the size of the kernel's receive buffer, bytes. The kernel doubles it for its own overhead (`SO_RCVBUF`).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// near.options().set_receive_buffer_bytes(32 << 10)?;
    /// assert_eq!(near.options().receive_buffer_bytes()?, 64 << 10); // doubled
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_receive_buffer_bytes(self, bytes: usize) -> io::Result<()> {
        option::set_receive_buffer_bytes(self.0.raw(), bytes)
    }

    /// Returns the size of the kernel's receive buffer, bytes; see
    /// [`set_receive_buffer_bytes`](SocketOptions::set_receive_buffer_bytes).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn receive_buffer_bytes(self) -> io::Result<usize> {
        option::receive_buffer_bytes(self.0.raw())
    }

    /// Delays accepting a connection until the client has sent data, or for some seconds (`TCP_DEFER_ACCEPT`). For
    /// protocols whose client speaks first: the first receive then finds the data. A client that has sent nothing is
    /// not told when the listener closes. TCP only.
    ///
    /// For HTTP, where a connection without a request is no work yet:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// listener.options().set_defer_accept(5)?; // s
    /// let client = TcpStream::connect(listener.local_addr()?).await?; // succeeds at once
    /// assert!(futures_lite::future::poll_once(listener.accept()).await.is_none());
    /// client.send_all("GET").await?;
    /// let stream = listener.accept().await?;
    /// assert_eq!(stream.recv_exact(vec![0; 3]).await?, b"GET"); // is there already
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_defer_accept(self, seconds: u32) -> io::Result<()> {
        net::set_defer_accept(self.0.raw(), seconds)
    }

    /// Sets whether small segments are sent immediately (`TCP_NODELAY`). TCP only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_nodelay(self, on: bool) -> io::Result<()> {
        option::set_nodelay(self.0.raw(), on)
    }

    /// Returns the current setting; see [`set_nodelay`](SocketOptions::set_nodelay).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn nodelay(self) -> io::Result<bool> {
        option::nodelay(self.0.raw())
    }
}

impl fmt::Debug for SocketOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketOptions({})", self.0.raw())
    }
}
