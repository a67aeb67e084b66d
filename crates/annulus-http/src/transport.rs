//! What a connection of HTTP/1.1 is spoken over: TCP as it is, or TLS over it. Two of them; the connection is
//! compiled for each, so that plain TCP pays nothing for the other.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::ops::{Deref, Range};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use annulus::buf::Chunk;
use annulus::net::AsyncStream;
use annulus::net::TcpStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::site::OpenFile;

/// A stream of bytes both ways.
pub(crate) trait Transport: 'static {
    /// What arrives at once.
    type Chunk: Deref<Target = [u8]>;

    /// Dropped, it tells the client that nothing follows.
    const ENDS_WHEN_DROPPED: bool;

    /// The next bytes; `None` when the client sends no more. What comes after an error is to be thrown away.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Self::Chunk>>>;

    /// Puts back what was received, for others to receive. What can't be put back is returned.
    fn unread(&mut self, chunk: Self::Chunk) -> Option<Self::Chunk>;

    /// Begins to send all of `bytes`, unless something is being sent: then they come back. Nobody waits for the
    /// end of it; an error is the next send's. The memory goes back to `buffers` then.
    fn try_send(&mut self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), Vec<u8>>;

    /// Sends `bytes` as the last, and ends; not while something is being sent.
    fn close_with(self, bytes: Vec<u8>, buffers: &Rc<Buffers>) -> Result<(), (Self, Vec<u8>)>
    where
        Self: Sized;

    /// Sends all of `bytes` after what is being sent, and gives the memory back.
    async fn send(&mut self, bytes: Vec<u8>) -> io::Result<Vec<u8>>;

    /// Sends `head` and a range of a file behind it, within the kernel, and says how much of the file that was; `None`
    /// if it has to be read.
    async fn send_file(
        &mut self,
        head: &[u8],
        file: &OpenFile,
        range: Range<u64>,
        progress: impl FnMut(),
    ) -> io::Result<Option<u64>>;

    /// The socket under it.
    fn socket(&self) -> &TcpStream;

    /// Tells the client that nothing follows.
    async fn finish(&mut self);

    /// Ends the connection now, by a reset: a response that was cut off does not look like a whole one.
    fn abort(&self) {
        self.socket().abort();
    }
}

impl Transport for TcpStream {
    type Chunk = Chunk;

    const ENDS_WHEN_DROPPED: bool = true;

    #[inline]
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        self.recv_multishot().poll_next(context)
    }

    fn unread(&mut self, chunk: Chunk) -> Option<Chunk> {
        self.recv_multishot().unread(chunk);
        None
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
        let Some(file) = file.descriptor() else {
            return Ok(None);
        };
        let bytes = range.end - range.start;
        let sent = TcpStream::send_file(self, head, file, range.start, bytes, progress);
        sent.await.map(Some)
    }

    fn socket(&self) -> &TcpStream {
        self
    }

    async fn finish(&mut self) {
        // Refused (ENOTCONN), the client has gone.
        let _ = self.shutdown(Shutdown::Write);
    }
}

/// Buffers that are kept to be used again, and the capacity of one. About as many are with the kernel at a time.
const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 80 << 10;

/// A core's buffers for responses: a response costs no allocation, and its memory is in the processor's cache.
#[derive(Default)]
pub(crate) struct Buffers(RefCell<Vec<Vec<u8>>>);

impl Buffers {
    /// An empty one.
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

/// Bytes that TLS gives at once: a record's.
const RECORD_BYTES: usize = 16 << 10;

/// TLS over TCP.
pub(crate) struct Tls {
    stream: TlsStream<AsyncStream<TcpStream>>,
    /// What was received is not by the protocol. The client is told by an alert; what it still sends is no TLS.
    failed: bool,
    /// Where records are put first: the core's, so that a connection that waits has no memory for it.
    scratch: Rc<Scratch>,
}

/// See [`Tls`].
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

    /// An end that is not said (`close_notify`) may be an attacker's.
    const ENDS_WHEN_DROPPED: bool = false;

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

    fn unread(&mut self, chunk: Box<[u8]>) -> Option<Box<[u8]>> {
        Some(chunk)
    }

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
        // An error means that the client has gone.
        let _ = poll_fn(|context| Pin::new(&mut self.stream).poll_shutdown(context)).await;
    }
}
