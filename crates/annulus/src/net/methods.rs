//! The public methods that sockets of TCP or UDP and of Unix have in common: streams, listeners and datagram sockets.
//! They are written once, so that the newtypes do not diverge.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::acceptor::{Accepted, Acceptor, Incoming};
use super::descriptor::{End, Sealed, Splices};
use super::exact::RecvExact;
use super::options::SocketOptions;
use super::receiver::RecvStream;
use super::split::{self, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::stream::{Recv, SendAll, Stream};
use super::tcp::{TcpListener, TcpStream};
use super::udp::UdpSocket;
use super::unix::{UnixListener, UnixStream};
use super::unix_datagram::UnixDatagram;
use super::writer::Writer;
use crate::buf::{IoBuf, IoBufMut};
use crate::error::{BufResult, WholeResult};
use crate::sys::net;

/// Implements the methods of a newtype over `Stream`. `$std` is std's stream of the same kind.
macro_rules! stream_methods {
    ($stream:ident, $std:ty) => {
        impl $stream {
            /// Takes over a stream of std.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// use annulus::net::UnixStream;
            ///
            /// let (near, far) = std::os::unix::net::UnixStream::pair()?;
            /// // The stream may be in blocking or in nonblocking mode.
            /// let (near, far) = (UnixStream::from_std(near)?, UnixStream::from_std(far)?);
            /// near.send_all("hello").await?;
            /// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails if the calling thread is not a runtime core.
            pub fn from_std(stream: $std) -> io::Result<$stream> {
                let core = super::core()?;
                let stream = Stream::new(core, OwnedFd::from(stream));
                net::set_nonblocking(stream.socket.raw(), stream.core.wants_nonblocking())?;
                Ok($stream(stream))
            }

            /// Receives the available bytes, at most the buffer's length. Returns the number of bytes and the buffer; 0
            /// is the end of the stream.
            ///
            /// Dropping the future loses no data: the next receive returns it. One that was polled and is then neither
            /// polled nor dropped, for example after `select!`, holds up the other receives of the stream.
            ///
            /// A receive is often short. Data that does not fit stays for the next receive:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// near.send_all("hello").await?;
            /// let (bytes, buf) = far.recv(vec![0; 4]).await?;
            /// assert_eq!((bytes, &buf[..]), (4, &b"hell"[..]));
            /// let (bytes, buf) = far.recv(buf).await?;
            /// assert_eq!(&buf[..bytes], b"o"); // the rest of `buf` is unchanged
            ///
            /// drop(near);
            /// assert_eq!(far.recv(buf).await?.0, 0); // the end of the stream
            /// let error = far.recv(Vec::new()).await.unwrap_err(); // an empty `Vec` has no capacity
            /// assert_eq!(error.error().kind(), std::io::ErrorKind::InvalidInput);
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with [`io::ErrorKind::InvalidInput`] if the buffer has no capacity, because 0 would look like the
            /// end. Fails with any other error of `recv(2)`, unchanged. The error contains the buffer.
            pub fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
                self.0.recv(buf)
            }

            /// Receives until the buffer is full. A buffer without capacity comes back immediately, even at the end of
            /// the stream.
            ///
            /// Dropping the future loses no data: the next receive returns it.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// near.send_all("hel").await?;
            /// drop(near);
            /// let error = far.recv_exact(vec![0; 5]).await.unwrap_err();
            /// assert_eq!(error.error().kind(), std::io::ErrorKind::UnexpectedEof);
            /// assert_eq!(error.into_buf().unwrap(), b"hel\0\0"); // what has arrived before the end
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with [`io::ErrorKind::UnexpectedEof`] if the stream ends before the buffer is full. Fails with any
            /// error of `recv(2)`, unchanged. The error contains the buffer with the bytes that were received.
            pub fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
                self.0.recv_exact(buf)
            }

            /// Receives into the core's buffers, with one multishot request for many messages. Needs Linux 6.0; on
            /// older kernels and without a ring, each receive is a separate request.
            ///
            /// For bulk data, single receives into larger buffers take over. The stream stops receiving while 64 KiB
            /// are unread, which slows down the sender. Dropping the value loses no data: the next receive returns it.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// near.send_all("hello").await?;
            /// drop(near);
            /// let mut received = Vec::new();
            /// let mut chunks = far.recv_multishot();
            /// while let Some(chunk) = chunks.next().await {
            ///     received.extend_from_slice(&chunk?); // a chunk may be a part of a message, or several
            /// }
            /// assert_eq!(received, b"hello");
            /// # Ok(()) })? }
            /// ```
            pub fn recv_multishot(&self) -> RecvStream<'_> {
                self.0.recv_multishot()
            }

            /// Returns a writer that gathers small writes into larger sends, and waits for a slow peer.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// let mut writer = near.writer();
            /// writer.write(b"hel").await?;
            /// writer.write(b"lo").await?; // goes out with the first write, in one send
            /// drop(writer); // does not discard what was written
            /// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
            /// # Ok(()) })? }
            /// ```
            pub fn writer(&self) -> Writer {
                self.0.writer()
            }

            /// Borrows the two directions of the stream separately.
            ///
            /// One task can receive and send at the same time:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// # far.send_all("hello").await?;
            /// let (read, write) = near.split();
            /// let receives = read.recv_exact(vec![0; 5]);
            /// let sends = write.send_all("question");
            /// let (received, sent) = futures_lite::future::zip(receives, sends).await;
            /// assert_eq!((received?, sent?), (b"hello".to_vec(), "question"));
            /// # Ok(()) })? }
            /// ```
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
            /// Runtime::builder().cores(1).run(|_core| async {
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
            pub fn into_split(self) -> (OwnedReadHalf<$stream>, OwnedWriteHalf<$stream>) {
                split::into_split(self.0)
            }

            /// Sends all of `buf` and returns it.
            ///
            /// Sends of one stream are made one after another, in the order in which they were first polled. A future
            /// that is dropped before its turn sends nothing. One that is dropped later still sends the whole buffer;
            /// see [`SendAll`]. One that was polled and is then neither polled nor dropped may hold up the later sends.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// let request = near.send_all(b"hello".to_vec()).await?; // the buffer comes back, for the next send
            /// near.send_all(request).await?;
            ///
            /// far.shutdown(std::net::Shutdown::Read)?; // the peer receives nothing more
            /// let error = near.send_all(b"more".to_vec()).await.unwrap_err();
            /// assert_eq!(error.error().kind(), std::io::ErrorKind::BrokenPipe);
            /// assert_eq!(error.into_buf().unwrap(), b"more"); // it comes back with an error, too
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with any error of `send(2)`, unchanged, or with the error of an earlier send that was not awaited.
            /// The error contains the buffer.
            pub fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
                self.0.send_all(buf)
            }

            /// Sends all of several buffers, in order, and returns them. A dropped future behaves like a dropped
            /// [`SendAll`].
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// let response = vec![b"head".to_vec(), b"body".to_vec()];
            /// let response = near.send_vectored_all(response).await?; // one system call, no copy in this process
            /// assert_eq!(response.len(), 2);
            /// assert_eq!(far.recv_exact(vec![0; 8]).await?, b"headbody");
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with any error of `sendmsg(2)`, unchanged. The error contains the buffers.
            pub async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
                self.0.send_vectored_all(bufs).await
            }

            /// Starts to send all of `buf` without waiting for its completion. If the send fails, the next send returns
            /// the error.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// let big = vec![7; 1 << 20]; // more than the socket buffers hold
            /// assert!(near.try_send(big).is_ok());
            /// // That send is under way, so the next buffer comes back; `send_all` would wait.
            /// assert_eq!(near.try_send("end"), Err("end"));
            /// far.recv_exact(vec![0; 1 << 20]).await?;
            /// near.sent().await?; // also returns the error of the send
            /// assert_eq!(near.try_send("end"), Ok(()));
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Returns the buffer if another send is under way, or an earlier one has failed.
            /// [`send_all`](Self::send_all) waits instead.
            #[inline]
            pub fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
                self.0.try_send(buf)
            }

            /// Starts a send like [`try_send`](Self::try_send), and passes the buffer to `then` once all of it has been
            /// sent, or the send has failed. `then` may run before this function returns.
            ///
            /// The callback can return the buffer to a pool:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// use std::{cell::RefCell, rc::Rc};
            ///
            /// let pool = Rc::new(RefCell::new(Vec::new()));
            /// let home = Rc::clone(&pool);
            /// let started = near.try_send_then(b"hello".to_vec(), move |buf| home.borrow_mut().push(buf));
            /// assert!(started.is_ok());
            /// near.sent().await?;
            /// assert_eq!(pool.borrow().len(), 1);
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Returns the buffer if another send is under way, or an earlier one has failed.
            #[inline]
            pub fn try_send_then<B: IoBuf>(
                &self,
                buf: B,
                then: impl FnOnce(B) + 'static,
            ) -> Result<(), B> {
                self.0.try_send_then(buf, then)
            }

            /// Waits until all sends that have begun are complete, that is, until the kernel has their data. Use it
            /// after [`try_send`](Self::try_send), or after dropping a send. If the future is dropped, the sends go on.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// far.shutdown(std::net::Shutdown::Read)?; // the peer receives nothing more
            /// assert!(near.try_send("hello").is_ok()); // started, but it fails later
            /// let error = near.sent().await.unwrap_err();
            /// assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with the error of a send that was not awaited.
            pub async fn sent(&self) -> io::Result<()> {
                self.0.sent().await
            }

            /// Waits until the stream is readable: data, the end of the stream, or an error. Data that has been
            /// received but not read counts. Dropping the future loses no data.
            ///
            /// The wait needs no buffer. A server with many idle connections can allocate it when data has arrived:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// # near.send_all("hello").await?;
            /// far.readable().await?;
            /// let (bytes, _) = far.recv(vec![0; 4096]).await?;
            /// assert_eq!(bytes, 5);
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with any error of `poll(2)`, unchanged.
            pub async fn readable(&self) -> io::Result<()> {
                self.0.readable().await
            }

            /// Waits until the stream is writable, or has an error. Dropping the future loses nothing.
            ///
            /// # Errors
            ///
            /// Fails with any error of `poll(2)`, unchanged.
            pub async fn writable(&self) -> io::Result<()> {
                self.0.writable().await
            }

            /// Returns a handle for reading and setting socket options.
            ///
            /// Options that it lacks are set through the crate `socket2`:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// near.options().set_send_buffer_bytes(64 << 10)?;
            /// let options = near.options();
            /// socket2::SockRef::from(&options).set_keepalive(true)?;
            /// # Ok(()) })? }
            /// ```
            pub fn options(&self) -> SocketOptions<'_> {
                SocketOptions::of(&self.0.socket)
            }

            /// Shuts down one direction or both, immediately. Data that is still being sent may be cut off; use
            /// [`sent`](Self::sent) first, or [`Writer::finish`].
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// # let (near, far) = annulus::net::UnixStream::pair()?;
            /// use std::net::Shutdown;
            ///
            /// near.send_all("hello").await?;
            /// near.shutdown(Shutdown::Write)?; // `far` reads the end; `near` can still receive
            /// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
            /// assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
            /// far.send_all("bye").await?;
            /// assert_eq!(near.recv_exact(vec![0; 3]).await?, b"bye");
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with any error of `shutdown(2)`, unchanged.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.0.shutdown(how)
            }
        }

        impl From<Accepted> for $stream {
            fn from(Accepted(stream): Accepted) -> $stream {
                $stream(stream)
            }
        }

        impl Splices for $stream {
            #[expect(private_interfaces)]
            fn end(&self, _: Sealed) -> End<'_> {
                End::Stream(&self.0)
            }
        }
    };
}

/// Implements the methods of a listener. `$std` is std's listener of the same kind.
macro_rules! listener_methods {
    ($listener:ident, $stream:ident, $std:ty) => {
        impl $listener {
            /// Takes over a listener of std. Several cores may each take over a clone of one listener, and share its
            /// connections.
            ///
            /// A listener that the process has inherited, or that was bound before the runtime started:
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// use annulus::net::{TcpListener, TcpStream};
            ///
            /// let bound = std::net::TcpListener::bind("127.0.0.1:0")?;
            /// let address = bound.local_addr()?;
            /// let listener = TcpListener::from_std(bound)?; // other cores: `bound.try_clone()`
            /// let _client = TcpStream::connect(address).await?;
            /// listener.accept().await?;
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails if the calling thread is not a runtime core.
            pub fn from_std(listener: $std) -> io::Result<$listener> {
                let core = super::core()?;
                let socket = core.socket(OwnedFd::from(listener));
                net::set_nonblocking(socket.raw(), core.wants_nonblocking())?;
                Ok($listener {
                    acceptor: Acceptor::new(core, socket).into(),
                })
            }

            /// Accepts one connection.
            ///
            /// Several tasks may wait; a connection goes to the first of them that runs. Dropping the future loses no
            /// connection: the next call returns it.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// use annulus::net::{TcpListener, TcpStream};
            ///
            /// let listener = TcpListener::bind("127.0.0.1:0")?;
            /// // Dropped while it waits, as by a timeout: no connection is lost.
            /// assert!(futures_lite::future::poll_once(listener.accept()).await.is_none());
            /// let client = TcpStream::connect(listener.local_addr()?).await?;
            /// let accepted = listener.accept().await?;
            /// assert_eq!(accepted.peer_addr()?, client.local_addr()?);
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with `EMFILE` or `ENFILE` if descriptors have run out, and with other errors of `accept(2)`; the
            /// next call then waits for 10 ms before it tries again, except after `ECONNABORTED`. Fails with
            /// [`EngineError::Ended`](crate::EngineError::Ended) when the runtime ends.
            pub async fn accept(&self) -> io::Result<$stream> {
                Ok($stream(self.acceptor.accept().await?))
            }

            /// Returns the connections that arrive, accepted with one multishot request. Needs Linux 5.19; on older
            /// kernels and without a ring, each connection is a separate request.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// use annulus::net::{TcpListener, TcpStream};
            ///
            /// let listener = TcpListener::bind("127.0.0.1:0")?;
            /// let address = listener.local_addr()?; // the listener moves into the stream of connections
            /// let mut incoming = listener.accept_multishot();
            /// for _ in 0..3 {
            ///     let client = TcpStream::connect(address).await?;
            ///     let accepted = incoming.next().await.expect("`None` only when the runtime ends")?;
            ///     assert_eq!(accepted.peer_addr()?, client.local_addr()?);
            /// }
            /// # Ok(()) })? }
            /// ```
            pub fn accept_multishot(self) -> Incoming<$stream> {
                Incoming::new(Rc::clone(&self.acceptor))
            }

            /// Returns a handle for reading and setting socket options.
            pub fn options(&self) -> SocketOptions<'_> {
                SocketOptions::of(&self.acceptor.socket)
            }
        }
    };
}

/// Implements the methods of a datagram socket, whose first field is the shared part.
macro_rules! datagram_methods {
    ($socket:ident) => {
        impl $socket {
            /// Sends `buf` as one datagram to the connected peer and returns it. A dropped send that has begun still
            /// sends the datagram.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// use annulus::net::{UdpSocket, UnixDatagram};
            ///
            /// let (near, far) = UnixDatagram::pair()?;
            /// near.send("one").await?;
            /// near.send("two").await?; // each send is a datagram of its own
            /// assert_eq!(far.recv(vec![0; 64]).await?.0, 3);
            ///
            /// let unconnected = UdpSocket::bind("127.0.0.1:0")?;
            /// assert!(unconnected.send("lost").await.is_err()); // `connect` first, or `send_to`
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with `EDESTADDRREQ` (UDP) or `ENOTCONN` (Unix) if the socket is not connected, and with
            /// `ECONNREFUSED` if an earlier UDP datagram reached a machine without a socket at that port. The error
            /// contains the buffer.
            pub async fn send<B: IoBuf>(&self, buf: B) -> WholeResult<B> {
                self.0.send(buf, None).await
            }

            /// Receives a datagram into `buf`. Returns its length; bytes that do not fit are lost.
            /// [`recv_from`](Self::recv_from) also reports such a loss. Dropping the future loses no datagram.
            ///
            /// ```
            /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
            /// let (near, far) = annulus::net::UnixDatagram::pair()?;
            /// near.send("hello").await?;
            /// near.send("next").await?;
            /// let (bytes, buf) = far.recv(vec![0; 4]).await?;
            /// assert_eq!(&buf[..bytes], b"hell"); // unlike a stream, the rest is lost
            /// let (bytes, buf) = far.recv(buf).await?;
            /// assert_eq!(&buf[..bytes], b"next");
            /// # Ok(()) })? }
            /// ```
            ///
            /// # Errors
            ///
            /// Fails with any error of `recvmsg(2)`, unchanged: `ECONNREFUSED` if an earlier UDP datagram reached a
            /// machine without a socket at that port.
            pub async fn recv<B: IoBufMut>(&self, buf: B) -> BufResult<usize, B> {
                let (received, buf) = self.0.recv(buf).await?;
                Ok((received.bytes, buf))
            }

            /// Returns a handle for reading and setting socket options.
            pub fn options(&self) -> SocketOptions<'_> {
                SocketOptions::of(&self.0.socket)
            }
        }

        impl Drop for $socket {
            fn drop(&mut self) {
                self.0.close();
            }
        }
    };
}

stream_methods!(TcpStream, std::net::TcpStream);
stream_methods!(UnixStream, std::os::unix::net::UnixStream);
listener_methods!(TcpListener, TcpStream, std::net::TcpListener);
listener_methods!(UnixListener, UnixStream, std::os::unix::net::UnixListener);
datagram_methods!(UdpSocket);
datagram_methods!(UnixDatagram);
