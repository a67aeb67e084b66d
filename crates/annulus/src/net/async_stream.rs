//! Streams behind the traits `AsyncRead` and `AsyncWrite` of other crates.

use std::fmt;
use std::io;
#[cfg(any(feature = "futures", feature = "tokio-io"))]
use std::io::IoSlice;
#[cfg(any(feature = "futures", feature = "tokio-io"))]
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{RecvStream, TcpStream, UnixStream, Writer};
use crate::buf::Chunk;

/// A connected stream of this library, which an [`AsyncStream`] can take over.
pub trait ConnectedStream: sealed::Sealed + 'static {}

impl ConnectedStream for TcpStream {}
impl ConnectedStream for UnixStream {}

mod sealed {
    use super::{RecvStream, TcpStream, UnixStream, Writer};

    pub trait Sealed {
        fn chunks(&self) -> RecvStream<'_>;
        fn gathers(&self) -> Writer;
        /// What was written will not be sent whole: the end is to be a reset.
        fn reset_when_closed(&self);
        fn try_send_then(
            &self,
            buf: Vec<u8>,
            then: impl FnOnce(Vec<u8>) + 'static,
        ) -> Result<(), Vec<u8>>;
    }

    impl Sealed for TcpStream {
        fn chunks(&self) -> RecvStream<'_> {
            self.recv_multishot()
        }

        fn gathers(&self) -> Writer {
            self.writer()
        }
        fn reset_when_closed(&self) {
            // Refused, there is no connection any more.
            let _ = self.set_linger(Some(std::time::Duration::ZERO));
        }
        fn try_send_then(
            &self,
            buf: Vec<u8>,
            then: impl FnOnce(Vec<u8>) + 'static,
        ) -> Result<(), Vec<u8>> {
            self.try_send_then(buf, then)
        }
    }

    impl Sealed for UnixStream {
        fn chunks(&self) -> RecvStream<'_> {
            self.recv_multishot()
        }

        fn gathers(&self) -> Writer {
            self.writer()
        }

        /// There is no such thing.
        fn reset_when_closed(&self) {}
        fn try_send_then(
            &self,
            buf: Vec<u8>,
            then: impl FnOnce(Vec<u8>) + 'static,
        ) -> Result<(), Vec<u8>> {
            self.try_send_then(buf, then)
        }
    }
}

/// A connected stream behind the traits `AsyncRead`, `AsyncBufRead` and `AsyncWrite`: those of futures-io (feature
/// `futures`) and of Tokio (feature `tokio-io`). Libraries written against these traits can use it: TLS, HTTP, codecs.
///
/// ```
/// # #[cfg(feature = "tokio-io")]
/// # fn main() -> std::io::Result<()> {
/// use annulus::net::{AsyncStream, UnixStream};
/// use annulus::runtime::Runtime;
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
///
/// Runtime::builder().threads(1).run(|_core| async {
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
/// Reads copy out of what has been received; read as `AsyncBufRead` it is not copied. Writes are copied
/// into a [`Writer`], which sends them together and waits for a slow peer; what is written is sent without
/// a flush, too. A flush waits until the kernel has all of it. Closing (`poll_close`, `poll_shutdown`) ends
/// the direction of sending only: what the peer still sends can be read.
///
/// A stream stays on its core, so an `AsyncStream` is not `Send`; moving it to another thread
/// does not compile:
///
/// ```compile_fail,E0277
/// fn everywhere(stream: annulus::net::AsyncStream<annulus::net::TcpStream>) {
///     std::thread::spawn(move || drop(stream));
/// }
/// ```
///
/// Dropping it sends what was written; the socket stays open until then.
pub struct AsyncStream<S: ConnectedStream> {
    stream: S,
    writer: Writer,
    /// What has been received and not read.
    chunk: Option<Chunk>,
}

impl<S: ConnectedStream> AsyncStream<S> {
    /// Takes over a stream.
    pub fn new(stream: S) -> AsyncStream<S> {
        AsyncStream {
            writer: stream.gathers(),
            stream,
            chunk: None,
        }
    }

    /// At most `bytes` bytes that were written wait to be sent; 64 KiB by default.
    #[must_use]
    pub fn with_write_limit(self, bytes: usize) -> AsyncStream<S> {
        let writer = self.writer.with_limit(bytes);
        AsyncStream { writer, ..self }
    }

    /// The stream: its addresses and options. What it receives itself is missing here.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream. What has been received and not read is received by it; what was written is sent.
    pub fn into_inner(self) -> S {
        if let Some(chunk) = self.chunk {
            self.stream.chunks().unread(chunk);
        }
        self.stream
    }

    /// Bytes that were received and not read; empty at the end of the stream. For `annulus-hyper`.
    #[doc(hidden)]
    pub fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.chunk.is_none() {
            self.chunk = ready!(self.stream.chunks().poll_next(context)).transpose()?;
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
    /// The writer that sends what is written here.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Makes closing the stream a reset: what was written will not be sent whole.
    pub fn reset_when_closed(&self) {
        self.stream.reset_when_closed();
    }

    /// Begins to send `buf`, ahead of what waits in the writer, unless the stream is sending; `then` is
    /// given it at the end.
    ///
    /// # Errors
    ///
    /// The buffer, if the stream is sending.
    pub fn try_send_then(
        &self,
        buf: Vec<u8>,
        then: impl FnOnce(Vec<u8>) + 'static,
    ) -> Result<(), Vec<u8>> {
        self.stream.try_send_then(buf, then)
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

#[cfg(feature = "futures")]
impl<S: ConnectedStream> futures_io::AsyncRead for AsyncStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let received = ready!(self.fill(context))?;
        let bytes = received.len().min(buf.len());
        buf[..bytes].copy_from_slice(&received[..bytes]);
        self.advance(bytes);
        Poll::Ready(Ok(bytes))
    }
}

#[cfg(feature = "futures")]
impl<S: ConnectedStream> futures_io::AsyncBufRead for AsyncStream<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().fill(context)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().advance(bytes);
    }
}

#[cfg(feature = "futures")]
impl<S: ConnectedStream> futures_io::AsyncWrite for AsyncStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write_vectored(context, pieces)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_finish(context)
    }
}

#[cfg(feature = "tokio-io")]
impl<S: ConnectedStream> tokio::io::AsyncRead for AsyncStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received = ready!(self.fill(context))?;
        let bytes = received.len().min(buf.remaining());
        buf.put_slice(&received[..bytes]);
        self.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio-io")]
impl<S: ConnectedStream> tokio::io::AsyncBufRead for AsyncStream<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().fill(context)
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().advance(bytes);
    }
}

#[cfg(feature = "tokio-io")]
impl<S: ConnectedStream> tokio::io::AsyncWrite for AsyncStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer.poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_finish(context)
    }
}
