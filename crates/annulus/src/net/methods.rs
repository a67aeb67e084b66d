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
            /// are unread, which slows down the sender.
            pub fn recv_multishot(&self) -> RecvStream<'_> {
                self.0.recv_multishot()
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
            pub fn into_split(self) -> (OwnedReadHalf<$stream>, OwnedWriteHalf<$stream>) {
                split::into_split(self.0)
            }

            /// Sends all of `buf` and returns it.
            ///
            /// Sends of one stream are made one after another, in the order in which they were first polled. A future
            /// that is dropped before its turn sends nothing. One that is dropped later still sends the whole buffer;
            /// see [`SendAll`]. One that was polled and is then neither polled nor dropped may hold up the later sends.
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
            /// # Errors
            ///
            /// Fails with any error of `sendmsg(2)`, unchanged. The error contains the buffers.
            pub async fn send_vectored_all<B: IoBuf>(&self, bufs: Vec<B>) -> WholeResult<Vec<B>> {
                self.0.send_vectored_all(bufs).await
            }

            /// Starts to send all of `buf` without waiting for its completion. If the send fails, the next send returns
            /// the error.
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
            /// after [`try_send`](Self::try_send), or after dropping a send.
            ///
            /// # Errors
            ///
            /// Fails with the error of a send that was not awaited.
            pub async fn sent(&self) -> io::Result<()> {
                self.0.sent().await
            }

            /// Waits until the stream is readable: data, the end of the stream, or an error. Data that has been
            /// received but not read counts.
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

            /// Shuts down one direction or both, immediately. Data that is still being sent may be cut off; use
            /// [`sent`](Self::sent) first, or [`Writer::finish`].
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
            /// Sends `buf` as one datagram to the connected peer and returns it.
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
            /// [`recv_from`](Self::recv_from) also reports such a loss.
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
