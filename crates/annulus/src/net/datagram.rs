//! The part that UDP and Unix datagram sockets share.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::buf::{Chunk, IoBuf, IoBufMut, ReceiveMode, check_lent};
use crate::driver::contain;
use crate::driver::core::{
    CompletionHandler, Core, SharedOperation, SocketOperation, Token, WaitersCell,
};
use crate::error::{BufError, BufResult, WholeResult};
use crate::fd::{Line, Permit, Queued, Socket};
use crate::metrics::OperationNumber;
use crate::op::{MessageInfo, ReceiveQueue, ReceivedMessage, RecvMessage, SendMessage, Shape};
use crate::sys::engine_error::{EngineError, error_of};
use crate::sys::errno::{EAGAIN, ECANCELED, EINTR, EINVAL, ENOBUFS};
use crate::sys::net::{self, Address};
use crate::sys::sqe::Cqe;
use crate::time::sleep;

/// Number of unread datagrams from which on a socket stops receiving. The kernel queues further ones, and drops them
/// when its buffer is full.
const QUEUED_MAX: usize = 64;

/// Pause before the next attempt to send to a Unix socket whose queue was full.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Describes a datagram that was received into a buffer.
///
/// A datagram of length 0 is not the end of anything:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::UdpSocket;
///
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.send_to("", socket.local_addr()?).await?;
/// let (received, _) = socket.recv_from(vec![0; 64]).await?;
/// assert_eq!((received.bytes, received.is_truncated), (0, false));
/// # Ok(()) })? }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<A> {
    /// The number of bytes in the buffer.
    pub bytes: usize,
    /// The sender's address.
    pub from: A,
    /// Set if the buffer was too small; the rest of the datagram is lost.
    pub is_truncated: bool,
}

/// A datagram in a buffer of the core.
///
/// The payload can go to another thread; it occupies a buffer of the core until it is dropped.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::net::UdpSocket;
///
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.send_to("hello", socket.local_addr()?).await?;
/// let datagram = socket.recv_multishot().next().await.expect("the runtime runs")?;
/// let chunk = datagram.chunk;
/// let sum = std::thread::spawn(move || chunk.iter().map(|&byte| u32::from(byte)).sum::<u32>());
/// assert_eq!(sum.join().unwrap(), 532);
/// # Ok(()) })? }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram<A> {
    /// The payload.
    pub chunk: Chunk,
    /// The sender's address.
    pub from: A,
    /// Set if the datagram was longer than the core's buffers; the rest of it is lost.
    pub is_truncated: bool,
}

/// A datagram socket.
pub(super) struct DatagramReceiver {
    pub(super) core: Rc<Core>,
    pub(super) socket: Rc<Socket>,
    /// The queue of receives, which run one at a time. A dropped receive that the kernel still has comes before the
    /// next.
    line: Line,
    /// The message header of multishot receives.
    shape: Shape,
    queue: RefCell<VecDeque<io::Result<ReceivedMessage>>>,
    /// The multishot receive, while the kernel has it.
    armed: Cell<Option<Token>>,
    /// The multishot receive has been asked to stop.
    stopped: Cell<bool>,
    /// The kernel has no multishot receive of messages (before 6.0).
    single: Cell<bool>,
    /// A receive found no free buffer: the next datagram is received into separate memory.
    starved: Cell<bool>,
    one: RefCell<Option<One>>,
    waiters: WaitersCell,
    /// Datagrams go to a Unix socket that is not connected to this one. If its queue is full, they are tried again:
    /// epoll does not report space in it (trap 69), and a ring sends an empty datagram (trap 70).
    pub(super) to_path: Cell<bool>,
}

/// The right to receive on the socket.
type DatagramPermit = Permit<DatagramReceiver>;

/// A receive into separate memory. The task that has the permit waits for it.
type One = SharedOperation<RecvMessage<Vec<u8>, DroppedReceive>>;

/// The target of its datagram. It holds no permit, because it outlives the receive that started it.
struct DroppedReceive(Rc<DatagramReceiver>);

impl DatagramReceiver {
    /// `name_bytes` is the maximum length of an address.
    pub(super) fn new(
        core: Rc<Core>,
        socket: Rc<Socket>,
        name_bytes: usize,
    ) -> Rc<DatagramReceiver> {
        Rc::new(DatagramReceiver {
            core,
            socket,
            line: Line::default(),
            shape: Shape::new(name_bytes),
            queue: RefCell::default(),
            armed: Cell::new(None),
            stopped: Cell::new(false),
            single: Cell::new(false),
            starved: Cell::new(false),
            one: RefCell::default(),
            waiters: WaitersCell::default(),
            to_path: Cell::new(false),
        })
    }

    /// Sends one datagram; `None` sends to the connected peer.
    pub(super) async fn send<B: IoBuf>(&self, mut buf: B, to: Option<&Address>) -> WholeResult<B> {
        let tries_once = self.to_path.get() || to.is_some_and(net::is_path);
        loop {
            let op = SendMessage::new(Rc::clone(&self.socket), buf, to, tries_once);
            let sent = SocketOperation::new(Rc::clone(&self.core), op).await;
            match sent {
                Err(error) if tries_once && error.error().kind() == io::ErrorKind::WouldBlock => {
                    let (error, back) = error.into_parts();
                    let Some(back) = back else {
                        return Err(BufError::new(error, None));
                    };
                    buf = back;
                    sleep(FULL_PAUSE).await;
                }
                sent => return sent,
            }
        }
    }

    /// Receives one datagram into `buf`. A dropped receive leaves its datagram to the next one. Receives of several
    /// tasks complete in the order of their first polls.
    pub(super) async fn recv<B: IoBufMut>(
        self: &Rc<Self>,
        mut buf: B,
    ) -> BufResult<Received<Option<Address>>, B> {
        if let Err(error) = check_lent(&mut buf) {
            return Err(BufError::new(error, Some(buf)));
        }
        let permit = DatagramPermit::wait(self).await;
        if self.is_idle() {
            let op = RecvMessage::new(Rc::clone(&self.socket), buf, permit);
            let (info, buf) = SocketOperation::new(Rc::clone(&self.core), op).await?;
            let MessageInfo {
                bytes,
                sender,
                is_truncated,
            } = info;
            let received = Received {
                bytes,
                from: sender,
                is_truncated,
            };
            return Ok((received, buf));
        }
        // A datagram has arrived already, or another receive is under way: copy from there.
        let next = std::future::poll_fn(|context| self.poll_in_turn(context)).await;
        drop(permit);
        let mut received = match next {
            Some(Ok(received)) => received,
            Some(Err(error)) => return Err(BufError::new(error, Some(buf))),
            None => return Err(BufError::new(ends(), Some(buf))),
        };
        let bytes = received.chunk.copy_to(&mut buf);
        let received = Received {
            bytes,
            from: received.sender,
            is_truncated: received.is_truncated || !received.chunk.is_empty(),
        };
        Ok((received, buf))
    }

    /// Returns whether a caller's receive may go to the kernel directly.
    fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty() && self.armed.get().is_none() && self.one.borrow().is_none()
    }

    /// Returns the longest datagram that fits into a core buffer together with its address, bytes. It is the same
    /// without multishot, so that a program behaves the same everywhere.
    fn space(&self) -> io::Result<usize> {
        let bytes = self.core.buffer_bytes() as usize;
        match bytes.checked_sub(self.shape.overhead()) {
            Some(space) if space > 0 => Ok(space),
            _ => Err(too_small(bytes, self.shape.overhead())),
        }
    }

    /// Waits for the next datagram; `None` when the runtime ends. The socket continues after an error.
    pub(super) async fn next(self: &Rc<Self>) -> Option<io::Result<ReceivedMessage>> {
        let _permit = DatagramPermit::wait(self).await;
        std::future::poll_fn(|context| self.poll_in_turn(context)).await
    }

    /// Polls for the next datagram. The caller has no position in the queue, because nothing reports when it gives
    /// up; it waits until the queue is empty.
    pub(super) fn poll_next(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<ReceivedMessage>>> {
        if self.line.is_taken() {
            self.waiters.wait(context.waker());
            return Poll::Pending;
        }
        self.poll_in_turn(context)
    }

    fn poll_in_turn(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<ReceivedMessage>>> {
        if !self.core.spend(context) {
            return Poll::Pending;
        }
        let queued = self.queue.borrow_mut().pop_front();
        if let Some(queued) = queued {
            if let Ok(received) = &queued {
                self.core.charge(received.chunk.len());
            }
            return Poll::Ready(Some(queued));
        }
        if self.core.is_ending() {
            return Poll::Ready(None);
        }
        let space = match self.space() {
            Ok(space) => space,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        let one = self.single.get() || self.starved.get() || !self.may_arm();
        if one && self.armed.get().is_none() {
            return self.poll_one(context, space);
        }
        self.waiters.wait(context.waker());
        if self.armed.get().is_none() {
            let sqe = self.shape.multishot(&self.socket, self.core.group_id());
            self.stopped.set(false);
            self.armed.set(self.core.arm(
                OperationNumber::RECV_MESSAGE,
                sqe,
                Rc::clone(self) as Rc<dyn CompletionHandler>,
            ));
        }
        Poll::Pending
    }

    /// Returns whether the kernel has a buffer for each datagram. Buffers that are filled incrementally would
    /// truncate datagrams (trap 29).
    fn may_arm(&self) -> bool {
        self.core.has_ring() && self.core.receive_mode() != ReceiveMode::Incremental
    }

    fn poll_one(
        self: &Rc<Self>,
        context: &mut Context<'_>,
        space: usize,
    ) -> Poll<Option<io::Result<ReceivedMessage>>> {
        let operation = self.one.take();
        let mut operation = operation.unwrap_or_else(|| {
            let memory = Vec::with_capacity(space);
            let op = RecvMessage::new(
                Rc::clone(&self.socket),
                memory,
                DroppedReceive(Rc::clone(self)),
            );
            SharedOperation::new(Rc::clone(&self.core), op)
        });
        let polled = operation.poll(context);
        if polled.is_pending() {
            self.one.replace(Some(operation));
            return Poll::Pending;
        }
        self.starved.set(false);
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok((info, memory))) => Poll::Ready(Some(Ok(ReceivedMessage {
                chunk: Chunk::from_vec(memory),
                sender: info.sender,
                is_truncated: info.is_truncated,
            }))),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error.into()))),
        }
    }

    /// Cancels the receives and drops the queued datagrams, because the socket is no longer read.
    pub(super) fn close(&self) {
        let token = self.armed.get();
        token.into_iter().for_each(|token| self.core.cancel(token));
        drop(self.one.take());
        drop(self.queue.take());
        self.waiters.clear();
    }
}

fn ends() -> io::Error {
    EngineError::Ended.into()
}

fn too_small(bytes: usize, overhead: usize) -> io::Error {
    let text = format!(
        "the core's receive buffers of {bytes} bytes are too small for datagrams, whose header takes {overhead} \
         bytes; configure larger ones with RuntimeBuilder::receive_buffers"
    );
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl CompletionHandler for DatagramReceiver {
    fn on_completion(self: Rc<Self>, core: &Core, cqe: Cqe) {
        // A completion with an error may name a buffer, too (trap 4).
        let id = cqe.buffer_id();
        let chunk = id.and_then(|id| core.received(id, cqe.bytes()));
        match (cqe.res, chunk) {
            (res, Some(chunk)) if res >= 0 => {
                let opened = self.shape.open(chunk);
                let opened = opened.ok_or_else(|| {
                    let text =
                        "a datagram was dropped, because its header from the kernel is invalid";
                    io::Error::new(io::ErrorKind::InvalidData, text)
                });
                self.queue.borrow_mut().push_back(opened);
            }
            // The datagram stays in the kernel's queue. The task that receives next may itself hold buffers.
            (res, _) if res == -ENOBUFS => self.starved.set(true),
            (res, _) if res >= 0 || matches!(-res, EAGAIN | EINTR) => {}
            (res, _) if res == -ECANCELED && self.stopped.get() => {}
            (res, _) if res == -EINVAL && !self.single.get() => self.single.set(true),
            (res, _) => {
                let error = error_of(-res);
                self.queue.borrow_mut().push_back(Err(error));
            }
        }
        if !cqe.more() {
            self.armed.set(None);
        } else if !self.stopped.get() && self.queue.borrow().len() >= QUEUED_MAX {
            self.stopped.set(true);
            let token = self.armed.get();
            token.into_iter().for_each(|token| core.cancel(token));
        }
        self.waiters.wake();
    }
}

impl Queued for DatagramReceiver {
    #[inline]
    fn line(&self) -> &Line {
        &self.line
    }

    #[inline]
    fn idle(&self) {
        self.waiters.wake();
    }

    fn wake(&self, next: Waker) {
        contain(|| next.wake());
    }
}

impl DatagramReceiver {
    fn keep(&self, received: io::Result<ReceivedMessage>) {
        self.queue.borrow_mut().push_back(received);
        self.waiters.wake();
    }
}

impl ReceiveQueue for DatagramPermit {
    fn keep(&self, received: ReceivedMessage) {
        self.owner().keep(Ok(received));
    }

    fn keep_error(&self, errno: i32) {
        self.owner().keep(Err(io::Error::from_raw_os_error(errno)));
    }
}

impl ReceiveQueue for DroppedReceive {
    fn keep(&self, received: ReceivedMessage) {
        self.0.keep(Ok(received));
    }

    fn keep_error(&self, errno: i32) {
        self.0.keep(Err(io::Error::from_raw_os_error(errno)));
    }
}

impl fmt::Debug for DatagramReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}
