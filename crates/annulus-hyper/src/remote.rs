//! Streams that a thread other than their core uses. A task of the core moves the bytes between the stream and a pipe
//! in memory.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use annulus::net::ConnectedStream;
use annulus::runtime::{self, CoreBound, PollBudget};
use annulus::time;
use hyper::rt::{ReadBuf, ReadBufCursor};

use super::io::{Inner, Shared};

mod batch;

use batch::{Batches, ToCore};

/// The number of bytes in each direction of a pipe.
const PIPE_BYTES_MAX: usize = 64 << 10;
/// The largest capacity that an idle direction keeps.
const KEPT_BYTES_MAX: usize = 1 << 10;
/// The number of bytes that one read of the stream returns at most. Enough for direct receives of bulk data.
const READ_BYTES: usize = 16 << 10;
/// The time for which a peer may accept nothing of the bytes that were written before the user dropped the stream. It
/// is the runtime's default for dropped streams.
const REST_TIMEOUT: Duration = Duration::from_secs(60);

/// The pipe between a stream on its core and its user on another thread.
pub(crate) struct Pipe(Mutex<State>);

#[derive(Default)]
struct State {
    received: VecDeque<u8>,
    /// The stream has ended, or has failed. A failure is returned once, after the received bytes.
    receive_end: Option<Result<(), io::Error>>,
    to_send: VecDeque<u8>,
    /// Bytes were written to the stream and not flushed since.
    unflushed: bool,
    send_error: Option<io::Error>,
    shutdown: Shutdown,
    /// The user has dropped the stream.
    user_left: bool,
    /// The task of the core has ended.
    core_left: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The budget of reads and writes that are ready in a row. The user's executor may have none.
    budget: PollBudget,
    core: Option<Waker>,
    /// Wakes the core. `None` until the task of the core has started.
    to_core: Option<Arc<ToCore>>,
}

#[derive(Default, PartialEq)]
enum Shutdown {
    #[default]
    NotRequested,
    Requested,
    Done,
}

/// Marks the core's side of a pipe as gone.
struct CoreSide(Arc<Pipe>);

impl Drop for CoreSide {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.core_left = true;
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Opens a pipe to the stream, and starts the task on its core.
pub(crate) fn open<S: ConnectedStream>(stream: &CoreBound<Shared<S>>) -> Arc<Pipe> {
    let pipe = Arc::new(Pipe(Mutex::default()));
    // Dropped with the closure if the core has ended.
    let side = CoreSide(Arc::clone(&pipe));
    stream.on_core(move |stream| {
        drop(runtime::spawn(async move {
            let pipe = &side.0;
            let Ok(batches) = Batches::of_this_core() else {
                return;
            };
            pipe.lock().to_core = Some(Arc::clone(batches.to_core()));
            poll_fn(|context| pipe.run(&mut stream.inner.borrow_mut(), &batches, context)).await;
            let rest = async || {
                let rest =
                    poll_fn(|context| pipe.send_rest(&mut stream.inner.borrow_mut(), context));
                time::timeout(REST_TIMEOUT, rest).await
            };
            loop {
                match rest().await {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(_) => return stream.inner.borrow_mut().reset_when_closed(),
                }
            }
        }));
    });
    pipe
}

/// Frees the memory of a direction that is empty, unless it is small.
fn release(bytes: &mut VecDeque<u8>) {
    if bytes.is_empty() && bytes.capacity() > KEPT_BYTES_MAX {
        *bytes = VecDeque::new();
    }
}

fn core_left() -> io::Error {
    let message = "the runtime core of this stream has ended and has closed it";
    io::Error::new(io::ErrorKind::NotConnected, message)
}

fn wait(place: &mut Option<Waker>, context: &Context<'_>) {
    if !place
        .as_ref()
        .is_some_and(|waker| waker.will_wake(context.waker()))
    {
        *place = Some(context.waker().clone());
    }
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ----- on the core -----

    /// Moves bytes until neither side is ready. Ends when the user has left.
    fn run<S: ConnectedStream>(
        &self,
        stream: &mut Inner<S>,
        batches: &Rc<Batches>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let mut state = self.lock();
        wait(&mut state.core, context);
        let sent = state.send(stream, context);
        let received = state.receive(stream, context);
        let is_over = state.user_left;
        let reader = received.then(|| state.reader.take()).flatten();
        let writer = sent.then(|| state.writer.take()).flatten();
        drop(state);
        batches.wake_users(reader.into_iter().chain(writer));
        match is_over {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Sends some of the bytes that the user has written before leaving. Returns whether bytes remain.
    fn send_rest<S: ConnectedStream>(
        &self,
        stream: &mut Inner<S>,
        context: &mut Context<'_>,
    ) -> Poll<bool> {
        let mut state = self.lock();
        let before = state.to_send.len();
        state.send(stream, context);
        if state.send_error.is_some() || !state.has_to_send() {
            return Poll::Ready(false);
        }
        match state.to_send.len() < before {
            true => Poll::Ready(true),
            false => Poll::Pending,
        }
    }

    // ----- on the user's thread -----

    fn wake_core(mut state: MutexGuard<'_, State>) {
        let core = state.core.take();
        let to_core = state.to_core.as_ref().map(Arc::clone);
        drop(state);
        match (core, to_core) {
            (Some(waker), Some(to_core)) => to_core.wake(waker),
            (core, _) => core.into_iter().for_each(Waker::wake),
        }
    }

    pub(crate) fn read(
        &self,
        context: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(state.spend(context));
        if !state.received.is_empty() {
            let was_full = state.received.len() >= PIPE_BYTES_MAX;
            let bytes = state.received.len().min(buf.remaining());
            let (front, back) = state.received.as_slices();
            let from_front = front.len().min(bytes);
            buf.put_slice(&front[..from_front]);
            buf.put_slice(&back[..bytes - from_front]);
            state.received.drain(..bytes);
            state.budget.charge(bytes);
            release(&mut state.received);
            if was_full {
                Pipe::wake_core(state);
            }
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = state.receive_end.take() {
            state.receive_end = Some(Ok(()));
            return Poll::Ready(end);
        }
        if state.core_left {
            return Poll::Ready(Err(core_left()));
        }
        state.budget.reset();
        wait(&mut state.reader, context);
        Poll::Pending
    }

    pub(crate) fn write(
        &self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        state.check_send()?;
        ready!(state.spend(context));
        let mut space = PIPE_BYTES_MAX.saturating_sub(state.to_send.len());
        let before = state.to_send.len();
        for piece in pieces {
            let taken = piece.len().min(space);
            state.to_send.extend(&piece[..taken]);
            space -= taken;
        }
        let written = state.to_send.len() - before;
        if written == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            state.budget.reset();
            wait(&mut state.writer, context);
            return Poll::Pending;
        }
        state.budget.charge(written);
        Pipe::wake_core(state);
        Poll::Ready(Ok(written))
    }

    /// Waits only for space in the buffers of the core, which flushes its writes itself.
    pub(crate) fn flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        state.check_send()?;
        if state.to_send.is_empty() {
            return Poll::Ready(Ok(()));
        }
        wait(&mut state.writer, context);
        Poll::Pending
    }

    pub(crate) fn shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.shutdown == Shutdown::Done {
            return Poll::Ready(state.send_error.take().map_or(Ok(()), Err));
        }
        state.check_send()?;
        state.shutdown = Shutdown::Requested;
        wait(&mut state.writer, context);
        Pipe::wake_core(state);
        Poll::Pending
    }

    /// The user drops the stream.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.user_left = true;
        Pipe::wake_core(state);
    }
}

impl State {
    /// Takes one operation of the user from the budget of its task, and from that of the pipe.
    fn spend(&self, context: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "axum")]
        ready!(tokio::task::coop::poll_proceed(context)).made_progress();
        if self.budget.take() {
            return Poll::Ready(());
        }
        self.budget.reset();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn has_to_send(&self) -> bool {
        !self.to_send.is_empty() || self.unflushed || self.shutdown == Shutdown::Requested
    }

    /// Fails if nothing can be sent any more.
    fn check_send(&mut self) -> io::Result<()> {
        match self.send_error.take() {
            Some(error) => {
                self.send_error = Some(io::Error::new(error.kind(), error.to_string()));
                Err(error)
            }
            None if self.core_left => Err(core_left()),
            None => Ok(()),
        }
    }

    /// Passes bytes to the stream. Returns whether to wake the writer.
    fn send<S: ConnectedStream>(
        &mut self,
        stream: &mut Inner<S>,
        context: &mut Context<'_>,
    ) -> bool {
        if self.send_error.is_some() || !self.has_to_send() {
            return false;
        }
        match self.try_send(stream, context) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.send_error = Some(error);
                self.to_send.clear();
                self.shutdown = match self.shutdown {
                    Shutdown::NotRequested => Shutdown::NotRequested,
                    Shutdown::Requested | Shutdown::Done => Shutdown::Done,
                };
                true
            }
            // The user may have waited for space.
            Poll::Pending => self.to_send.len() < PIPE_BYTES_MAX,
        }
    }

    fn try_send<S: ConnectedStream>(
        &mut self,
        stream: &mut Inner<S>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.to_send.is_empty() {
            let (front, back) = self.to_send.as_slices();
            let pieces = [IoSlice::new(front), IoSlice::new(back)];
            let written = ready!(stream.write(context, &pieces))?;
            self.to_send.drain(..written);
            release(&mut self.to_send);
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(stream.flush(context))?;
            self.unflushed = false;
        }
        if self.shutdown == Shutdown::Requested {
            ready!(stream.shutdown(context))?;
            self.shutdown = Shutdown::Done;
        }
        Poll::Ready(Ok(()))
    }

    /// Receives bytes while there is space. Returns whether to wake the reader.
    fn receive<S: ConnectedStream>(
        &mut self,
        stream: &mut Inner<S>,
        context: &mut Context<'_>,
    ) -> bool {
        let before = self.received.len();
        while self.receive_end.is_none() && !self.user_left && self.received.len() < PIPE_BYTES_MAX
        {
            let mut memory = [MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut memory);
            match stream.read(context, buf.unfilled()) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => self.receive_end = Some(Ok(())),
                Poll::Ready(Ok(())) => self.received.extend(buf.filled()),
                Poll::Ready(Err(error)) => self.receive_end = Some(Err(error)),
                Poll::Pending => break,
            }
        }
        self.receive_end.is_some() || self.received.len() > before
    }
}
