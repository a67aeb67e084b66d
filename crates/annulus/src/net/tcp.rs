//! TCP.

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
use crate::sys::option;

/// A listener. Each core of a server binds its own at the same address, and the kernel spreads connections over them.
#[derive(Debug)]
pub struct TcpListener {
    acceptor: Rc<Acceptor>,
}

impl TcpListener {
    /// Listens at `address`, the first of those it stands for that can be had.
    ///
    /// The other cores of this runtime may bind the same address, once each, and share its connections. Listeners of
    /// other runtimes and processes are refused it, as with std and Tokio. Port 0 is a new port for each call: a
    /// server of several cores has one core bind it, and the others bind that core's
    /// [`local_addr`](TcpListener::local_addr). The address may be taken again as soon as a server has ended
    /// (`SO_REUSEADDR`). [`bind_with`](TcpListener::bind_with) has options for all of it.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another process, another runtime or another listener of this core has the address. So has, for
    /// some milliseconds, a process with a ring that was killed; one that has ended in order has not.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with(address, &ListenOptions::new())
    }

    /// As [`bind`](TcpListener::bind), with options.
    ///
    /// # Errors
    ///
    /// As for [`bind`](TcpListener::bind).
    pub fn bind_with(
        address: impl ToSocketAddrs,
        options: &ListenOptions,
    ) -> io::Result<TcpListener> {
        first(address, |address| {
            let core = super::core()?;
            let (socket, claim) = listen(&core, address, options)?;
            Ok(TcpListener {
                acceptor: Acceptor::bound(core, socket, claim),
            })
        })
    }

    /// Takes over std's listener.
    ///
    /// # Errors
    ///
    /// Outside a runtime.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
        let core = super::core()?;
        let socket = core.socket(OwnedFd::from(listener));
        net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
        Ok(TcpListener {
            acceptor: Acceptor::new(core, socket),
        })
    }

    /// Accepts one connection. Dropped, the future leaves it to the next. Several tasks may wait: a connection goes to
    /// the first of them that runs.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`: descriptors have run out; the next call waits 10 ms first.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let accepted =
            std::future::poll_fn(|context| self.acceptor.poll_next(context, false)).await;
        match accepted {
            Some(accepted) => Ok(TcpStream(accepted?)),
            None => Err(EngineError::Ended.into()),
        }
    }

    /// Accepts all connections that come, by one request to the kernel. Since Linux 5.19; before that, and
    /// without a ring, one by one.
    pub fn accept_multishot(self) -> Incoming<TcpStream> {
        Incoming::new(Rc::clone(&self.acceptor))
    }

    /// Its options.
    pub fn options(&self) -> SocketOptions<'_> {
        SocketOptions::of(&self.acceptor.socket)
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(net::local_address(self.acceptor.socket.raw())?)
    }
}

fn internet(address: net::Address) -> io::Result<SocketAddr> {
    net::to_internet(address).ok_or_else(|| {
        let what =
            "the socket is of another family than IPv4 and IPv6, so it has no address of theirs";
        io::Error::new(io::ErrorKind::Unsupported, what)
    })
}

/// Tries the addresses in order.
pub(super) fn first<T>(
    address: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to try");
    for address in address.to_socket_addrs()? {
        match attempt(address) {
            Ok(value) => return Ok(value),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection. It stays on its core. Dropped, it is closed: what has been given to be sent goes out
/// first, receives are cancelled, and no descriptor is left behind.
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
    /// The error of `connect(2)` for the last address that was tried, or an error that names the host that could not
    /// be resolved.
    pub async fn connect(address: impl super::ToSocketAddrs) -> io::Result<TcpStream> {
        let attempt = async |address| Stream::connect(net::internet(address)).await;
        Ok(TcpStream(try_each(address.target(), attempt).await?))
    }

    /// Takes over std's stream.
    ///
    /// # Errors
    ///
    /// Outside a runtime.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        let core = super::core()?;
        let stream = Stream::new(core, OwnedFd::from(stream));
        net::set_nonblocking(stream.socket.raw(), stream.core.wants_nonblocking())?;
        Ok(TcpStream(stream))
    }

    /// Receives what there is, up to the buffer's length; 0 bytes are the end. A dropped future loses
    /// nothing: what it has received comes with the next.
    ///
    /// # Errors
    ///
    /// What `recv(2)` says; [`io::ErrorKind::InvalidInput`] for a buffer without room, as 0 would look like the
    /// end. The buffer comes back with the error.
    pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        self.0.recv(buf)
    }

    /// Fills the buffer. Dropped, the future leaves what it has received to the next. A buffer without room is full:
    /// it comes back immediately, also at the end of the stream.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::UnexpectedEof`]: the peer has said that nothing follows, before that. What came is
    /// in the buffer.
    pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        self.0.recv_exact(buf)
    }

    /// Writes through memory, so that several small writes become one send, and waits for a slow peer.
    pub fn writer(&self) -> Writer {
        self.0.writer()
    }

    /// The two directions, borrowed: to receive in one place, and to send in another.
    pub fn split(&self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split::split(&self.0)
    }

    /// The two directions, for two tasks of the core.
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
    ///     // The write half has gone, and the other side knows.
    ///     assert_eq!(far.recv(question).await?.0, 0);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf<TcpStream>, OwnedWriteHalf<TcpStream>) {
        split::into_split(self.0)
    }

    /// Receives into buffers of the core, by one request to the kernel for all that comes. Since Linux 6.0;
    /// before that, and without a ring, one by one. Where data comes in bulk, single receives into larger
    /// buffers take over. No more than 64 KiB wait to be read.
    pub fn recv_multishot(&self) -> RecvStream<'_> {
        self.0.recv_multishot()
    }

    /// Sends all of `buf`, which comes back. See [`Send`] for what becomes of it when it is dropped.
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

    /// Sends all of `buf` without a copy within the kernel, where it can: buffers of 16 KiB and more, since
    /// Linux 6.0, to other machines. The buffer comes back when the peer has confirmed what was in it, and
    /// other sends of the stream wait until then: it saves the processor's time, not the connection's.
    /// Where the kernel has copied after all, as it does on loopback, or refused, this stream's next sends
    /// are plain ones; so are all without a ring.
    ///
    /// # Errors
    ///
    /// What `send(2)` says.
    pub async fn send_zc<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
        self.0.send_zero_copy(buf).await
    }

    /// Sends `head`, and behind it `bytes` bytes of `file` from `offset` on, which the kernel takes from the page
    /// cache without a copy (`sendfile(2)`): from some ten KiB on it is cheaper than reading and sending. Returns how
    /// many bytes of the file were sent, fewer than asked for where it ends before. `progress` is called whenever the
    /// peer has made room for more. What is not cached is waited for on the spot; a read of it before keeps the core
    /// from that.
    ///
    /// Dropped, or after an error, some of it may have been sent: nothing else can be then. The socket is `O_NONBLOCK`
    /// afterwards, until it is spliced.
    ///
    /// # Errors
    ///
    /// What `sendfile(2)` says: `EINVAL` of a file that can't be sent from.
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

    /// As [`try_send`](TcpStream::try_send), for a buffer that is to be used again: `then` is given it when all
    /// of it has been sent, or could not be. It may be called before this returns.
    ///
    /// # Errors
    ///
    /// The buffer.
    #[inline]
    pub fn try_send_then<B: IoBuf>(&self, buf: B, then: impl FnOnce(B) + 'static) -> Result<(), B> {
        self.0.try_send_then(buf, then)
    }

    /// Sends `buf` as the last of this stream, and closes it: the last bytes and the end leave in one segment, where
    /// [`try_send_then`](TcpStream::try_send_then) and dropping the stream make two. For answers behind which nothing
    /// follows, of which nobody waits for the end. `then` is given the buffer.
    ///
    /// On a ring (Linux 6.0) both are one enter; a send that finds no room goes on, and the end comes behind it. Where
    /// a receive, a [`writer`](TcpStream::writer) or a half of the stream has the socket, too, the end comes with the
    /// last of them, and in a segment of its own.
    ///
    /// **Only for a peer that sends nothing more.** As after any close it would get a reset; and where it has sent
    /// something that was not received, what has not left yet is thrown away: it may not see `buf`.
    ///
    /// # Errors
    ///
    /// The stream and the buffer, while another send is under way.
    pub fn close_with<B: IoBuf>(
        self,
        buf: B,
        then: impl FnOnce(B) + 'static,
    ) -> Result<(), (TcpStream, B)> {
        self.0
            .close_with(buf, then)
            .map_err(|(stream, buf)| (TcpStream(stream), buf))
    }

    /// Begins to send all of `buf`, without waiting for the end of it, unless another send is under way:
    /// then `buf` comes back, and [`send_all`](TcpStream::send_all) is the way to wait. An error is the next
    /// send's.
    ///
    /// # Errors
    ///
    /// The buffer.
    #[inline]
    pub fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
        self.0.try_send(buf)
    }

    /// Waits until all sends that have begun are over: what was given to be sent is with the kernel. For who
    /// began them by [`try_send`](TcpStream::try_send), or dropped them.
    ///
    /// # Errors
    ///
    /// Why one of those failed that nobody waited for.
    pub async fn sent(&self) -> io::Result<()> {
        self.0.sent().await
    }

    /// Sets how long this stream, once dropped, goes on sending to a peer that takes nothing, in place of the runtime's
    /// [`close_timeout`](crate::runtime::RuntimeBuilder::close_timeout); [`Duration::MAX`] without a limit. Not
    /// `SO_LINGER`, which is about what the kernel has taken already ([`set_linger`](TcpStream::set_linger)).
    pub fn set_close_timeout(&self, timeout: Duration) {
        self.0.socket.set_close_timeout(timeout);
    }

    /// Returns a handle that tells how much of this connection's sends the peer has acknowledged: a server uses it to
    /// tell a slow client from one that takes nothing, however long a single send takes.
    pub fn send_progress(&self) -> SendProgress {
        SendProgress::of(&self.0)
    }

    /// Ends the connection immediately by a reset: what is being sent fails, and the peer does not take what has come
    /// for all there was. A Unix stream has no reset; its peer reads an end.
    pub fn abort(&self) {
        self.0.socket.abort();
    }

    /// Ends one direction, or both, immediately: what is still to be sent is not waited for.
    ///
    /// # Errors
    ///
    /// What `shutdown(2)` says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown(how)
    }

    /// Whose connection it is.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: it is nobody's any more.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet(net::peer_address(self.0.socket.raw())?)
    }

    /// Its own address.
    ///
    /// # Errors
    ///
    /// What `getsockname(2)` says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet(net::local_address(self.0.socket.raw())?)
    }

    /// Sends small segments immediately (`TCP_NODELAY`), or gathers them.
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        option::set_nodelay(self.0.socket.raw(), on)
    }

    /// Whether small segments are sent immediately.
    ///
    /// # Errors
    ///
    /// What `getsockopt(2)` says.
    pub fn nodelay(&self) -> io::Result<bool> {
        option::nodelay(self.0.socket.raw())
    }

    /// How long a close waits for what is to be sent; `Some(0)` resets the connection.
    ///
    /// # Errors
    ///
    /// What `setsockopt(2)` says.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        option::set_linger(self.0.socket.raw(), linger)
    }
}
