//! A writer that gathers writes in memory and sends them together. It is bounded: a task that writes faster than the
//! peer reads has to wait.
//!
//! A background task of the core, the pump, does the sending. It starts with the first write, and ends when the
//! writer has been dropped and all data is sent.

mod pump;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::buf::IoBuf;
use crate::driver::core::Core;
use crate::error::BufError;
use crate::fd::Socket;
use crate::sys::engine_error::error_of;
use crate::sys::on_core::OnCore;
use pump::Pump;

/// Unsent bytes from which on a write waits.
const LIMIT_BYTES: usize = 64 << 10;
/// A buffer of at most this size is copied, so that it is sent together with its neighbours, bytes.
const COPIED_BYTES: usize = 4 << 10;

/// Writes to a stream through memory, so that several small writes become one send.
///
/// ```
/// use annulus::net::UnixStream;
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().cores(1).run(|_core| async {
///     let (near, far) = UnixStream::pair()?;
///     let mut writer = near.writer();
///     for line in 0..100 {
///         writer.write(format!("line {line}\n").as_bytes()).await?;
///     }
///     writer.finish().await?;           // all data is sent, and the end after it
///     let text = far.recv_exact(vec![0; 790]).await?;
///     assert!(text.ends_with(b"line 99\n"));
///     Ok(())
/// })
/// # }
/// ```
///
/// Written data is sent even without a [`flush`](Writer::flush): when the task that wrote it waits for something.
/// Data written during a send goes out with the next one. A write waits while [`with_limit`](Writer::with_limit)
/// bytes are unsent.
///
/// A failed send is reported by the next call and by each one after it. Dropping the writer sends its data, and keeps
/// the socket open until then. When the runtime ends, data that is not sent within the [grace
/// period](crate::runtime::RuntimeBuilder::grace) is discarded.
///
/// Direct sends on the stream ([`send_all`](super::TcpStream::send_all)) are made between two sends of the writer.
pub struct Writer {
    sink: OnCore<Rc<Sink>>,
}

/// The state that the writer and the pump share.
struct Sink {
    core: Rc<Core>,
    socket: Rc<Socket>,
    state: RefCell<WriterState>,
}

struct WriterState {
    waiting: VecDeque<Piece>,
    /// Bytes that wait, or are being sent.
    unsent: usize,
    limit: usize,
    /// The errno of a failed send, or 0.
    failed: i32,
    /// An empty buffer to gather into.
    spare: Vec<u8>,
    /// The waker of the task that writes or flushes.
    writer: Option<Waker>,
    pump: Option<Waker>,
    pump_runs: bool,
    /// The pump holds data that the kernel has not received yet.
    taken: bool,
    /// The writer has been dropped.
    closed: bool,
    /// The sending direction ends with the writer.
    ends: bool,
}

enum Piece {
    Gathered(Vec<u8>),
    Owned(Box<dyn IoBuf>),
}

impl Piece {
    fn into_buf(self) -> Box<dyn IoBuf> {
        match self {
            Piece::Gathered(gathered) => Box::new(gathered),
            Piece::Owned(buf) => buf,
        }
    }
}

impl Writer {
    pub(super) fn new(core: Rc<Core>, socket: Rc<Socket>) -> Writer {
        socket.add_user();
        let state = RefCell::new(WriterState {
            waiting: VecDeque::new(),
            unsent: 0,
            limit: LIMIT_BYTES,
            failed: 0,
            spare: Vec::new(),
            writer: None,
            pump: None,
            pump_runs: false,
            taken: false,
            closed: false,
            ends: false,
        });
        Writer {
            sink: Rc::new(Sink {
                core,
                socket,
                state,
            })
            .into(),
        }
    }

    /// Makes the writer end the sending direction when it is dropped.
    pub(super) fn ending_on_drop(self) -> Writer {
        self.sink.state.borrow_mut().ends = true;
        self
    }

    /// Sets the maximum number of unsent bytes: 64 KiB by default, and at least 1.
    ///
    /// A write beyond the limit waits for the peer:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer().with_limit(16);
    /// writer.write(&[7; 16]).await?;
    /// assert_eq!(writer.unsent(), 16);
    /// assert_eq!(writer.try_write_buf("more"), Err("more"));
    /// writer.flush().await?;
    /// assert_eq!(writer.unsent(), 0);
    /// writer.write_buf("more").await?;
    /// # drop(writer); assert_eq!(far.recv_exact(vec![0; 20]).await?.len(), 20);
    /// # Ok(()) })? }
    /// ```
    #[must_use]
    pub fn with_limit(self, bytes: usize) -> Writer {
        self.sink.state.borrow_mut().limit = bytes.max(1);
        self
    }

    /// Returns the number of bytes that were written and not yet sent.
    pub fn unsent(&self) -> usize {
        self.sink.state.borrow().unsent
    }

    /// Writes all of `bytes` by copying them.
    ///
    /// Not cancel-safe: a dropped future may have written a part of them.
    ///
    /// A write with a time limit must not be repeated: a part may have been written. Give such data in one buffer:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer().with_limit(4);
    /// let write = futures_lite::future::poll_once(writer.write(b"0123456789")).await;
    /// assert!(write.is_none()); // dropped in the middle
    /// let accepted = futures_lite::future::poll_once(writer.write_buf("whole")).await;
    /// assert!(accepted.is_none()); // `write_buf` takes all or nothing
    /// drop(writer);
    /// assert_eq!(far.recv_exact(vec![0; 4]).await?, b"0123");
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of an earlier send.
    pub async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = std::future::poll_fn(|context| self.poll_write(context, bytes)).await?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Writes a whole buffer, taking ownership. It is sent without a copy, unless it is at most 4 KiB long.
    ///
    /// Waits until fewer bytes than the limit are unsent, then accepts the whole buffer. A future that is dropped
    /// before that has written nothing.
    ///
    /// A limit counts from the next write on: one buffer may exceed it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer().with_limit(16);
    /// writer.write_buf(vec![7; 100_000]).await?; // accepted whole, and not copied
    /// assert_eq!(writer.unsent(), 100_000);
    /// assert_eq!(far.recv_exact(vec![0; 100_000]).await?.len(), 100_000);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of an earlier send; the error contains the buffer.
    pub async fn write_buf<B: IoBuf>(&mut self, buf: B) -> Result<(), BufError<B>> {
        match std::future::poll_fn(|context| self.poll_space(context)).await {
            Ok(_) => {
                self.sink.give(buf);
                Ok(())
            }
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }

    /// Writes a whole buffer like [`write_buf`](Writer::write_buf), without waiting.
    ///
    /// A server that drops messages of a client that is too slow:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer().with_limit(1024);
    /// let mut lost = 0;
    /// for _ in 0..10 {
    ///     if writer.try_write_buf(vec![7; 512]).is_err() {
    ///         lost += 1; // the buffer is returned
    ///     }
    /// }
    /// assert_eq!((lost, writer.unsent()), (8, 1024));
    /// # drop(far);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the buffer if the limit is reached, or a send has failed. [`poll_write`](Writer::poll_write) waits,
    /// and reports the error.
    pub fn try_write_buf<B: IoBuf>(&mut self, buf: B) -> Result<(), B> {
        let state = self.sink.state.borrow();
        let has_space = state.failed == 0 && state.unsent < state.limit;
        drop(state);
        if !has_space {
            return Err(buf);
        }
        self.sink.give(buf);
        Ok(())
    }

    /// Waits until the kernel has all written data. If the future is dropped, the data is still sent.
    ///
    /// The kernel having the data does not mean that the peer has read it. A failed send shows here:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer();
    /// far.shutdown(std::net::Shutdown::Read)?; // the peer receives nothing more
    /// writer.write(b"hello").await?; // only copied so far
    /// let error = writer.flush().await.unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    /// assert!(writer.write(b"more").await.is_err()); // the error stays
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of a send.
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    /// Flushes, and ends the sending direction (FIN). Nothing can be sent on the stream afterwards. If the future is
    /// dropped during the flush, the data is still sent, and the direction stays open.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// let mut writer = near.writer();
    /// writer.write(b"last words").await?;
    /// writer.finish().await?;
    /// assert!(near.send_all("more").await.is_err()); // the sending direction has ended
    /// far.send_all("reply").await?;
    /// assert_eq!(near.recv_exact(vec![0; 5]).await?, b"reply"); // the other one has not
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the error of a send.
    pub async fn finish(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_finish(context)).await
    }

    /// Writes as many of `bytes` as fit, and waits while none do. Returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// Fails with the error of an earlier send.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// Writes several pieces like [`poll_write`](Writer::poll_write). They are sent together.
    ///
    /// # Errors
    ///
    /// Fails with the error of an earlier send.
    pub fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut space = match std::task::ready!(self.poll_space(context)) {
            Ok(space) => space,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let mut written = 0;
        for piece in pieces {
            let taken = piece.len().min(space);
            self.sink.gather(&piece[..taken]);
            space -= taken;
            written += taken;
        }
        if written > 0 {
            self.sink.core.charge(written);
            self.sink.wake_pump();
        }
        Poll::Ready(Ok(written))
    }

    /// Returns how many bytes may be written now. Waits while there are none.
    fn poll_space(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.sink.core.spend(context) {
            return Poll::Pending;
        }
        self.sink.poll(context, |state| {
            (state.unsent < state.limit).then(|| state.limit - state.unsent)
        })
    }

    /// Polls for the end of a [`flush`](Writer::flush).
    ///
    /// # Errors
    ///
    /// Fails with the error of a send.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.sink).poll(context, |state| (state.unsent == 0).then_some(()))
    }

    /// Polls for the end of a [`finish`](Writer::finish).
    ///
    /// # Errors
    ///
    /// Fails with the error of a send.
    pub fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_flush(context))?;
        self.sink.state.borrow_mut().ends = false;
        self.sink.socket.finish_sending();
        Poll::Ready(Ok(()))
    }
}

impl Sink {
    /// Waits until `is_ready` returns a value, unless a send has failed.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        is_ready: impl FnOnce(&WriterState) -> Option<T>,
    ) -> Poll<io::Result<T>> {
        let mut state = self.state.borrow_mut();
        if state.failed != 0 {
            return Poll::Ready(Err(error_of(state.failed)));
        }
        if let Some(value) = is_ready(&state) {
            return Poll::Ready(Ok(value));
        }
        let before = match &state.writer {
            Some(waker) if waker.will_wake(context.waker()) => None,
            _ => state.writer.replace(context.waker().clone()),
        };
        drop(state);
        drop(before);
        Poll::Pending
    }

    fn add_unsent(&self, state: &mut WriterState, bytes: usize) {
        if state.unsent == 0 {
            self.socket.add_unsent_writer();
        }
        state.unsent += bytes;
    }

    fn gather(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.borrow_mut();
        self.add_unsent(&mut state, bytes.len());
        if let Some(Piece::Gathered(gathered)) = state.waiting.back_mut() {
            return gathered.extend_from_slice(bytes);
        }
        let mut gathered = std::mem::take(&mut state.spare);
        gathered.extend_from_slice(bytes);
        state.waiting.push_back(Piece::Gathered(gathered));
    }

    fn give<B: IoBuf>(self: &Rc<Self>, buf: B) {
        let bytes = buf.init_bytes();
        if bytes <= COPIED_BYTES {
            self.gather(buf.subslice(..bytes).as_ref());
        } else {
            let mut state = self.state.borrow_mut();
            self.add_unsent(&mut state, bytes);
            state.waiting.push_back(Piece::Owned(Box::new(buf)));
        }
        if bytes > 0 {
            self.wake_pump();
        }
    }

    fn wake_pump(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if std::mem::replace(&mut state.pump_runs, true) {
            let waker = state.pump.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
            return;
        }
        drop(state);
        let pump = Pump(Rc::clone(self));
        self.core.start_background(Box::pin(pump.run()));
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.state.get_mut().ends {
            self.socket.finish_sending();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.sink.state.borrow_mut();
        state.closed = true;
        let wakers = (state.pump.take(), state.writer.take());
        let is_unsent = state.unsent > 0;
        drop(state);
        self.sink.socket.remove_user(is_unsent);
        if let Some(pump) = wakers.0 {
            pump.wake();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.sink.state.borrow();
        f.debug_struct("Writer")
            .field("socket", &self.sink.socket)
            .field("unsent", &state.unsent)
            .field("limit", &state.limit)
            .finish()
    }
}
