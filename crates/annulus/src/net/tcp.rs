//! TCP listeners and streams.

use std::io;
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use super::acceptor::{Accepted, Acceptor, Incoming};
use super::exact::RecvExact;
use super::listen::{ListenOptions, listen};
use super::options::SocketOptions;
use super::progress::SendProgress;
use super::receiver::RecvStream;
use super::resolve::try_each;
use super::split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::{Recv, SendAll, Stream};
use super::writer::Writer;
use crate::buf::{IoBuf, IoBufMut};
use crate::error::WholeResult;
use crate::sys::engine_error::EngineError;
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
/// Runtime::builder().threads(1).run(|_core| async {
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
    acceptor: OnCore<Rc<Acceptor>>,
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

    /// Takes over a listener of std.
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        let core = super::core()?;
        let socket = core.socket(OwnedFd::from(listener));
        net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
        Ok(TcpListener {
            acceptor: Acceptor::new(core, socket).into(),
        })
    }

    /// Accepts one connection.
    ///
    /// Several tasks may wait; a connection goes to the first of them that runs. Dropping the future loses no
    /// connection: the next call returns it.
    ///
    /// # Errors
    ///
    /// Fails with `EMFILE` or `ENFILE` if descriptors have run out; the next call then waits for 10 ms before it
    /// tries again. Fails with [`EngineError::Ended`] when the runtime ends.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let accepted =
            std::future::poll_fn(|context| self.acceptor.poll_next(context, false)).await;
        match accepted {
            Some(accepted) => Ok(TcpStream(accepted?)),
            None => Err(EngineError::Ended.into()),
        }
    }

    /// Returns the connections that arrive, accepted with one multishot request. Needs Linux 5.19; on older kernels
    /// and without a ring, each connection is a separate request.
    pub fn accept_multishot(self) -> Incoming<TcpStream> {
        Incoming::new(Rc::clone(&self.acceptor))
    }

    /// Returns a handle for reading and setting socket options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.acceptor.socket)
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
/// Runtime::builder().threads(1).run(|_core| async {
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

impl From<Accepted> for TcpStream {
    fn from(Accepted(stream): Accepted) -> TcpStream {
        TcpStream(stream)
    }
}

impl TcpStream {
    /// Connects to `address`: a [`SocketAddr`], several of them, or `"host:port"`.
    ///
    /// A host name is resolved on a blocking thread. If it has several addresses, they are tried in order. Numeric
    /// addresses need no blocking thread.
    ///
    /// # Errors
    ///
    /// Fails with the error of `connect(2)` for the last address that was tried. If the host can't be resolved, the
    /// error names it. Fails if the calling thread is not a runtime core.
    pub async fn connect(address: impl super::ToSocketAddrs) -> io::Result<TcpStream> {
        let attempt = async |address| Stream::connect(net::internet(address)).await;
        Ok(TcpStream(try_each(address.target(), attempt).await?))
    }

    /// Takes over a stream of std.
    ///
    /// # Errors
    ///
    /// Fails if the calling thread is not a runtime core.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        let core = super::core()?;
        let stream = Stream::new(core, OwnedFd::from(stream));
        net::set_nonblocking(stream.socket.raw(), stream.core.wants_nonblocking())?;
        Ok(TcpStream(stream))
    }

    /// Receives the available bytes, at most the buffer's length. Returns the number of bytes and the buffer; 0 is
    /// the end of the stream.
    ///
    /// Dropping the future loses no data: the next receive returns it.
    ///
    /// # Errors
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] if the buffer has no capacity, because 0 would look like the end.
    /// Fails with any other error of `recv(2)`, unchanged. The error contains the buffer.
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        self.0.recv(buf)
    }

    /// Receives until the buffer is full. A buffer without capacity comes back immediately, even at the end of the
    /// stream.
    ///
    /// Dropping the future loses no data: the next receive returns it.
    ///
    /// # Errors
    ///
    /// Fails with [`io::ErrorKind::UnexpectedEof`] if the stream ends before the buffer is full. Fails with any error
    /// of `recv(2)`, unchanged. The error contains the buffer with the bytes that were received.
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        self.0.recv_exact(buf)
    }

    /// Returns a writer that gathers small writes into larger sends, and waits for a slow peer.
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// Borrows the two directions of the stream separately.
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(&self.0)
    }

    /// Splits the stream into two owned halves, which may be used by two tasks of the core.
    ///
    /// ```
    /// use annulus::net::UnixStream;
    /// use annulus::runtime::{self, Runtime};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// Runtime::builder().threads(1).run(|_core| async {
    ///     let (near, far) = UnixStream::pair()?;
    ///     let (read, write) = near.into_split();
    ///     let sends = runtime::spawn(async move { write.send_all("question").await.map(drop) });
    ///     let question = far.recv_exact(vec![0; 8]).await?;
    ///     far.send_all("answer").await?;
    ///     assert_eq!(read.recv_exact(vec![0; 6]).await?, b"answer");
    ///     sends.await??;
    ///     // The task has dropped the write half, so the peer reads the end of the stream.
    ///     assert_eq!(far.recv(question).await?.0, 0);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf<TcpStream>, OwnedWriteHalf<TcpStream>) {
        split::into_split(self.0)
    }

    /// Receives into the core's buffers, with one multishot request for many messages. Needs Linux 6.0; on older
    /// kernels and without a ring, each receive is a separate request.
    ///
    /// For bulk data, single receives into larger buffers take over. The stream stops receiving while 64 KiB are
    /// unread, which slows down the sender.
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        self.0.recv_multishot()
    }

    /// Sends all of `buf` and returns it.
    ///
    /// Sends of one stream are made one after another, in the order in which they were first polled. A future that is
    /// dropped before its turn sends nothing. One that is dropped later still sends the whole buffer; see
    /// [`SendAll`].
    ///
    /// # Errors
    ///
    /// Fails with any error of `send(2)`, unchanged, or with the error of an earlier send that was not awaited. The
    /// error contains the buffer.
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

    /// Sends all of `buf` without copying it within the kernel, and returns it.
    ///
    /// The kernel avoids the copy for buffers of 16 KiB and more that go to other machines, since Linux 6.0. The
    /// future completes once the peer has acknowledged the data. Other sends of this stream wait until then, so
    /// zero-copy lowers CPU use, not latency.
    ///
    /// If the kernel copies anyway, as it does on loopback, or refuses, the next sends of this stream are ordinary
    /// ones. Without a ring, all sends are.
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

    /// Starts a send like [`try_send`](TcpStream::try_send), and passes the buffer to `then` once all of it has been
    /// sent, or the send has failed. `then` may run before this function returns.
    ///
    /// # Errors
    ///
    /// Returns the buffer if another send is under way, or an earlier one has failed.
    #[inline]
    pub fn try_send_then<B: IoBuf>(&self, buf: B, then: impl FnOnce(B) + 'static) -> Result<(), B> {
        self.0.try_send_then(buf, then)
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

    /// Starts to send all of `buf` without waiting for its completion. If the send fails, the next send returns the
    /// error.
    ///
    /// # Errors
    ///
    /// Returns the buffer if another send is under way, or an earlier one has failed.
    /// [`send_all`](TcpStream::send_all) waits instead.
    #[inline]
    pub fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
        self.0.try_send(buf)
    }

    /// Waits until all sends that have begun are complete, that is, until the kernel has their data. Use it after
    /// [`try_send`](TcpStream::try_send), or after dropping a send.
    ///
    /// # Errors
    ///
    /// Fails with the error of a send that was not awaited.
    pub async fn sent(&self) -> io::Result<()> {
        self.0.sent().await
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that accepts nothing. [`Duration::MAX`] is
    /// no limit. The default is the runtime's [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout).
    ///
    /// This is not `SO_LINGER`, which concerns data that the kernel already has
    /// ([`set_linger`](TcpStream::set_linger)).
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
    pub fn abort(&self) {
        self.0.socket.abort();
    }

    /// Shuts down one direction or both, immediately. Data that is still being sent may be cut off; use
    /// [`sent`](TcpStream::sent) first, or [`Writer::finish`].
    ///
    /// # Errors
    ///
    /// Fails with any error of `shutdown(2)`, unchanged.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    /// Returns the remote address.
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
    /// # Errors
    ///
    /// Fails with any error of `setsockopt(2)`, unchanged.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        option::set_linger(self.0.socket.raw(), linger)
    }
}
