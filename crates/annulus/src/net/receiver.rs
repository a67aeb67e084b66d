//! The receiving side of a stream: receives into the core's buffers, single receives for bulk data, system calls into
//! the caller's memory, or system calls without a ring. Received data is never lost, and the stream stops receiving
//! while too much of it is unread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

mod direct;
mod mode;

use crate::buf::Chunk;
use crate::driver::core::{CompletionHandler, Core, SharedOperation, Token, WaitersCell};
use crate::fd::Socket;
use crate::item_stream::item_stream;
use crate::metrics::OperationNumber;
use crate::op::{self, Interest, ReceiveKind, ReceivePermit, Recv, UnreadBuffer, recv_into_group};
use crate::sys::engine_error::{EngineError, code_of, error_of};
use crate::sys::errno::{EAGAIN, ECANCELED, EINTR, EINVAL, EIO, ENOBUFS};
use crate::sys::on_core::OnCore;
use crate::sys::sqe::Cqe;
use mode::{NextReceive, ReceivePolicy};

/// Unread bytes from which on a stream stops receiving, which slows down its sender.
const QUEUED_BYTES_MAX: usize = 64 << 10;
/// Size of the buffer of a bulk receive, bytes.
const BULK_BYTES: usize = 256 << 10;
/// A bulk receive that returns fewer bytes ends bulk mode.
const BULK_BYTES_MIN: usize = 16 << 10;

/// The receiving side of a stream.
pub(super) struct Receiver {
    waiters: WaitersCell,
    /// The first unread chunk. There is rarely a second one.
    first: Cell<Option<Chunk>>,
    /// The chunks after the first.
    queue: RefCell<VecDeque<Chunk>>,
    queued_bytes: Cell<usize>,
    /// The receive that is under way.
    under_way: RefCell<UnderWay>,
    /// The number of receives that hold bytes, which they put back if they are dropped.
    held: Cell<u32>,
    /// The last direct receive got everything there was. The next one waits for readiness first.
    emptied: Cell<bool>,
    /// The state of the stream after the queued data.
    end: Cell<End>,
    policy: Cell<ReceivePolicy>,
    pub(super) core: Rc<Core>,
    socket: Rc<Socket>,
}

/// The receive of a stream that is under way. There is at most one.
enum UnderWay {
    Nothing,
    /// A receive into the core's buffers; `stopped` if it has been asked to stop.
    Armed {
        token: Token,
        stopped: bool,
    },
    /// A single receive of a caller has the permit, or one whose future was dropped.
    Taken,
    /// A single receive into separate memory has the permit.
    Separate(Box<Separate>),
    /// The wait of a direct receive for readiness. It takes no data, so it may be dropped at any moment.
    Wait(Box<Wait>),
}

type Separate = SharedOperation<Recv<Vec<u8>>>;
type Wait = SharedOperation<op::Poll>;

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
            under_way: RefCell::new(UnderWay::Nothing),
            held: Cell::new(0),
            emptied: Cell::new(false),
            end: Cell::new(End::Open),
            policy: Cell::new(ReceivePolicy::NEW),
            core,
            socket,
        })
    }

    /// Returns whether a caller's receive may go to the kernel directly: nothing is queued, and no other receive is
    /// active.
    pub(super) fn is_idle(&self) -> bool {
        self.queued_bytes.get() == 0
            && self.end.get() == End::Open
            && matches!(
                *self.under_way.borrow(),
                UnderWay::Nothing | UnderWay::Wait(_)
            )
    }

    /// Waits while a receive is under way, and keeps its data for the next receive.
    pub(super) fn poll_under_way(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_over = self.queued_bytes.get() > 0 || self.end.get() != End::Open;
        if !is_over && !self.is_idle() {
            match ready!(self.poll_next(context)) {
                Some(Ok(chunk)) => self.unread(chunk),
                Some(Err(error)) => self.keep_error(code_of(&error).unwrap_or(EIO)),
                None => {}
            }
        }
        Poll::Ready(())
    }

    /// Returns whether the kernel may receive into a caller's buffer: nothing can come before that.
    pub(super) fn may_receive_into(&self) -> bool {
        self.is_idle() && self.held.get() == 0
    }

    /// Counts a receive that holds bytes.
    pub(super) fn hold(&self) {
        self.held.set(self.held.get() + 1);
    }

    /// Counts a receive that holds no bytes any more.
    pub(super) fn release(&self) {
        self.held.set(self.held.get() - 1);
    }

    #[inline]
    fn is_armed(&self) -> bool {
        matches!(*self.under_way.borrow(), UnderWay::Armed { .. })
    }

    /// Replaces the receive that is under way. The old one is dropped after the borrow of the cell has ended.
    fn set_under_way(&self, next: UnderWay) {
        drop(self.under_way.replace(next));
    }

    #[inline]
    fn change_policy<T>(&self, change: impl FnOnce(&mut ReceivePolicy) -> T) -> T {
        let mut policy = self.policy.get();
        let changed = change(&mut policy);
        self.policy.set(policy);
        changed
    }

    /// Takes the permit. The caller has checked that it is free.
    pub(super) fn take_permit(self: &Rc<Self>) -> ReceivePermit {
        self.set_under_way(UnderWay::Taken);
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
        self.waiters.wake();
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
        let waits = self.is_armed() && self.end.get() == End::Open;
        if waits && !self.core.is_elsewhere() {
            return self.wait(context);
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
        if !self.core.has_ring() {
            return match *self.under_way.borrow() {
                UnderWay::Taken => self.wait(context),
                _ => self.attempt(context),
            };
        }
        // Moved out: its poll gives the permit back when it has completed.
        match self.under_way.replace(UnderWay::Taken) {
            UnderWay::Separate(operation) => return self.poll_separate(operation, context),
            before @ (UnderWay::Armed { .. } | UnderWay::Taken) => {
                self.under_way.replace(before);
                return self.wait(context);
            }
            before @ (UnderWay::Nothing | UnderWay::Wait(_)) => {
                self.under_way.replace(UnderWay::Nothing);
                drop(before);
            }
        }
        let kind = match self.change_policy(ReceivePolicy::next_receive) {
            NextReceive::Separate(bytes) => {
                let operation = self.separate(bytes);
                return self.poll_separate(operation, context);
            }
            NextReceive::Single => ReceiveKind::Single,
            NextReceive::SinglePollFirst => ReceiveKind::SinglePollFirst,
            NextReceive::Multishot => ReceiveKind::Multishot,
        };
        if self.core.is_ending() {
            return Poll::Ready(None);
        }
        let sqe = recv_into_group(&self.socket, self.core.group_id(), kind);
        let handler = Rc::clone(self) as Rc<dyn CompletionHandler>;
        let armed = self.core.arm(OperationNumber::RECV, sqe, handler);
        if let Some(token) = armed {
            self.set_under_way(UnderWay::Armed {
                token,
                stopped: false,
            });
        }
        self.wait(context)
    }

    #[inline]
    fn wait<T>(&self, context: &Context<'_>) -> Poll<T> {
        self.waiters.wait(context.waker());
        Poll::Pending
    }

    /// Makes a receive into separate memory of `bytes` bytes, or of the size of a buffer of the core.
    fn separate(self: &Rc<Self>, bytes: Option<usize>) -> Box<Separate> {
        let bytes = bytes.unwrap_or(self.core.buffer_bytes() as usize);
        let memory = Vec::with_capacity(bytes);
        let op = Recv::new(Rc::clone(&self.socket), memory, self.take_permit());
        Box::new(SharedOperation::new(Rc::clone(&self.core), op))
    }

    fn poll_separate(
        &self,
        mut operation: Box<Separate>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Chunk>>> {
        match operation.poll(context) {
            Poll::Pending => {
                self.set_under_way(UnderWay::Separate(operation));
                self.wait(context)
            }
            Poll::Ready(Ok((0, _))) => {
                self.end.set(End::Closed);
                Poll::Ready(None)
            }
            Poll::Ready(Ok((bytes, memory))) => {
                self.change_policy(|policy| policy.note_separate(bytes));
                Poll::Ready(Some(Ok(Chunk::from_vec(memory))))
            }
            Poll::Ready(Err(error)) => {
                self.end.set(End::Closed);
                Poll::Ready(Some(Err(error.into())))
            }
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
                        let is_full = chunk.is_full();
                        self.change_policy(|policy| match chunk.len() {
                            _ if is_full => policy.note_full(1),
                            BULK_BYTES_MIN.. => policy.end_large(),
                            bytes => policy.note_separate(bytes),
                        });
                        if !is_full {
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
                return self.wait(context);
            }
        }
    }

    fn blank(&self) -> Option<Chunk> {
        match self.policy.get().is_bulk() {
            true => Some(Chunk::with_capacity(BULK_BYTES)),
            false => self.core.blank(),
        }
    }

    fn is_stopped(&self) -> bool {
        matches!(
            *self.under_way.borrow(),
            UnderWay::Armed { stopped: true, .. }
        )
    }

    /// Asks a receive into the core's buffers to stop, once.
    #[cold]
    fn stop(&self, core: &Core) {
        let mut under_way = self.under_way.borrow_mut();
        if let UnderWay::Armed { token, stopped } = &mut *under_way
            && !std::mem::replace(stopped, true)
        {
            let token = *token;
            drop(under_way);
            core.cancel(token);
        }
    }

    /// Cancels the receives and drops the queued data, because the stream is no longer read.
    pub(super) fn close(&self) {
        // A single receive keeps the permit until its completion, which gives it back.
        match self.under_way.replace(UnderWay::Taken) {
            before @ UnderWay::Armed { token, .. } => {
                self.under_way.replace(before);
                self.core.cancel(token);
            }
            UnderWay::Taken => {}
            before @ UnderWay::Separate(_) => drop(before),
            before @ (UnderWay::Nothing | UnderWay::Wait(_)) => {
                self.under_way.replace(UnderWay::Nothing);
                drop(before);
            }
        }
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
                let buffer_bytes = core.buffer_bytes();
                self.change_policy(|policy| match bytes >= buffer_bytes {
                    true => policy.note_full(bytes / buffer_bytes),
                    false => policy.end_large(),
                });
            }
            // The receive is armed again when buffers are free. No data is lost (traps 25, 26).
            res if res == -ENOBUFS => self.change_policy(ReceivePolicy::note_no_buffer),
            res if matches!(-res, EAGAIN | EINTR) => {}
            res if res == -ECANCELED && self.is_stopped() => {}
            res if res == -EINVAL && self.change_policy(ReceivePolicy::lose_multishot) => {}
            res => self.end.set(End::Failed(-res)),
        }
        if !cqe.more() {
            self.set_under_way(UnderWay::Nothing);
        } else if self.queued_bytes.get() >= QUEUED_BYTES_MAX || self.policy.get().is_bulk() {
            self.stop(core);
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
        self.set_under_way(UnderWay::Nothing);
        self.waiters.wake();
    }
}

/// The received data of a stream, as chunks in the core's buffers. Made by
/// [`TcpStream::recv_multishot`](super::TcpStream::recv_multishot).
///
/// Dropping it loses no data: the stream's next receive returns what has arrived.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let mut chunks = far.recv_multishot();
/// near.send_all("ping\npo").await?;
/// let mut chunk = chunks.next().await.expect("the stream is open")?;
/// assert_eq!(&chunk[..5], b"ping\n");
/// chunk.advance(5);
/// chunks.unread(chunk); // the beginning of the next line stays for a later receive
/// near.send_all("ng\n").await?;
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"pong\n");
/// # Ok(()) })? }
/// ```
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
    ///
    /// A read timeout. The stream is as before, and the next call waits again:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # let (near, far) = annulus::net::UnixStream::pair()?;
    /// use std::time::Duration;
    /// use annulus::time;
    ///
    /// let mut chunks = far.recv_multishot();
    /// assert!(time::timeout(Duration::from_millis(1), chunks.next()).await.is_err());
    /// near.send_all("late").await?;
    /// let chunk = chunks.next().await.expect("the stream is open")?;
    /// assert_eq!(&chunk[..], b"late");
    /// # Ok(()) })? }
    /// ```
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
