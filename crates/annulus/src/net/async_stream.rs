//! Adapters to the `AsyncRead` and `AsyncWrite` traits of other crates.

use std::fmt;
use std::io;
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
use std::io::IoSlice;
use std::mem::MaybeUninit;
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::stream::Stream;
use super::{TcpStream, UnixStream, Writer};
use crate::buf::Chunk;
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
use crate::byte_stream::{ByteStream, byte_stream_traits};

/// A connected stream of this library that an [`AsyncStream`] can take over.
///
/// A function for both kinds of streams:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # #[cfg(feature = "tokio-io")] {
/// use annulus::net::{AsyncStream, ConnectedStream, UnixStream};
/// use tokio::io::AsyncBufReadExt;
///
/// async fn first_line<S: ConnectedStream>(stream: &mut AsyncStream<S>) -> std::io::Result<String>
/// where
///     AsyncStream<S>: tokio::io::AsyncBufRead,
/// {
///     let mut line = String::new();
///     stream.read_line(&mut line).await?;
///     Ok(line)
/// }
/// let (near, far) = UnixStream::pair()?;
/// near.send_all("one\ntwo\n").await?;
/// assert_eq!(first_line(&mut AsyncStream::new(far)).await?, "one\n");
/// # }
/// # Ok(()) })? }
/// ```
pub trait ConnectedStream: sealed::Sealed + 'static {}

impl ConnectedStream for TcpStream {}
impl ConnectedStream for UnixStream {}

impl sealed::Sealed for TcpStream {
    fn stream(&self) -> &Stream {
        &self.0
    }

    fn reset_when_closed(&self) {
        // The call fails if the connection has closed already.
        let _ = self.set_linger(Some(Duration::ZERO));
    }
}

impl sealed::Sealed for UnixStream {
    fn stream(&self) -> &Stream {
        &self.0
    }

    /// A Unix stream has no reset.
    fn reset_when_closed(&self) {}
}

mod sealed {
    use super::Stream;

    /// A newtype over a stream.
    pub trait Sealed {
        fn stream(&self) -> &Stream;

        /// Makes closing the stream a reset, because the written data will not be sent whole.
        fn reset_when_closed(&self);
    }
}

/// A connected stream that implements `AsyncRead`, `AsyncBufRead` and `AsyncWrite`, those of futures-io (feature
/// `futures`) and of Tokio (feature `tokio-io`). It connects libraries written for these traits: TLS, HTTP, codecs.
///
/// ```
/// # #[cfg(feature = "tokio-io")]
/// # fn main() -> std::io::Result<()> {
/// use annulus::net::{AsyncStream, UnixStream};
/// use annulus::runtime::Runtime;
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
///
/// Runtime::builder().cores(1).run(|_core| async {
///     let (near, far) = UnixStream::pair()?;
///     let (mut near, far) = (AsyncStream::new(near), AsyncStream::new(far));
///     near.write_all(b"one line\nand another\n").await?;
///     near.shutdown().await?;
///     let mut lines = far.lines();
///     assert_eq!(lines.next_line().await?.as_deref(), Some("one line"));
///     assert_eq!(lines.next_line().await?.as_deref(), Some("and another"));
///     assert_eq!(lines.next_line().await?, None);
///     Ok(())
/// })
/// # }
/// # #[cfg(not(feature = "tokio-io"))]
/// # fn main() {}
/// ```
///
/// Reads copy from the received data; `AsyncBufRead` reads without a copy. Writes are copied into a [`Writer`], which
/// gathers them and waits for a slow peer. Written data is sent even without a flush. A flush waits until the kernel
/// has all of it.
///
/// `poll_close` and `poll_shutdown` end the sending direction only; data from the peer can still be read.
///
/// A stream stays on its core, so an `AsyncStream` is not `Send`. Moving it to another thread does not compile:
///
/// ```compile_fail,E0277
/// fn everywhere(stream: annulus::net::AsyncStream<annulus::net::TcpStream>) {
///     std::thread::spawn(move || drop(stream));
/// }
/// ```
///
/// Dropping it sends the written data; the socket stays open until then.
pub struct AsyncStream<S: ConnectedStream> {
    stream: S,
    writer: Writer,
    /// Data that was received but not read.
    chunk: Option<Chunk>,
}

impl<S: ConnectedStream> AsyncStream<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> AsyncStream<S> {
        AsyncStream {
            writer: stream.stream().writer(),
            stream,
            chunk: None,
        }
    }

    /// Sets the maximum number of bytes that were written and not yet sent; 64 KiB by default.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # #[cfg(feature = "tokio-io")] {
    /// use annulus::net::{AsyncStream, UnixStream};
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let (near, far) = UnixStream::pair()?;
    /// let mut near = AsyncStream::new(near).with_write_limit(16);
    /// assert_eq!(near.write(&[7; 100]).await?, 16); // as much as fits; `write_all` waits and continues
    /// near.flush().await?;
    /// assert_eq!(far.recv_exact(vec![0; 16]).await?, [7; 16]);
    /// # }
    /// # Ok(()) })? }
    /// ```
    #[must_use]
    pub fn with_write_limit(self, bytes: usize) -> AsyncStream<S> {
        let writer = self.writer.with_limit(bytes);
        AsyncStream { writer, ..self }
    }

    /// Returns the stream, for its addresses and options. Data that the `AsyncStream` has received is not returned by
    /// receives on it.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the stream. Its next receive returns the data that was received but not read. Written data is still
    /// sent.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # #[cfg(feature = "tokio-io")] {
    /// use annulus::net::{AsyncStream, UnixStream};
    /// use tokio::io::AsyncReadExt;
    ///
    /// let (near, far) = UnixStream::pair()?;
    /// near.send_all("head\nbody").await?;
    /// let mut buffered = AsyncStream::new(far);
    /// let mut head = [0; 5];
    /// buffered.read_exact(&mut head).await?;
    /// let far = buffered.into_inner(); // what was received and not read is not lost
    /// assert_eq!(far.recv_exact(vec![0; 4]).await?, b"body");
    /// # }
    /// # Ok(()) })? }
    /// ```
    pub fn into_inner(self) -> S {
        if let Some(chunk) = self.chunk {
            self.stream.stream().recv_multishot().unread(chunk);
        }
        self.stream
    }

    /// Returns the bytes that were received but not read; empty at the end of the stream. For `annulus-hyper`.
    #[doc(hidden)]
    pub fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.chunk.is_none() {
            self.chunk =
                ready!(self.stream.stream().recv_multishot().poll_next(context)).transpose()?;
        } else if !self.spend(context) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(self.chunk.as_deref().unwrap_or_default()))
    }

    /// Marks bytes that [`fill`](Self::fill) returned as read. For `annulus-hyper`.
    #[doc(hidden)]
    pub fn advance(&mut self, bytes: usize) {
        if let Some(chunk) = &mut self.chunk {
            chunk.advance(bytes);
            if chunk.is_empty() {
                self.chunk = None;
            }
        }
    }
}
/// For `annulus-hyper`. Not covered by version numbers.
#[doc(hidden)]
impl<S: ConnectedStream> AsyncStream<S> {
    /// Takes one operation from the budget of the task that is being polled. Returns `false` if it is used up: the task
    /// must yield, and is polled again.
    #[inline]
    pub fn spend(&self, context: &mut Context<'_>) -> bool {
        self.stream.stream().core.spend(context)
    }

    /// Takes the share of `bytes` bytes from the budget of the task that is being polled.
    #[inline]
    pub fn charge(&self, bytes: usize) {
        self.stream.stream().core.charge(bytes);
    }

    /// Receives into `memory` by a system call if that is faster than [`fill`](Self::fill): for bulk data, and without
    /// a ring. Returns the number of bytes at its front that are initialised now; 0 is the end. `None` asks the caller
    /// to use `fill`.
    pub fn poll_direct(
        &mut self,
        context: &mut Context<'_>,
        memory: &mut [MaybeUninit<u8>],
    ) -> Option<Poll<io::Result<usize>>> {
        if self.chunk.is_some() {
            return None;
        }
        self.stream.stream().receiver.poll_direct(context, memory)
    }

    /// Returns the writer that sends the written data.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Makes closing the stream a reset, because the written data will not be sent whole.
    pub fn reset_when_closed(&self) {
        self.stream.reset_when_closed();
    }

    /// Starts to send `buf` before the data that waits in the writer. `then` receives the buffer at the end of the
    /// send.
    ///
    /// # Errors
    ///
    /// Returns the buffer if the stream is sending.
    pub fn try_send_then(
        &self,
        buf: Vec<u8>,
        then: impl FnOnce(Vec<u8>) + 'static,
    ) -> Result<(), Vec<u8>> {
        self.stream.stream().try_send_then(buf, then)
    }
}

impl<S: ConnectedStream> Unpin for AsyncStream<S> {}

impl<S: ConnectedStream> From<S> for AsyncStream<S> {
    fn from(stream: S) -> AsyncStream<S> {
        AsyncStream::new(stream)
    }
}

impl<S: ConnectedStream + fmt::Debug> fmt::Debug for AsyncStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unread = self.chunk.as_deref().unwrap_or_default().len();
        f.debug_struct("AsyncStream")
            .field("stream", &self.stream)
            .field("unread", &unread)
            .field("unsent", &self.writer.unsent())
            .finish()
    }
}

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
impl<S: ConnectedStream> ByteStream for AsyncStream<S> {
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.fill(context)
    }

    fn consume(&mut self, bytes: usize) {
        self.advance(bytes);
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write_vectored(context, pieces)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_flush(context)
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_finish(context)
    }
}

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
byte_stream_traits!([S: ConnectedStream] AsyncStream<S>);
