//! The part that TCP and Unix streams share.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::exact::RecvExact;
use super::receiver::{Receiver, RecvStream};
use super::writer::Writer;
use crate::buf::{IoBuf, IoBufMut, check_capacity};
use crate::driver::core::{Core, SocketOperation};
use crate::error::{BufError, BufResult, WholeResult};
use crate::fd::{QueuedSend, SendPermit, Socket};
use crate::op::{self, Connect, SendThen};
use crate::sys::engine_error::error_of;
use crate::sys::net::{self, Address, SocketKind};
use crate::sys::on_core::OnCore;

/// A connected stream. Dropping it closes it: sends that have begun go on while the peer accepts data, and receives
/// are cancelled. The descriptor is closed when the kernel has completed the last operation on it (trap 38).
pub struct Stream {
    pub(super) core: OnCore<Rc<Core>>,
    pub(super) socket: OnCore<Rc<Socket>>,
    pub(super) receiver: OnCore<Rc<Receiver>>,
}

impl Stream {
    pub(super) fn new(core: Rc<Core>, fd: OwnedFd) -> Stream {
        let socket = core.socket(fd);
        Stream::of(core, socket)
    }

    pub(super) fn of(core: Rc<Core>, socket: Rc<Socket>) -> Stream {
        socket.add_user();
        Stream {
            receiver: Receiver::new(Rc::clone(&core), Rc::clone(&socket)).into(),
            core: core.into(),
            socket: socket.into(),
        }
    }

    /// Opens a socket and connects it to `address`.
    pub(super) async fn connect(address: Address) -> io::Result<Stream> {
        let core = OnCore::from(super::core()?);
        let fd = net::socket(&address, SocketKind::Stream, core.wants_nonblocking())?;
        let stream = Stream::new(Rc::clone(&core), fd);
        let connect = Connect::new(Rc::clone(&stream.socket), address);
        SocketOperation::new(Rc::clone(&core), connect).await?;
        Ok(stream)
    }

    pub(super) fn recv<B: IoBufMut>(&self, buf: B) -> Recv<'_, B> {
        Recv {
            stream: self,
            state: RecvState::Fresh(buf),
        }
    }

    pub(super) fn recv_exact<B: IoBufMut>(&self, buf: B) -> RecvExact<'_, B> {
        RecvExact::new(&self.receiver, buf)
    }

    pub(super) fn writer(&self) -> Writer {
        Writer::new(Rc::clone(&self.core), Rc::clone(&self.socket))
    }

    pub(super) fn recv_multishot(&self) -> RecvStream<'_> {
        RecvStream::new(&self.receiver)
    }

    pub(super) fn send_all<B: IoBuf>(&self, buf: B) -> SendAll<'_, B> {
        SendAll::new(&self.core, &self.socket, buf)
    }

    /// Starts to send `buf` if no other send is under way. Its completion is not reported.
    #[inline]
    pub(super) fn try_send<B: IoBuf>(&self, buf: B) -> Result<(), B> {
        if buf.init_bytes() == 0 {
            return Ok(());
        }
        let op = self.new_send_if_idle(buf)?;
        self.core.start_detached(op).map_err(op::SendAll::into_buf)
    }

    /// Starts a send like `try_send`, and passes the buffer to `then` at its end.
    #[inline]
    pub(super) fn try_send_then<B: IoBuf>(
        &self,
        buf: B,
        then: impl FnOnce(B) + 'static,
    ) -> Result<(), B> {
        if buf.init_bytes() == 0 {
            then(buf);
            return Ok(());
        }
        let op = SendThen::new(self.new_send_if_idle(buf)?, then);
        self.core.start_detached(op).map_err(SendThen::into_buf)
    }

    /// Starts a send like `try_send_then`, and closes the stream after it.
    pub(super) fn close_with<B: IoBuf>(
        self,
        buf: B,
        then: impl FnOnce(B) + 'static,
    ) -> Result<(), (Stream, B)> {
        if buf.init_bytes() == 0 {
            then(buf);
            return Ok(());
        }
        if self.core.is_ending() {
            return Err((self, buf));
        }
        let send = match self.new_send_if_idle(buf) {
            Ok(send) => send,
            Err(buf) => return Err((self, buf)),
        };
        let core = Rc::clone(&self.core);
        let others = Rc::downgrade(&self.socket);
        drop(self);
        let is_alone = others.strong_count() == 1;
        if is_alone && send.is_one_transfer() && core.closes_behind_sends() {
            core.start_last(SendThen::new(send.last(), then));
        } else {
            // A half, a writer, or a receive that is being cancelled still uses the socket. The last of them closes
            // it.
            let _ = core.start_detached(SendThen::new(send, then));
        }
        Ok(())
    }

    /// Returns the send operation, if no other send is under way and none has failed.
    #[inline]
    fn new_send_if_idle<B: IoBuf>(&self, buf: B) -> Result<op::SendAll<B>, B> {
        if self.socket.send_failed() != 0 {
            return Err(buf);
        }
        match SendPermit::take(&self.socket) {
            Some(permit) => Ok(op::SendAll::new(buf, permit)),
            None => Err(buf),
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        net::shutdown(self.socket.raw(), how)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.receiver.close();
        self.socket.remove_user(false);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

/// The future of a receive into a buffer. It returns the number of bytes, 0 at the end of the stream, and the buffer.
///
/// Dropping it loses no data: the stream's next receive returns what has arrived for this one.
///
/// A receive can be raced against something else, and dropped:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let nothing = futures_lite::future::poll_once(far.recv(vec![0; 64])).await;
/// assert!(nothing.is_none()); // no data yet; the receive was polled, and is dropped
/// near.send_all("hello").await?;
/// let (bytes, buf) = far.recv(vec![0; 64]).await?;
/// assert_eq!(&buf[..bytes], b"hello");
/// # Ok(()) })? }
/// ```
#[must_use = "it does nothing until it is awaited"]
pub struct Recv<'a, B: IoBufMut> {
    stream: &'a Stream,
    state: RecvState<B>,
}

enum RecvState<B: IoBufMut> {
    Fresh(B),
    Out(SocketOperation<op::Recv<B>>),
    Over,
}

impl<B: IoBufMut> Unpin for Recv<'_, B> {}

impl<B: IoBufMut> Future for Recv<'_, B> {
    type Output = BufResult<usize, B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let receiver = &this.stream.receiver;
        if let RecvState::Fresh(buf) = &mut this.state
            && let Err(error) = check_capacity(buf)
            && let RecvState::Fresh(buf) = std::mem::replace(&mut this.state, RecvState::Over)
        {
            return Poll::Ready(Err(BufError::new(error, Some(buf))));
        }
        if let RecvState::Fresh(_) = this.state
            && receiver.may_receive_into()
            && let RecvState::Fresh(buf) = std::mem::replace(&mut this.state, RecvState::Over)
        {
            let op = op::Recv::new(Rc::clone(&this.stream.socket), buf, receiver.take_permit());
            this.state = RecvState::Out(SocketOperation::new(Rc::clone(&this.stream.core), op));
        }
        if let RecvState::Out(operation) = &mut this.state {
            return Pin::new(operation).poll(context);
        }
        // Data has arrived already, or another receive is under way: copy from there.
        let next = std::task::ready!(receiver.poll_next(context));
        let RecvState::Fresh(mut buf) = std::mem::replace(&mut this.state, RecvState::Over) else {
            panic!("a receive was polled after it had completed");
        };
        Poll::Ready(match next {
            None => Ok((0, buf)),
            Some(Err(error)) => Err(BufError::new(error, Some(buf))),
            Some(Ok(mut chunk)) => {
                let bytes = chunk.copy_to(&mut buf);
                this.stream.core.charge(bytes);
                if !chunk.is_empty() {
                    receiver.unread(chunk);
                }
                Ok((bytes, buf))
            }
        })
    }
}

impl<B: IoBufMut> fmt::Debug for Recv<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recv").field(self.stream).finish()
    }
}

/// The future of a send. Sends of one stream are made one after another, in the order of their first polls.
///
/// A future that is dropped before it has the permit to send sends nothing. One that is dropped later still sends the
/// whole buffer.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// let never = near.send_all("never polled");
/// drop(never); // sends nothing
/// let begun = futures_lite::future::poll_once(near.send_all("hello")).await;
/// drop(begun); // a send that has begun still sends the whole buffer
/// near.sent().await?;
/// assert_eq!(far.recv_exact(vec![0; 5]).await?, b"hello");
/// # Ok(()) })? }
/// ```
#[must_use = "it does nothing until it is awaited"]
pub struct SendAll<'a, B: IoBuf> {
    core: &'a OnCore<Rc<Core>>,
    socket: &'a OnCore<Rc<Socket>>,
    state: OnCore<SendState<B>>,
}

impl<'a, B: IoBuf> SendAll<'a, B> {
    fn new(core: &'a OnCore<Rc<Core>>, socket: &'a OnCore<Rc<Socket>>, buf: B) -> SendAll<'a, B> {
        let state = SendState::Fresh(buf).into();
        SendAll {
            core,
            socket,
            state,
        }
    }
}

enum SendState<B: IoBuf> {
    Fresh(B),
    /// Waits behind other sends.
    Queued(B, QueuedSend),
    Out(SocketOperation<op::SendAll<B>>),
    Over,
}

impl<B: IoBuf> Unpin for SendAll<'_, B> {}

impl<B: IoBuf> Future for SendAll<'_, B> {
    type Output = WholeResult<B>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            if let SendState::Out(operation) = &mut *this.state {
                return Pin::new(operation).poll(context);
            }
            let (buf, permit) = match std::mem::replace(&mut *this.state, SendState::Over) {
                SendState::Fresh(buf) if buf.init_bytes() == 0 => return Poll::Ready(Ok(buf)),
                SendState::Fresh(buf) => match SendPermit::take(this.socket) {
                    Some(permit) => (buf, permit),
                    None => {
                        *this.state = SendState::Queued(buf, QueuedSend::queue(this.socket));
                        continue;
                    }
                },
                SendState::Queued(buf, mut task) => match task.poll(context) {
                    Poll::Ready(permit) => (buf, permit),
                    Poll::Pending => {
                        *this.state = SendState::Queued(buf, task);
                        return Poll::Pending;
                    }
                },
                SendState::Out(_) => unreachable!("a send that is out is polled above"),
                SendState::Over => panic!("a send was polled after it had completed"),
            };
            match this.socket.send_failed() {
                0 => {
                    let op = op::SendAll::new(buf, permit);
                    let operation = SocketOperation::new(Rc::clone(this.core), op);
                    *this.state = SendState::Out(operation);
                }
                errno => {
                    let error = error_of(errno);
                    return Poll::Ready(Err(BufError::new(error, Some(buf))));
                }
            }
        }
    }
}

impl<B: IoBuf> fmt::Debug for SendAll<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendAll").field(self.socket).finish()
    }
}
