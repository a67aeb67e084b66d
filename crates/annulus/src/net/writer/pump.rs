//! The pump of a writer: the task that sends what is gathered.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Piece, Sink};
use crate::buf::IoBuf;
use crate::driver::contain;
use crate::driver::core::SocketOperation;
use crate::net::sending::send_permit;
use crate::op::{SendAll, SendVectored, SocketOp};
use crate::sys::engine_error::code_of;
use crate::sys::errno::{ECANCELED, EPIPE};

/// The maximum number of pieces in one send.
const TOGETHER_MAX: usize = 64;
/// Largest buffer that is kept while nothing is written, bytes.
const KEPT_BYTES: usize = 4 << 10;

/// The background task that sends the gathered data.
pub(super) struct Pump(pub(super) Rc<Sink>);

impl Pump {
    pub(super) async fn run(self) {
        let sink = &self.0;
        while std::future::poll_fn(|context| sink.poll_any(context)).await {
            // Wait for the permit first: more data may be gathered during the sends of other tasks.
            let permit = match send_permit(&sink.socket).await {
                Ok(permit) => permit,
                Err(error) => return sink.sent(0, Err(error)),
            };
            let Some(next) = sink.next() else { continue };
            let (bytes, sent) = match next {
                NextWrite::One(Piece::Gathered(gathered)) => {
                    let bytes = gathered.len();
                    let sent = sink.send(SendAll::new(gathered, permit)).await;
                    (bytes, sent.map(Some).map_err(io::Error::from))
                }
                NextWrite::One(Piece::Owned(buf)) => {
                    let bytes = buf.init_bytes();
                    let sent = sink.send(SendAll::new(buf, permit)).await;
                    (bytes, sent.map(|_| None).map_err(io::Error::from))
                }
                NextWrite::Several(bufs) => {
                    let bytes = bufs.iter().map(IoBuf::init_bytes).sum();
                    let sent = sink.send(SendVectored::new(bufs, permit)).await;
                    (bytes, sent.map(|_| None).map_err(io::Error::from))
                }
            };
            sink.sent(bytes, sent);
        }
    }
}

/// The runtime has ended, or a send has failed. Unsent data is discarded, so the connection is reset: the peer must
/// not take what it has for the whole message.
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
        let has_unsent = state.unsent > 0;
        let waiting = std::mem::take(&mut state.waiting);
        let writer = state.writer.take();
        drop(state);
        if has_unsent {
            self.0.socket.remove_unsent_writer();
        }
        // Buffers and wakers are foreign code. A panic in the drop of a task would end the process.
        for piece in waiting {
            contain(|| drop(piece));
        }
        writer
            .into_iter()
            .for_each(|writer| contain(|| writer.wake()));
    }
}

/// The data of one send.
enum NextWrite {
    One(Piece),
    Several(Vec<Box<dyn IoBuf>>),
}

impl Sink {
    /// Waits for data to send. Returns whether more data can follow: `false` after the last send.
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
        // The writer is idle: free a large buffer.
        if state.spare.capacity() > KEPT_BYTES {
            state.spare = Vec::new();
        }
        let before = state.pump.replace(context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Takes the data of the next send, if there is any.
    fn next(&self) -> Option<NextWrite> {
        let mut state = self.state.borrow_mut();
        if state.waiting.len() > 1 {
            let pieces = state.waiting.len().min(TOGETHER_MAX);
            let pieces = state.waiting.drain(..pieces).map(Piece::into_buf);
            return Some(NextWrite::Several(pieces.collect()));
        }
        state.waiting.pop_front().map(NextWrite::One)
    }

    /// Runs a send, and records whether the kernel has its data.
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

    /// Records the end of a send of `bytes` bytes.
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
        let all_sent = state.unsent == 0;
        let writer = state.writer.take();
        drop(state);
        if all_sent {
            self.socket.remove_unsent_writer();
        }
        writer
            .into_iter()
            .for_each(|writer| contain(|| writer.wake()));
    }
}
