//! The transports of HTTP/1.1: plain TCP, and TLS over it. The connection is compiled for each, so that plain TCP has
//! no overhead.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use annulus::buf::Chunk;
use annulus::net::AsyncStream;
use annulus::net::TcpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::site::OpenFile;

/// A bidirectional byte stream.
pub(crate) trait Transport: 'static {
    /// Received bytes.
    type Chunk: Deref<Target = [u8]>;

    /// `true` if dropping the transport tells the client that no more data follows.
    const ENDS_WHEN_DROPPED: bool;

    /// `true` if the first bytes tell whether the client uses HTTP/2.
    const DETECTS_HTTP2: bool;

    /// Returns the next bytes, or `None` if the client sends no more. Bytes received after an error must be discarded.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Self::Chunk>>>;

    /// Puts received bytes back for another reader, before those that were put back earlier. For [`DETECTS_HTTP2`].
    ///
    /// [`DETECTS_HTTP2`]: Transport::DETECTS_HTTP2
    fn unread(&mut self, chunk: Self::Chunk);

    /// Starts to send all of `bytes`, or returns them if a send is in flight. It does not wait for the completion. The
    /// next send returns an error of this one. The memory then goes back to `buffers`.
    fn try_send(&mut self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), Vec<u8>>;

    /// Sends `bytes` as the last ones and closes. Returns both if a send is in flight.
    fn close_with(self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), (Self, Vec<u8>)>
    where
        Self: Sized;

    /// Sends all of `bytes` after the send in flight, and returns the memory.
    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>>;

    /// Sends `head` and then a range of a file, within the kernel. Returns the bytes sent of the file, or `None` if the
    /// file has to be read.
    async fn send_file(
        &mut self,
        head: &[u8],
        file: &OpenFile,
        range: Range<u64>,
        progress: impl FnMut(),
    ) -> io::Result<Option<u64>>;

    /// Returns the underlying socket.
    fn socket(&self) -> &TcpStream;

    /// Tells the client that no more data follows.
    async fn finish(&mut self);

    /// Resets the connection, so that a truncated response does not look complete.
    fn abort(&self) {
        self.socket().abort();
    }
}

impl Transport for TcpStream {
    type Chunk = Chunk;

    const ENDS_WHEN_DROPPED: bool = true;
    const DETECTS_HTTP2: bool = true;

    #[inline]
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        self.recv_multishot().poll_next(context)
    }

    fn unread(&mut self, chunk: Chunk) {
        self.recv_multishot().unread(chunk);
    }

    #[inline]
    fn try_send(&mut self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), Vec<u8>> {
        let buffers = Rc::clone(buffers);
        self.try_send_then(bytes, move |bytes| buffers.give_back(bytes))
    }

    fn close_with(self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), (Self, Vec<u8>)> {
        let buffers = Rc::clone(buffers);
        TcpStream::close_with(self, bytes, move |bytes| buffers.give_back(bytes))
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        Ok(self.send_all(bytes).await?)
    }

    async fn send_file(
        &mut self,
        head: &[u8],
        file: &OpenFile,
        range: Range<u64>,
        progress: impl FnMut(),
    ) -> io::Result<Option<u64>> {
        let bytes = range.end - range.start;
        let sent = TcpStream::send_file(self, head, file.as_fd(), range.start, bytes, progress);
        sent.await.map(Some)
    }

    fn socket(&self) -> &TcpStream {
        self
    }

    async fn finish(&mut self) {
        // `ENOTCONN` means that the client has left.
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// The number of buffers that are kept for reuse, and their largest capacity. About as many are in sends at a time.
const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 80 << 10;

/// A core's buffers for responses. Reuse saves an allocation per response, and the memory stays in the processor's
/// cache.
#[derive(Default)]
pub(crate) struct Buffers(RefCell<Vec<Vec<u8>>>);

impl Buffers {
    /// Returns an empty buffer.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, mut bytes: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < BUFFERS_MAX && (1..=BUFFER_BYTES_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            kept.push(bytes);
        }
    }
}

/// The size of a TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// TLS over TCP.
pub(crate) struct Tls {
    stream: TlsStream<AsyncStream<TcpStream>>,
    /// A receive failed. The client gets an alert, and its remaining bytes are not decrypted.
    failed: bool,
    /// The buffer for a received record. It is shared by the core, so that idle connections have none.
    scratch: Rc<Scratch>,
}

/// The buffer of [`Tls`] for received records.
pub(crate) struct Scratch(RefCell<Box<[u8]>>);

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch(vec![0; RECORD_BYTES].into_boxed_slice().into())
    }
}

impl Tls {
    pub(crate) fn new(stream: TlsStream<AsyncStream<TcpStream>>, scratch: Rc<Scratch>) -> Tls {
        Tls {
            stream,
            failed: false,
            scratch,
        }
    }
}

impl Transport for Tls {
    type Chunk = Box<[u8]>;

    /// Without `close_notify`, an attacker may have cut off the data.
    const ENDS_WHEN_DROPPED: bool = false;
    /// The handshake does.
    const DETECTS_HTTP2: bool = false;

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Box<[u8]>>>> {
        let mut scratch = self.scratch.0.borrow_mut();
        let mut buf = ReadBuf::new(&mut scratch);
        let read = match self.failed {
            false => ready!(Pin::new(&mut self.stream).poll_read(context, &mut buf)),
            true => ready!(Pin::new(self.stream.get_mut().0).poll_read(context, &mut buf)),
        };
        self.failed |= read.is_err();
        Poll::Ready(match read {
            Ok(()) if buf.filled().is_empty() => None,
            Ok(()) => Some(Ok(Box::from(buf.filled()))),
            Err(error) => Some(Err(error)),
        })
    }

    fn unread(&mut self, _: Box<[u8]>) {}

    fn try_send(&mut self, bytes: Vec<u8>, _: &Rc<Buffers>) -> Result<(), Vec<u8>> {
        Err(bytes)
    }

    fn close_with(self, bytes: Vec<u8>, _: &Rc<Buffers>) -> Result<(), (Self, Vec<u8>)> {
        Err((self, bytes))
    }

    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut left = &bytes[..];
        while !left.is_empty() {
            let written =
                poll_fn(|context| Pin::new(&mut self.stream).poll_write(context, left)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            left = &left[written..];
        }
        poll_fn(|context| Pin::new(&mut self.stream).poll_flush(context)).await?;
        Ok(bytes)
    }

    async fn send_file(
        &mut self,
        _: &[u8],
        _: &OpenFile,
        _: Range<u64>,
        _: impl FnMut(),
    ) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn socket(&self) -> &TcpStream {
        self.stream.get_ref().0.get_ref()
    }

    async fn finish(&mut self) {
        // An error means that the client has left.
        let _ = poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await;
    }
}
