//! Receiving until a buffer is full.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::receiver::Receiver;
use crate::buf::{Chunk, Filling, IoBufMut};
use crate::error::{BufError, WholeResult};
use crate::sys::on_core::OnCore;

/// The future of a receive that fills its buffer. Dropping it loses no data: the stream's next receive returns it.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// near.send_all("hel").await?;
/// let whole = futures_lite::future::poll_once(far.recv_exact(vec![0; 5])).await;
/// assert!(whole.is_none()); // a part has arrived; the receive is dropped and loses none of it
/// near.send_all("lo").await?;
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
/// # Ok(()) })? }
/// ```
#[must_use = "it does nothing until it is awaited"]
pub struct RecvExact<'a, B: IoBufMut> {
    receiver: &'a OnCore<Rc<Receiver>>,
    /// `None` after completion.
    filling: Option<Filling<B>>,
}

impl<'a, B: IoBufMut> RecvExact<'a, B> {
    pub(super) fn new(receiver: &'a OnCore<Rc<Receiver>>, buf: B) -> RecvExact<'a, B> {
        RecvExact {
            receiver,
            filling: Some(Filling::new(buf)),
        }
    }
}

impl<B: IoBufMut> Unpin for RecvExact<'_, B> {}

impl<B: IoBufMut> Future for RecvExact<'_, B> {
    type Output = WholeResult<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WholeResult<B>> {
        let this = self.get_mut();
        let Some(filling) = &mut this.filling else {
            panic!("a receive was polled after it had completed");
        };
        let mut outcome = filling.check();
        while !filling.is_full() && outcome.is_ok() {
            match ready!(this.receiver.poll_next(context)) {
                Some(Ok(mut chunk)) => {
                    let is_first = filling.is_empty();
                    let taken = filling.push(&chunk);
                    if is_first {
                        this.receiver.hold();
                    }
                    this.receiver.core.charge(taken);
                    chunk.advance(taken);
                    if !chunk.is_empty() {
                        this.receiver.unread(chunk);
                    }
                }
                Some(Err(error)) => outcome = Err(error),
                None => outcome = Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        if !filling.is_empty() {
            this.receiver.release();
        }
        let buf = this.filling.take().map(Filling::into_buf);
        Poll::Ready(match (outcome, buf) {
            (Ok(()), Some(buf)) => Ok(buf),
            (Ok(()), None) => unreachable!("the buffer is present until the receive has completed"),
            (Err(error), buf) => Err(BufError::new(error, buf)),
        })
    }
}

impl<B: IoBufMut> Drop for RecvExact<'_, B> {
    fn drop(&mut self) {
        if let Some(filling) = &mut self.filling
            && let filled = filling.filled()
            && !filled.is_empty()
        {
            self.receiver.release();
            self.receiver.unread(Chunk::copy_of(filled));
        }
    }
}

impl<B: IoBufMut> fmt::Debug for RecvExact<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvExact").finish_non_exhaustive()
    }
}
