//! The receiving side of a stream: a multishot receive into the core's buffers, single receives for bulk data, system
//! calls into the caller's memory, or system calls without a ring. Received data is never lost, and the stream stops receiving while too much of it is
//! unread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

mod direct;

use crate::buf::Chunk;
use crate::driver::core::{CompletionHandler, Core, SharedOperation, Token, WaitersCell};
use crate::fd::Socket;
use crate::item_stream::item_stream;
use crate::metrics::OperationNumber;
use crate::op::{Interest, ReceiveKind, ReceivePermit, Recv, UnreadBuffer, recv_into_group};
use crate::sys::engine_error::{EngineError, error_of};
use crate::sys::errno::{EAGAIN, ECANCELED, EINTR, EINVAL, EIO, ENOBUFS};
use crate::sys::on_core::OnCore;
use crate::sys::sqe::Cqe;

/// Unread bytes from which on a stream stops receiving, which slows down its sender.
const QUEUED_BYTES_MAX: usize = 64 << 10;
/// Number of full buffers in a row after which single receives into large buffers take over.
const BULK_FROM: u32 = 4;
/// Upper bound of that number, which grows when single receives brought little data.
const BULK_FROM_MAX: u32 = 4096;
/// Size of the buffer of a bulk receive, bytes.
const BULK_BYTES: usize = 256 << 10;
/// A bulk receive that returns fewer bytes ends bulk mode.
const BULK_BYTES_MIN: usize = 16 << 10;
/// Number of receives in a row that may find no free buffer; the next one is a single receive into separate memory
/// (trap 26).
const SHORT_MAX: u8 = 2;

/// The receiving side of a stream.
pub(super) struct Receiver {
    waiters: WaitersCell,
    /// The first unread chunk. There is rarely a second one.
    first: Cell<Option<Chunk>>,
    /// The chunks after the first.
    queue: RefCell<VecDeque<Chunk>>,
    queued_bytes: Cell<usize>,
    /// The multishot receive, while the kernel has it.
    armed: Cell<Option<Token>>,
    /// The multishot receive has been asked to stop.
    stopped: Cell<bool>,
    /// The state of the stream after the queued data.
    end: Cell<End>,
    /// The stream has received before.
    begun: Cell<bool>,
    /// The kernel has no multishot receive (before 6.0).
    single: Cell<bool>,
    /// Full buffers in a row.
    whole: Cell<u32>,
    /// The number of full buffers in a row that starts bulk mode. It grows each time that bulk receives brought
    /// little data, because messages of exactly one buffer look like bulk data.
    bulk_from: Cell<u32>,
    /// Receives in a row that found no free buffer.
    short: Cell<u8>,
    /// A single receive has the permit: a caller's, `bulk`, or one whose future was dropped.
    taken: Cell<bool>,
    /// A single receive into separate memory.
    bulk: RefCell<Option<Box<Bulk>>>,
    direct: direct::State,
    pub(super) core: Rc<Core>,
    socket: Rc<Socket>,
}

type Bulk = SharedOperation<Recv<Vec<u8>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The peer has ended its direction.
    Closed,
    Failed(i32),
}

impl Receiver {
    pub(super) fn new(core: Rc<Core>, socket: Rc<Socket>) -> Rc<Receiver> {
        Rc::new(Receiver {
            waiters: WaitersCell::default(),
            first: Cell::new(None),
            queue: RefCell::default(),
            queued_bytes: Cell::new(0),
            armed: Cell::new(None),
            stopped: Cell::new(false),
            end: Cell::new(End::Open),
            begun: Cell::new(false),
            single: Cell::new(false),
            whole: Cell::new(0),
            bulk_from: Cell::new(BULK_FROM),
            short: Cell::new(0),
            taken: Cell::new(false),
            bulk: RefCell::default(),
            direct: direct::State::default(),
            core,
            socket,
        })
    }

    /// Returns whether a caller's receive may go to the kernel directly: nothing is queued, and no other receive is
    /// active.
    pub(super) fn is_idle(&self) -> bool {
        self.queued_bytes.get() == 0
            && self.armed.get().is_none()
            && self.end.get() == End::Open
            && !self.taken.get()
    }

    /// Takes the permit. The caller has checked that it is free.
    pub(super) fn take_permit(self: &Rc<Self>) -> ReceivePermit {
        self.taken.set(true);
        ReceivePermit::new(Rc::clone(self) as Rc<dyn UnreadBuffer>)
    }

    #[inline]
    fn push(&self, chunk: Chunk) {
        let before = self.queued_bytes.get();
        self.queued_bytes.set(before + chunk.len());
        if before == 0 {
            self.first.set(Some(chunk));
        } else {
            self.queue.borrow_mut().push_back(chunk);
        }
    }

    #[inline]
    fn pop(&self) -> Option<Chunk> {
        let chunk = self.first.take()?;
        let left = self.queued_bytes.get() - chunk.len();
        self.queued_bytes.set(left);
        if left > 0 {
            self.first.set(self.queue.borrow_mut().pop_front());
        }
        Some(chunk)
    }

    /// Puts back an unread chunk, which is not empty.
    pub(super) fn unread(&self, chunk: Chunk) {
        self.queued_bytes.set(self.queued_bytes.get() + chunk.len());
        if let Some(second) = self.first.replace(Some(chunk)) {
            self.queue.borrow_mut().push_front(second);
        }
    }

    /// Returns the next chunk; `None` at the end. An error is returned once, followed by the end.
    #[inline]
    pub(super) fn poll_next(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Chunk>>> {
        if self.queued_bytes.get() > 0 {
            if !self.core.spend(context) {
                return Poll::Pending;
            }
            return Poll::Ready(self.pop().map(Ok));
        }
        let waits = self.armed.get().is_some() && self.end.get() == End::Open;
        if waits && !self.core.is_elsewhere() {
            self.waiters.wait(context.waker());
            return Poll::Pending;
        }
        self.poll_unarmed(context)
    }

    /// Continues `poll_next` when nothing is queued and no multishot receive is armed.
    fn poll_unarmed(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        if !self.core.spend(context) {
            return Poll::Pending;
        }
        match self.end.get() {
            End::Open => {}
            End::Closed => return Poll::Ready(None),
            End::Failed(errno) => {
                self.end.set(End::Closed);
                return Poll::Ready(Some(Err(error_of(errno))));
            }
        }
        if self.core.is_elsewhere() {
            // The data belongs to the parent process.
            return Poll::Ready(Some(Err(EngineError::Forked.into())));
        }
        if self.taken.get() && self.bulk.borrow().is_none() {
            self.waiters.wait(context.waker());
            return Poll::Pending;
        }
        if !self.core.has_ring() {
            return self.attempt(context);
        }
        if self.taken.get() || self.takes_bulk() {
            return self.poll_bulk(context);
        }
        if self.armed.get().is_none() {
            if self.core.is_ending() {
                return Poll::Ready(None);
            }
            let begun = self.begun.replace(true);
            let kind = match self.short.get() {
                // All streams that found no buffer are armed again in one enter. If they received immediately, the
                // same amount of data would arrive at once and find no buffer again.
                1.. => ReceiveKind::SinglePollFirst,
                // A connection may end after one message; then there is nothing to cancel.
                0 if !begun => ReceiveKind::Single,
                0 => ReceiveKind::Multishot,
            };
            let sqe = recv_into_group(&self.socket, self.core.group_id(), kind);
            self.stopped.set(false);
            self.armed.set(self.core.arm(
                OperationNumber::RECV,
                sqe,
                Rc::clone(self) as Rc<dyn CompletionHandler>,
            ));
        }
        self.waiters.wait(context.waker());
        Poll::Pending
    }

    /// Returns whether single receives take over, now that the multishot one has ended.
    fn takes_bulk(&self) -> bool {
        self.armed.get().is_none()
            && (self.single.get() || self.is_bulk() || self.short.get() >= SHORT_MAX)
    }

    fn poll_bulk(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        let operation = self.bulk.take();
        let mut operation = operation.unwrap_or_else(|| {
            let bytes = if self.is_bulk() {
                BULK_BYTES
            } else {
                self.core.buffer_bytes() as usize
            };
            let memory = Vec::with_capacity(bytes);
            let op = Recv::new(Rc::clone(&self.socket), memory, self.take_permit());
            Box::new(SharedOperation::new(Rc::clone(&self.core), op))
        });
        match operation.poll(context) {
            Poll::Pending => {
                self.bulk.replace(Some(operation));
                Poll::Pending
            }
            Poll::Ready(Ok((0, _))) => {
                self.end.set(End::Closed);
                Poll::Ready(None)
            }
            Poll::Ready(Ok((bytes, memory))) => {
                self.short.set(0);
                self.judge_bulk(bytes);
                Poll::Ready(Some(Ok(Chunk::from_vec(memory))))
            }
            Poll::Ready(Err(error)) => {
                self.end.set(End::Closed);
                Poll::Ready(Some(Err(error.into())))
            }
        }
    }

    #[inline]
    fn is_bulk(&self) -> bool {
        self.whole.get() >= self.bulk_from.get()
    }

    /// Decides whether bulk mode goes on, after a receive of `bytes` bytes.
    fn judge_bulk(&self, bytes: usize) {
        if bytes >= BULK_BYTES_MIN {
            self.bulk_from.set(BULK_FROM);
            self.whole.set(BULK_FROM);
        } else {
            if self.is_bulk() {
                let from = self.bulk_from.get() * 4;
                self.bulk_from.set(from.min(BULK_FROM_MAX));
            }
            self.whole.set(0);
        }
    }

    /// Receives with system calls, waiting for readiness in between. Used without a ring.
    fn attempt(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        loop {
            if self.core.may_be_ready(&self.socket, Interest::Read) {
                let Some(mut chunk) = self.blank() else {
                    return Poll::Ready(None);
                };
                let res = chunk.receive(&self.socket);
                if !matches!(-res, EAGAIN | EINTR) {
                    self.core.count_call(OperationNumber::RECV, res);
                }
                match res {
                    0 => {
                        self.end.set(End::Closed);
                        return Poll::Ready(None);
                    }
                    res if res > 0 => {
                        let is_whole = chunk.is_full();
                        if is_whole {
                            self.whole.set(self.whole.get() + 1);
                        } else if chunk.len() < BULK_BYTES_MIN {
                            self.judge_bulk(chunk.len());
                        } else {
                            self.whole.set(0);
                        }
                        if !is_whole {
                            // The socket is empty now; epoll reports new data.
                            self.core.emptied(&self.socket);
                        }
                        return Poll::Ready(Some(Ok(chunk)));
                    }
                    res if res == -EINTR => continue,
                    res if res == -EAGAIN => self.core.not_ready(&self.socket, Interest::Read),
                    res => {
                        self.end.set(End::Closed);
                        return Poll::Ready(Some(Err(error_of(-res))));
                    }
                }
            }
            let watched = (self.core).watch(&self.socket, Interest::Read, context.waker());
            if let Err(error) = watched {
                return Poll::Ready(Some(Err(error)));
            }
            if !self.core.may_be_ready(&self.socket, Interest::Read) {
                return Poll::Pending;
            }
        }
    }

    fn blank(&self) -> Option<Chunk> {
        if self.is_bulk() {
            return Some(Chunk::with_capacity(BULK_BYTES));
        }
        self.core.blank()
    }

    /// Cancels the receives and drops the queued data, because the stream is no longer read.
    pub(super) fn close(&self) {
        let token = self.armed.get();
        token.into_iter().for_each(|token| self.core.cancel(token));
        let bulk = self.bulk.take();
        drop(bulk);
        self.direct.close();
        let queued = (self.first.take(), self.queue.take());
        self.queued_bytes.set(0);
        drop(queued);
        self.waiters.clear();
    }
}

impl CompletionHandler for Receiver {
    fn on_completion(self: Rc<Self>, core: &Core, cqe: Cqe) {
        let bytes = cqe.bytes();
        let is_sound = match cqe.buffer_id() {
            // A completion with an error may name a buffer, too (trap 4).
            Some(id) => core.received_parts(&cqe, id, |chunk| self.push(chunk)),
            None => true,
        };
        match cqe.res {
            0 => self.end.set(End::Closed),
            _ if !is_sound => self.end.set(End::Failed(EIO)),
            res if res > 0 => {
                let whole_bytes = core.buffer_bytes();
                self.whole.set(if bytes >= whole_bytes {
                    self.whole.get() + bytes / whole_bytes
                } else {
                    0
                });
                self.short.set(0);
            }
            // The receive is armed again when buffers are free. No data is lost (traps 25, 26).
            res if res == -ENOBUFS => self.short.set(self.short.get().saturating_add(1)),
            res if matches!(-res, EAGAIN | EINTR) => {}
            res if res == -ECANCELED && self.stopped.get() => {}
            res if res == -EINVAL && !self.single.get() => self.single.set(true),
            res => self.end.set(End::Failed(-res)),
        }
        if !cqe.more() {
            self.armed.set(None);
        } else if !self.stopped.get()
            && (self.queued_bytes.get() >= QUEUED_BYTES_MAX || self.is_bulk())
        {
            self.stopped.set(true);
            self.armed
                .get()
                .into_iter()
                .for_each(|token| core.cancel(token));
        }
        self.waiters.wake();
    }
}

impl UnreadBuffer for Receiver {
    fn keep(&self, bytes: &[u8]) {
        self.push(Chunk::copy_of(bytes));
    }

    fn keep_error(&self, errno: i32) {
        self.end.set(End::Failed(errno));
    }

    fn pass_on(&self) {
        self.taken.set(false);
        self.waiters.wake();
    }
}

/// The received data of a stream, as chunks in the core's buffers. Made by
/// [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
///
/// Dropping it loses no data: the stream's next receive returns what has arrived.
pub struct RecvStream<'a> {
    receiver: &'a OnCore<Rc<Receiver>>,
}

impl RecvStream<'_> {
    pub(super) fn new(receiver: &OnCore<Rc<Receiver>>) -> RecvStream<'_> {
        RecvStream { receiver }
    }

    /// Waits for the next chunk. Returns `None` at the end of the stream, and after an error.
    ///
    /// Cancel-safe: dropping the future loses no data.
    pub async fn next(&mut self) -> Option<io::Result<Chunk>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Puts back a chunk, or the rest of one. The stream's next receive returns it.
    pub fn unread(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            self.receiver.unread(chunk);
        }
    }

    /// Polls for the next chunk; see [`next`](RecvStream::next).
    #[inline]
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Chunk>>> {
        let polled = self.receiver.poll_next(context);
        if let Poll::Ready(Some(Ok(chunk))) = &polled {
            self.receiver.core.charge(chunk.len());
        }
        polled
    }
}

item_stream!(['a] RecvStream<'a>, io::Result<Chunk>);

impl fmt::Debug for RecvStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecvStream")
            .field(&self.receiver.socket)
            .finish()
    }
}
