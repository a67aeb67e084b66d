//! TCP listeners and streams.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use super::acceptor::Acceptor;
use super::listen::{ListenOptions, listen};
use super::progress::SendProgress;
use super::resolve::try_each;
use super::stream::Stream;
use crate::buf::IoBuf;
use crate::error::WholeResult;
use crate::sys::net;
use crate::sys::on_core::OnCore;
use crate::sys::option;

/// A TCP listener. Each core of a server binds its own at the same address, and the kernel spreads connections over
/// them.
///
/// ```
/// use annulus::net::{TcpListener, TcpStream};
/// use annulus::runtime::{self, Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     let client = runtime::spawn(async move {
///         let stream = TcpStream::connect(address).await?;
///         stream.send_all("hello").await?;
///         std::io::Result::Ok(())
///     });
///     let stream = listener.accept().await?;
///     assert_eq!(stream.recv_exact(vec![0; 5]).await?, b"hello");
///     client.await??;
///     Ok(())
/// })
/// # }
/// ```
///
/// A server that accepts many connections uses [`accept_multishot`](TcpListener::accept_multishot), which needs fewer
/// requests to the kernel.
#[derive(Debug)]
pub struct TcpListener {
    pub(super) acceptor: OnCore<Rc<Acceptor>>,
}

impl TcpListener {
    /// Listens at `address`. If it resolves to several addresses, the first one that can be bound is used. A host
    /// name is resolved on the calling thread, which blocks the core.
    ///
    /// The other cores of this runtime may bind the same address, once each, and share its connections. Listeners of
    /// other runtimes and other processes can't bind it, as with std and Tokio. The address can be bound again as
    /// soon as the listener has closed (`SO_REUSEADDR`). [`bind_with`](TcpListener::bind_with) takes options for all
    /// of this.
    ///
    /// Port 0 selects a new port at each call. For several cores, bind it on one core, and bind that core's
    /// [`local_addr`](TcpListener::local_addr) on the others.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::TcpListener;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?; // port 0: the kernel selects one
    /// let address = listener.local_addr()?;
    /// assert_ne!(address.port(), 0);
    /// let error = TcpListener::bind(address).unwrap_err(); // a second listener of the same core
    /// assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    /// drop(listener);
    /// TcpListener::bind(address)?; // the address is free immediately
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `EADDRINUSE` if another process, another runtime or another listener of this core has the address.
    /// After a process with a ring was killed (`kill -9`), its address stays in use for some milliseconds. Fails if
    /// the calling thread is not a runtime core.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with(address, &ListenOptions::new())
    }

    /// Listens at `address` with the given options; see [`bind`](TcpListener::bind).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{ListenOptions, TcpListener};
    ///
    /// let options = ListenOptions::new().backlog(128).reuse_port(true);
    /// let first = TcpListener::bind_with("127.0.0.1:0", &options)?;
    /// // With SO_REUSEPORT on both, a second listener gets a share of the connections.
    /// let second = TcpListener::bind_with(first.local_addr()?, &options)?;
    /// assert_eq!(first.local_addr()?, second.local_addr()?);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails as [`bind`](TcpListener::bind) does.
    pub fn bind_with(
        address: impl ToSocketAddrs,
        options: &ListenOptions,
    ) -> io::Result<TcpListener> {
        first(address, |address| {
            let core = super::core()?;
            let (socket, claim) = listen(&core, address, options)?;
            Ok(TcpListener {
                acceptor: Acceptor::bound(core, socket, claim).into(),
            })
        })
    }

    /// Returns the address at which this listener listens.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockname(2)`, unchanged.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(net::local_address(self.acceptor.socket.raw())?)
    }
}

fn internet(address: net::Address) -> io::Result<SocketAddr> {
    net::to_internet(address).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the socket has no IP address: its address family is neither IPv4 nor IPv6",
        )
    })
}

/// Calls `attempt` for each address in order, until one succeeds.
pub(super) fn first<T>(
    address: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::new(
        io::ErrorKind::InvalidInput,
        "there is no address to bind: the list of addresses is empty",
    );
    for address in address.to_socket_addrs()? {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A TCP connection. It stays on its core.
///
/// ```
/// use annulus::net::{TcpListener, TcpStream};
/// use annulus::runtime::{self, Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     # let listener = TcpListener::bind("127.0.0.1:0")?;
///     # let address = listener.local_addr()?;
///     # let echo = runtime::spawn(async move {
///     #     let stream = listener.accept().await?;
///     #     let (_, buf) = stream.recv(vec![0; 64]).await?;
///     #     stream.send_all(buf).await?;
///     #     std::io::Result::Ok(())
///     # });
///     let stream = TcpStream::connect(address).await?;
///     let request = stream.send_all(b"hello".to_vec()).await?; // the buffer comes back
///     let response = stream.recv_exact(vec![0; 5]).await?;
///     assert_eq!(response, request);
///     # echo.await??;
///     Ok(())
/// })
/// # }
/// ```
///
/// Dropping the stream closes it. Sends that have begun are completed first, for as long as the peer accepts data
/// (see [`set_close_timeout`](TcpStream::set_close_timeout)). Receives are cancelled.
#[derive(Debug)]
pub struct TcpStream(pub(super) Stream);

impl TcpStream {
    /// Connects to `address`: a [`SocketAddr`], several of them, or `"host:port"`.
    ///
    /// A host name is resolved on a blocking thread. If it has several addresses, they are tried in order. Numeric
    /// addresses need no blocking thread. If the future is dropped, the attempt ends and its socket is closed.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let open = listener.local_addr()?;
    /// let closed = { TcpListener::bind("127.0.0.1:0")?.local_addr()? }; // nothing listens there any more
    /// let error = TcpStream::connect(closed).await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    /// // Several addresses are tried in order.
    /// let stream = TcpStream::connect([closed, open]).await?;
    /// assert_eq!(stream.peer_addr()?, open);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of `connect(2)` for the last address that was tried. If the host can't be resolved, the
    /// error names it. Fails if the calling thread is not a runtime core.
    pub async fn connect(address: impl super::ToSocketAddrs) -> io::Result<TcpStream> {
        let attempt = async |address| Stream::connect(net::internet(address)).await;
        Ok(TcpStream(try_each(address.target(), attempt).await?))
    }

    /// Sends all of `buf` without copying it within the kernel, and returns it.
    ///
    /// The kernel avoids the copy for buffers of 16 KiB and more that go to other machines, since Linux 6.0. The
    /// future completes once the peer has acknowledged the data. Other sends of this stream wait until then, so
    /// zero-copy lowers CPU use, not latency. A dropped future behaves like a dropped [`SendAll`](super::SendAll).
    ///
    /// If the kernel copies anyway, as it does on loopback, or refuses, the next sends of this stream are ordinary
    /// ones. Without a ring, all sends are.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// let buf = vec![7; 64 << 10];
    /// let (sent, received) =
    ///     futures_lite::future::zip(near.send_zc(buf), far.recv_exact(vec![0; 64 << 10])).await;
    /// assert_eq!(sent?, received?); // the buffer is back: the kernel no longer reads it
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `send(2)`, unchanged. The error contains the buffer.
    pub async fn send_zc<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        self.0.send_zero_copy(buf).await
    }

    /// Sends `head`, then `bytes` bytes of `file` from `offset`, which the kernel takes from the page cache without a
    /// copy (`sendfile(2)`). Above about 10 KiB this is cheaper than reading and sending.
    ///
    /// Returns the number of bytes of the file that were sent, which is smaller than `bytes` if the file ends
    /// earlier. `progress` is called after each attempt to send, at least once per MiB. Data that is not in the page
    /// cache is read from the disk synchronously, which blocks the core; reading it beforehand avoids that.
    ///
    /// Not cancel-safe: if the future is dropped or fails, part of the data may have been sent. The stream can then
    /// send nothing more. The socket is `O_NONBLOCK` afterwards, until it is spliced.
    ///
    /// `sendfile` raises SIGPIPE if the peer has closed. Programs in Rust ignore that signal from their start; if yours
    /// restores the default action, or has no `main` in Rust, ignore the signal there.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// # let file = tempfile::NamedTempFile::new()?; std::fs::write(file.path(), "0123456789")?;
    /// use std::os::fd::AsFd;
    ///
    /// let file = std::fs::File::open(file.path())?;
    /// let head = b"length: 6\n";
    /// let sent = near.send_file(head, file.as_fd(), 4, 100, || {}).await?;
    /// assert_eq!(sent, 6); // the file ends before 100 bytes
    /// assert_eq!(far.recv_exact(vec![0; 16]).await?, b"length: 6\n456789");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `sendfile(2)`, unchanged: `EINVAL` if the file does not support it.
    pub async fn send_file(
        &self,
        head: &[u8],
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        progress: impl FnMut(),
    ) -> io::Result<u64> {
        self.0.send_file(head, file, offset, bytes, progress).await
    }

    /// Sends `buf` and closes the stream. The last bytes and the end (FIN) leave in one segment, while
    /// [`try_send_then`](TcpStream::try_send_then) followed by a drop makes two. `then` receives the buffer.
    ///
    /// Use it for a final response that needs no confirmation. The peer must not send anything more: as after any
    /// close, it would get a reset. If it has sent data that was not received here, **the part of `buf` that has not
    /// left yet is discarded**.
    ///
    /// On a ring (Linux 6.0) the send and the close are one system call. A send that does not fit into the socket
    /// buffer goes on, and the end follows it. If a receive, a [`writer`](TcpStream::writer) or a half of the stream
    /// still uses the socket, the last of them closes it, and the end is a separate segment.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// assert!(near.close_with("goodbye", |_buf| {}).is_ok()); // consumes the stream
    /// assert_eq!(far.recv_exact(vec![0; 7]).await?, b"goodbye");
    /// assert_eq!(far.recv(vec![0; 1]).await?.0, 0); // the end
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the stream and the buffer if another send is under way or an earlier one has failed, or if the runtime
    /// is ending.
    pub fn close_with<B: IoBuf>(
        self,
        buf: B,
        then: impl FnOnce(B) + 'static,
    ) -> Result<(), (TcpStream, B)> {
        self.0
            .close_with(buf, then)
            .map_err(|(stream, buf)| (TcpStream(stream), buf))
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that accepts nothing. [`Duration::MAX`] is
    /// no limit. The default is the runtime's [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout).
    ///
    /// This is not `SO_LINGER`, which concerns data that the kernel already has
    /// ([`set_linger`](TcpStream::set_linger)).
    ///
    /// A server that gives a slow client two seconds to read the rest of its response:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// near.set_close_timeout(std::time::Duration::from_secs(2));
    /// assert!(near.try_send(vec![7; 1 << 20]).is_ok());
    /// drop(near); // the send goes on
    /// assert_eq!(far.recv_exact(vec![0; 1 << 20]).await?.len(), 1 << 20);
    /// # Ok(()) })? }
    /// ```
    pub fn set_close_timeout(&self, timeout: Duration) {
        self.0.socket.set_close_timeout(timeout);
    }

    /// Returns a handle that reports how much of the sent data the peer has acknowledged. It lets a server
    /// distinguish a slow client from one that accepts nothing, however long a single send takes.
    pub fn send_progress(&self) -> SendProgress {
        SendProgress::of(&self.0)
    }

    /// Closes the connection immediately with a reset. Sends under way fail, and the peer gets `ECONNRESET` instead
    /// of the end of the stream.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// near.abort();
    /// let error = far.recv(vec![0; 1]).await.unwrap_err();
    /// assert_eq!(error.error().kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok(()) })? }
    /// ```
    pub fn abort(&self) {
        self.0.socket.abort();
    }

    /// Returns the remote address.
    ///
    /// A connection that was reset has no remote address. Read it when the connection is accepted:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// let client = far.peer_addr()?;
    /// assert_eq!(client, near.local_addr()?);
    /// near.abort();
    /// let _ = far.recv(vec![0; 1]).await; // fails with a reset
    /// assert_eq!(far.peer_addr().unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `ENOTCONN` if the socket is no longer connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet(net::peer_address(self.0.socket.raw())?)
    }

    /// Returns the local address.
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockname(2)`, unchanged.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(net::local_address(self.0.socket.raw())?)
    }

    /// Sets whether small segments are sent immediately (`TCP_NODELAY`) or gathered.
    ///
    /// Without it, a small request that follows another one may wait for the peer's acknowledgement, up to 40 ms:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// assert!(!near.nodelay()?); // the kernel's default: segments are gathered
    /// near.set_nodelay(true)?;
    /// near.send_all("first").await?;
    /// near.send_all("second").await?;
    /// # assert_eq!(far.recv_exact(vec![0; 11]).await?, b"firstsecond");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        option::set_nodelay(self.0.socket.raw(), on)
    }

    /// Returns whether small segments are sent immediately (`TCP_NODELAY`).
    ///
    /// # Errors
    ///
    /// Fails with any error of `getsockopt(2)`, unchanged.
    pub fn nodelay(&self) -> io::Result<bool> {
        option::nodelay(self.0.socket.raw())
    }

    /// Sets how long the kernel keeps unsent data after the close, in whole seconds (`SO_LINGER`). With
    /// `Some(Duration::ZERO)` the close resets the connection.
    ///
    /// With a longer time, the close blocks the core until the peer has acknowledged all data, or the time has passed.
    /// [`set_close_timeout`](TcpStream::set_close_timeout) blocks nothing.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let listener = annulus::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let near = annulus::net::TcpStream::connect(listener.local_addr()?).await?;
    /// # let far = listener.accept().await?;
    /// near.set_linger(Some(std::time::Duration::ZERO))?;
    /// drop(near); // a reset instead of the end of the stream
    /// let error = far.recv(vec![0; 1]).await.unwrap_err();
    /// assert_eq!(error.error().kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        option::set_linger(self.0.socket.raw(), linger)
    }
}
