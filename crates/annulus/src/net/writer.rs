//! Gathered writing: what is written goes to memory first, and from there as one send while the one before
//! is on its way. Bounded: a task that writes faster than the peer reads waits.
//!
//! A task of the core's does the sending (the pump). It starts with the first write, and ends when the
//! writer has gone and all has been sent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::sending::send_permit;
use crate::buf::IoBuf;
use crate::driver::core::{Core, SocketOperation};
use crate::error::BufError;
use crate::fd::Socket;
use crate::op::{SendAll, SendVectored, SocketOp};
use crate::sys::engine_error::{code_of, error_of};
use crate::sys::errno::{ECANCELED, EPIPE};

/// Bytes that wait or are on their way, by which a write waits.
const LIMIT_BYTES: usize = 64 << 10;
/// A buffer that is given away and is smaller is copied: it goes out with its neighbours.
const COPIED_BYTES: usize = 4 << 10;
/// The maximum number of pieces in one send.
const TOGETHER_MAX: usize = 64;
/// A larger buffer is not kept while nothing is written.
const KEPT_BYTES: usize = 4 << 10;

/// Writes to a stream through memory, so that several small writes become one send.
///
/// ```
/// use annulus::net::UnixStream;
/// use annulus::runtime::Runtime;
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().threads(1).run(|_core| async {
///     let (near, far) = UnixStream::pair()?;
///     let mut writer = near.writer();
///     for line in 0..100 {
///         writer.write(format!("line {line}\n").as_bytes()).await?;
///     }
///     writer.finish().await?;           // all has gone, and the peer will read the end
///     let text = far.recv_exact(vec![0; 790]).await?;
///     assert!(text.ends_with(b"line 99\n"));
///     Ok(())
/// })
/// # }
/// ```
///
/// What has been written is on its way without a [`flush`](Writer::flush): it is sent when the task that
/// wrote it waits for something, and what is written during a send goes out with the next. At most
/// [`limit`](Writer::with_limit) bytes wait or are on their way; a write waits for the rest.
///
/// A send that failed is reported by the next call, and by each one after it. Dropped, the writer sends
/// what it has; the socket stays open for as long. With the end of the runtime goes what has not been sent
/// within its [grace](crate::runtime::RuntimeBuilder::grace).
///
/// Sends of the stream's own ([`send_all`](super::TcpStream::send_all)) that are made meanwhile go between
/// two of the writer's.
pub struct Writer {
    sink: Rc<Sink>,
}

/// What writer and pump share.
struct Sink {
    core: Rc<Core>,
    socket: Rc<Socket>,
    state: RefCell<State>,
}

struct State {
    waiting: VecDeque<Piece>,
    /// Bytes that wait, or are on their way.
    unsent: usize,
    limit: usize,
    /// Why a send failed, or 0.
    failed: i32,
    /// To gather into.
    spare: Vec<u8>,
    /// The waker of the task that writes or flushes.
    writer: Option<Waker>,
    pump: Option<Waker>,
    pump_runs: bool,
    /// The pump has taken out something of which the kernel knows nothing yet.
    taken: bool,
    /// The writer has gone.
    closed: bool,
    /// The peer is to be told of the end.
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

/// What goes out as one send.
enum Next {
    One(Piece),
    Several(Vec<Box<dyn IoBuf>>),
}

impl Writer {
    pub(super) fn new(core: Rc<Core>, socket: Rc<Socket>) -> Writer {
        socket.add_user();
        let state = RefCell::new(State {
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
            }),
        }
    }

    /// Tells the peer of the end when it is dropped.
    pub(super) fn that_ends(self) -> Writer {
        self.sink.state.borrow_mut().ends = true;
        self
    }

    /// At most `bytes` bytes wait or are on their way; 64 KiB by default, and 1 at the least.
    #[must_use]
    pub fn with_limit(self, bytes: usize) -> Writer {
        self.sink.state.borrow_mut().limit = bytes.max(1);
        self
    }

    /// Bytes that have been written and not sent.
    pub fn unsent(&self) -> usize {
        self.sink.state.borrow().unsent
    }

    /// Writes all of `bytes`, by copying. Dropped before its end, it has written some of them.
    ///
    /// # Errors
    ///
    /// Why an earlier send failed.
    pub async fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = std::future::poll_fn(|context| self.poll_write(context, bytes)).await?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// As [`write`](Writer::write) of a buffer that is given away, which is sent from where it is unless it
    /// is small. It is taken as a whole as soon as fewer bytes than the limit wait. Dropped before that, it
    /// has written nothing.
    ///
    /// # Errors
    ///
    /// Why an earlier send failed, and the buffer.
    pub async fn write_buf<B: IoBuf>(&mut self, buf: B) -> Result<(), BufError<B>> {
        match std::future::poll_fn(|context| self.poll_space(context)).await {
            Ok(_) => {
                self.sink.give(buf);
                Ok(())
            }
            Err(error) => Err(BufError::new(error, Some(buf))),
        }
    }

    /// As [`write_buf`](Writer::write_buf), without waiting.
    ///
    /// # Errors
    ///
    /// The buffer, if as many bytes as the limit wait, or a send has failed: [`poll_write`](Writer::poll_write)
    /// waits for room, and says why.
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

    /// Waits until all that was written has been given to the kernel.
    ///
    /// # Errors
    ///
    /// Why a send failed.
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_flush(context)).await
    }

    /// Flushes, and tells the peer that nothing follows. Nothing can be sent on the stream after it.
    ///
    /// # Errors
    ///
    /// Why a send failed.
    pub async fn finish(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll_finish(context)).await
    }

    /// Takes what fits of `bytes`; waits while nothing does.
    ///
    /// # Errors
    ///
    /// Why an earlier send failed.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// As [`poll_write`](Writer::poll_write), of several pieces: they go out together.
    ///
    /// # Errors
    ///
    /// Why an earlier send failed.
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
            self.sink.wake_pump();
        }
        Poll::Ready(Ok(written))
    }

    /// How many bytes may be written now: waits while there are none.
    fn poll_space(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.sink.core.spend(context) {
            return Poll::Pending;
        }
        self.sink.poll(context, |state| {
            (state.unsent < state.limit).then(|| state.limit - state.unsent)
        })
    }

    /// As [`flush`](Writer::flush), for those who poll.
    ///
    /// # Errors
    ///
    /// Why a send failed.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.sink).poll(context, |state| (state.unsent == 0).then_some(()))
    }

    /// As [`finish`](Writer::finish), for those who poll.
    ///
    /// # Errors
    ///
    /// Why a send failed.
    pub fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_flush(context))?;
        self.sink.state.borrow_mut().ends = false;
        self.sink.socket.finish_sending();
        Poll::Ready(Ok(()))
    }
}

impl Sink {
    /// Waits until `is_ready` has something to say, unless a send has failed.
    fn poll<T>(
        &self,
        context: &Context<'_>,
        is_ready: impl FnOnce(&State) -> Option<T>,
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

    fn gather(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.state.borrow_mut();
        state.unsent += bytes.len();
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
            state.unsent += bytes;
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

    /// Whether there is something to send; false: nothing will be.
    fn poll_any(&self, context: &Context<'_>) -> Poll<bool> {
        let mut state = self.state.borrow_mut();
        if state.failed != 0 {
            return Poll::Ready(false);
        }
        if !state.waiting.is_empty() {
            return Poll::Ready(true);
        }
        if state.closed {
            return Poll::Ready(false);
        }
        // Nothing is written for now: no more memory than that is kept.
        if state.spare.capacity() > KEPT_BYTES {
            state.spare = Vec::new();
        }
        let before = state.pump.replace(context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// What is to be sent next, if there is something.
    fn next(&self) -> Option<Next> {
        let mut state = self.state.borrow_mut();
        if state.waiting.len() > 1 {
            let pieces = state.waiting.len().min(TOGETHER_MAX);
            let pieces = state.waiting.drain(..pieces).map(Piece::into_buf);
            return Some(Next::Several(pieces.collect()));
        }
        state.waiting.pop_front().map(Next::One)
    }

    /// Runs a send, and notes whether the kernel has it.
    async fn send<T: SocketOp>(&self, op: T) -> T::Output {
        let mut operation = SocketOperation::new(Rc::clone(&self.core), op);
        self.state.borrow_mut().taken = true;
        std::future::poll_fn(|context| {
            let polled = Pin::new(&mut operation).poll(context);
            self.state.borrow_mut().taken = !operation.has_begun();
            polled
        })
        .await
    }

    /// A send of `bytes` has ended.
    fn sent(&self, bytes: usize, sent: io::Result<Option<Vec<u8>>>) {
        let mut state = self.state.borrow_mut();
        match sent {
            Ok(gathered) => {
                state.unsent -= bytes;
                if let Some(mut gathered) = gathered {
                    gathered.clear();
                    state.spare = gathered;
                }
            }
            Err(error) => state.failed = code_of(&error).unwrap_or(ECANCELED),
        }
        let writer = state.writer.take();
        drop(state);
        writer.into_iter().for_each(Waker::wake);
    }
}

/// Sends what is gathered.
struct Pump(Rc<Sink>);

impl Pump {
    async fn run(self) {
        let sink = &self.0;
        while std::future::poll_fn(|context| sink.poll_any(context)).await {
            // First: what others send meanwhile may gather more.
            let permit = match send_permit(&sink.socket).await {
                Ok(permit) => permit,
                Err(error) => return sink.sent(0, Err(error)),
            };
            let Some(next) = sink.next() else { continue };
            let (bytes, sent) = match next {
                Next::One(Piece::Gathered(gathered)) => {
                    let bytes = gathered.len();
                    let sent = sink.send(SendAll::new(gathered, permit)).await;
                    (bytes, sent.map(Some).map_err(io::Error::from))
                }
                Next::One(Piece::Owned(buf)) => {
                    let bytes = buf.init_bytes();
                    let sent = sink.send(SendAll::new(buf, permit)).await;
                    (bytes, sent.map(|_| None).map_err(io::Error::from))
                }
                Next::Several(bufs) => {
                    let bytes = bufs.iter().map(IoBuf::init_bytes).sum();
                    let sent = sink.send(SendVectored::new(bufs, permit)).await;
                    (bytes, sent.map(|_| None).map_err(io::Error::from))
                }
            };
            sink.sent(bytes, sent);
        }
    }
}

/// The runtime may end under it, or a send fail: what waits will not be sent, and the peer is not to take what was sent
/// before for all there was.
impl Drop for Pump {
    fn drop(&mut self) {
        let mut state = self.0.state.borrow_mut();
        let is_left = state.taken || !state.waiting.is_empty();
        if is_left && state.failed != EPIPE {
            self.0.socket.cut();
        }
        if state.failed == 0 && state.unsent > 0 {
            state.failed = ECANCELED;
        }
        let waiting = std::mem::take(&mut state.waiting);
        let writer = state.writer.take();
        drop(state);
        drop(waiting);
        writer.into_iter().for_each(Waker::wake);
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
