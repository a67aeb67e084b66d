//! The adapter between a stream and hyper's `Read` and `Write`.
//!
//! Written bytes are gathered, and a flush sends them without waiting for the result. A response therefore wakes its
//! connection's task once, for the request. Bytes that are written while a send is in flight go through the stream's
//! writer, which is bounded and has its own task.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use annulus::net::{AsyncStream, ConnectedStream};
use annulus::runtime::CoreBound;
use hyper::rt::{Read, ReadBufCursor, Write};

use super::cursor;
use super::remote::{self, Pipe};

/// The number of gathered bytes that are sent without a flush. As many may be in flight, and twice as many in the
/// stream's writer. A connection whose peer does not read holds no more than that.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// The largest capacity that a connection keeps for its next response, also while it is idle.
const KEPT_BYTES_MAX: usize = 2 << 10;
/// After a chunk of at least this size another one often follows; the same read then returns both.
const MORE_FROM_BYTES: usize = 2 << 10;

/// A connected stream that implements hyper's [`Read`](hyper::rt::Read) and [`Write`](hyper::rt::Write).
///
/// A flush submits the written bytes and does not wait until the kernel has sent them. A later write returns the error
/// of a failed send. Dropping the stream sends the written bytes and then closes the socket.
///
/// The stream belongs to the core that created it, and is fastest there. Any other thread may use it as well, as axum's
/// WebSockets do: from the first read or write there, a task of the core moves the bytes, at most 64 KiB ahead in each
/// direction. It may be dropped on any thread; its core then sends the written bytes and closes it. A core that ends
/// closes streams that other threads hold, and their reads and writes fail with
/// [`NotConnected`](io::ErrorKind::NotConnected).
pub struct HyperStream<S: ConnectedStream> {
    /// `None` if the stream was created outside a core; it is closed then.
    shared: Option<CoreBound<Shared<S>>>,
    /// The way of the bytes once another thread has used the stream.
    pipe: Option<Arc<Pipe>>,
}

/// The way in which the calling thread uses a stream.
enum Way<'a, S: ConnectedStream> {
    Here(Rc<Shared<S>>),
    Pipe(&'a Pipe),
}

/// Submits, at the end of each poll of the connection's task, the bytes that were flushed during the poll.
pub(crate) struct PollEnd<S: ConnectedStream>(Rc<Shared<S>>);

pub(crate) struct Shared<S: ConnectedStream> {
    pub(crate) inner: RefCell<Inner<S>>,
    /// The buffer to gather into. A completed send returns its buffer here, possibly while `inner` is borrowed.
    spare: Cell<Vec<u8>>,
    end: Rc<StreamEnd>,
}

/// The end of a stream, which a task awaits.
#[derive(Default)]
pub(crate) struct StreamEnd {
    has_ended: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl<S: ConnectedStream> Drop for Shared<S> {
    fn drop(&mut self) {
        self.end.has_ended.set(true);
        self.end.waker.take().into_iter().for_each(Waker::wake);
    }
}

pub(crate) struct Inner<S: ConnectedStream> {
    this: Weak<Shared<S>>,
    stream: AsyncStream<S>,
    /// The bytes that were consumed to detect the protocol, if they arrived in pieces. They are read first.
    early: Vec<u8>,
    /// The bytes to send next, before any that are written later.
    gathered: Vec<u8>,
    /// The writer was used. It may have sent everything since.
    used_writer: bool,
    /// A `PollEnd` submits the flushed bytes.
    submits_after_poll: bool,
    /// An error that followed bytes that were returned. The next read returns it.
    failed: Option<io::Error>,
}

impl<S: ConnectedStream> HyperStream<S> {
    /// Wraps a stream.
    pub fn new(stream: S) -> HyperStream<S> {
        HyperStream::from(AsyncStream::new(stream))
    }

    /// Returns a stream for a task that calls `PollEnd::submit` after each poll of its connection.
    pub(crate) fn with_poll_end(stream: S) -> (HyperStream<S>, PollEnd<S>) {
        let shared = Shared::new(AsyncStream::new(stream));
        shared.inner.borrow_mut().submits_after_poll = true;
        (HyperStream::of(Rc::clone(&shared)), PollEnd(shared))
    }

    fn of(shared: Rc<Shared<S>>) -> HyperStream<S> {
        HyperStream {
            shared: CoreBound::new(shared).ok(),
            pipe: None,
        }
    }

    #[inline]
    fn way(&mut self) -> io::Result<Way<'_, S>> {
        let Some(shared) = &self.shared else {
            return Err(created_outside_a_core());
        };
        if self.pipe.is_none() {
            match shared.get() {
                Ok(shared) => return Ok(Way::Here(shared)),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Err(error),
                Err(_) => {}
            }
        }
        let pipe = self.pipe.get_or_insert_with(|| remote::open(shared));
        Ok(Way::Pipe(pipe))
    }
}

impl<S: ConnectedStream> Drop for HyperStream<S> {
    fn drop(&mut self) {
        if let Some(pipe) = &self.pipe {
            pipe.close();
        }
    }
}

#[cold]
fn created_outside_a_core() -> io::Error {
    let message = "this HyperStream is closed: it was created outside a runtime, or while its core was ending; \
                   create it in a task of a core";
    io::Error::new(io::ErrorKind::NotConnected, message)
}

impl<S: ConnectedStream> From<AsyncStream<S>> for HyperStream<S> {
    fn from(stream: AsyncStream<S>) -> HyperStream<S> {
        HyperStream::of(Shared::new(stream))
    }
}

impl<S: ConnectedStream> Shared<S> {
    fn new(stream: AsyncStream<S>) -> Rc<Shared<S>> {
        Rc::new_cyclic(|this| Shared {
            inner: RefCell::new(Inner {
                this: Weak::clone(this),
                stream,
                early: Vec::new(),
                gathered: Vec::new(),
                used_writer: false,
                submits_after_poll: false,
                failed: None,
            }),
            spare: Cell::default(),
            end: Rc::default(),
        })
    }
}

impl<S: ConnectedStream> PollEnd<S> {
    /// Returns whether the received bytes begin with `preface`. `None` if the stream ends first.
    pub(crate) async fn begins_with(&self, preface: &[u8]) -> io::Result<Option<bool>> {
        poll_fn(|context| self.0.inner.borrow_mut().begins_with(preface, context)).await
    }

    pub(crate) fn submit(&self) {
        self.0.inner.borrow_mut().submit();
    }

    pub(crate) fn stream_end(&self) -> Rc<StreamEnd> {
        Rc::clone(&self.0.end)
    }
}

impl StreamEnd {
    pub(crate) fn has_come(&self) -> bool {
        self.has_ended.get()
    }

    pub(crate) async fn wait(self: Rc<Self>) {
        let ended = poll_fn(|context| {
            if self.has_ended.get() {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        });
        ended.await;
    }
}

/// The stream was upgraded, or has ended: from now on each flush submits.
impl<S: ConnectedStream> Drop for PollEnd<S> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.borrow_mut();
        inner.submits_after_poll = false;
        inner.submit();
    }
}

impl<S: ConnectedStream> Inner<S> {
    fn begins_with(
        &mut self,
        preface: &[u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<bool>>> {
        loop {
            let rest = &preface[self.early.len()..];
            let received = ready!(self.stream.fill(context))?;
            let bytes = received.len().min(rest.len());
            if received.is_empty() || received[..bytes] != rest[..bytes] {
                let any = !(received.is_empty() && self.early.is_empty());
                return Poll::Ready(Ok(any.then_some(false)));
            }
            if bytes == rest.len() {
                return Poll::Ready(Ok(Some(true)));
            }
            self.early.extend_from_slice(received);
            self.stream.advance(bytes);
        }
    }

    pub(crate) fn read(
        &mut self,
        context: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        if !self.early.is_empty() {
            let bytes = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early[..bytes]);
            self.early.drain(..bytes);
            return Poll::Ready(Ok(()));
        }
        let mut any = false;
        while buf.remaining() > 0 {
            match cursor::receive(&mut self.stream, context, &mut buf) {
                None => {}
                Some(Poll::Pending) if any => break,
                Some(Poll::Ready(Err(error))) if any => {
                    self.failed = Some(error);
                    break;
                }
                Some(polled) => return polled,
            }
            let received = match self.stream.fill(context) {
                Poll::Ready(Ok(received)) => received,
                Poll::Ready(Err(error)) if any => {
                    self.failed = Some(error);
                    break;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if any => break,
                Poll::Pending => return Poll::Pending,
            };
            let bytes = received.len().min(buf.remaining());
            buf.put_slice(&received[..bytes]);
            self.stream.advance(bytes);
            any = true;
            if bytes < MORE_FROM_BYTES {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    pub(crate) fn write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.writer_waits() {
            // These bytes go after those in the writer and those gathered before.
            ready!(self.pass_to_writer(context))?;
            return self.stream.writer().poll_write_vectored(context, pieces);
        }
        if !self.stream.spend(context) {
            return Poll::Pending;
        }
        if self.gathered.len() >= GATHERED_BYTES_MAX {
            self.submit();
            ready!(self.pass_to_writer(context))?;
        }
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut left = total.min(GATHERED_BYTES_MAX - self.gathered.len());
        let written = left;
        if self.gathered.capacity() == 0 {
            let spare = self.this.upgrade().map(|shared| shared.spare.take());
            self.gathered = spare.unwrap_or_default();
        }
        self.gathered.reserve(left);
        for piece in pieces {
            let taken = piece.len().min(left);
            self.gathered.extend_from_slice(&piece[..taken]);
            left -= taken;
        }
        self.stream.charge(written);
        Poll::Ready(Ok(written))
    }

    pub(crate) fn flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.submits_after_poll {
            self.submit();
        }
        // The submission at the end of the poll needs space in the writer.
        match self.writer_waits() {
            false => Poll::Ready(Ok(())),
            true => self.pass_to_writer(context),
        }
    }

    pub(crate) fn shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.submit();
        ready!(self.pass_to_writer(context))?;
        self.stream.writer().poll_finish(context)
    }

    /// Starts to send the gathered bytes, or passes them to the writer. They stay gathered if the writer is full.
    fn submit(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        if !self.writer_waits() {
            // A weak reference: the send must not keep the stream open after it was dropped.
            let this = Weak::clone(&self.this);
            let keep = move |mut sent: Vec<u8>| {
                if sent.capacity() <= KEPT_BYTES_MAX
                    && let Some(shared) = this.upgrade()
                {
                    sent.clear();
                    shared.spare.set(sent);
                }
            };
            gathered = match self.stream.try_send_then(gathered, keep) {
                Ok(()) => return,
                Err(gathered) => gathered,
            };
        }
        self.used_writer = true;
        if let Err(gathered) = self.stream.writer().try_write_buf(gathered) {
            self.gathered = gathered;
        }
    }

    /// Makes the close a reset, because bytes are lost.
    pub(crate) fn reset_when_closed(&mut self) {
        self.stream.reset_when_closed();
    }

    /// Returns whether the writer has bytes that it has not sent.
    fn writer_waits(&mut self) -> bool {
        self.used_writer = self.used_writer && self.stream.writer().unsent() > 0;
        self.used_writer
    }

    /// Passes the gathered bytes to the writer as it has space.
    fn pass_to_writer(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            self.used_writer = true;
            let written = ready!(self.stream.writer().poll_write(context, &self.gathered))?;
            self.gathered.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: ConnectedStream> Drop for Inner<S> {
    fn drop(&mut self) {
        self.submit();
        if !self.gathered.is_empty() {
            // The writer is full, and no task is left that could wait for it.
            self.stream.reset_when_closed();
        }
    }
}

impl<S: ConnectedStream> Read for HyperStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut().way()? {
            Way::Here(shared) => shared.inner.borrow_mut().read(context, buf),
            Way::Pipe(pipe) => pipe.read(context, buf),
        }
    }
}

impl<S: ConnectedStream> Write for HyperStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut().way()? {
            Way::Here(shared) => shared.inner.borrow_mut().write(context, pieces),
            Way::Pipe(pipe) => pipe.write(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().way()? {
            Way::Here(shared) => shared.inner.borrow_mut().flush(context),
            Way::Pipe(pipe) => pipe.flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut().way()? {
            Way::Here(shared) => shared.inner.borrow_mut().shutdown(context),
            Way::Pipe(pipe) => pipe.shutdown(context),
        }
    }
}

impl<S: ConnectedStream + fmt::Debug> fmt::Debug for HyperStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HyperStream");
        if let Some(Ok(shared)) = self.shared.as_ref().map(CoreBound::get)
            && let Ok(inner) = shared.inner.try_borrow()
        {
            shown.field("stream", &inner.stream);
            shown.field("gathered", &inner.gathered.len());
        }
        shown.finish_non_exhaustive()
    }
}
