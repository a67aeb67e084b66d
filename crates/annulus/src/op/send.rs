//! # Safety
//!
//! The sends of a stream: all of one buffer (`send_all`), all of several (`send_vectored.rs`), and without a copy
//! (`send_zero_copy.rs`). Owns the socket (Open) and the buffers (Lent, Still).
//!
//! A send holds the permit of its stream, so that no other send overtakes it (trap 34). A dropped future keeps the
//! permit, and the whole message is sent, because a part of it would be worse.
//!
//! The last send of a stream may have its socket's number closed after it in the same enter. The kernel keeps the
//! socket until the send is complete, and no further operation uses the number (Open).
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::rc::Rc;

use super::shape::{Buffers, Shape, Single};
use super::{
    Interest, Op, OpInfo, Resume, Returns, SocketOp, TRANSFER_MAX, retry_interrupted, table,
    transfer_len,
};
use crate::buf::IoBuf;
use crate::error::{BufError, WholeResult};
use crate::fd::{SendPermit, Socket};
use crate::sys::engine_error::error_of;
use crate::sys::errno::{ECANCELED, EPIPE, count};
use crate::sys::net::{self, MSG_MORE, MSG_WAITALL};
use crate::sys::sqe::{Sqe, opcode};

/// Sends all of a buffer.
pub(crate) type SendAll<B> = StreamSend<Plain<B>>;

/// Sends all of the buffers of a stream, in the way of `K`.
pub(crate) struct StreamSend<K: SendKind> {
    pub(super) shape: K::Shape,
    pub(super) permit: SendPermit,
    pub(super) kind: K,
}

/// A way to send.
///
/// # Safety
///
/// Lent, Still: what the SQE points to belongs to the shape, or to the kind at a fixed address.
pub(crate) unsafe trait SendKind: 'static {
    const INFO: OpInfo;
    type Shape: Shape;

    /// Returns the SQE for the rest of `shape`.
    fn sqe(&mut self, socket: &Socket, shape: &mut Self::Shape) -> Sqe;

    /// Sends the rest of `shape` with a nonblocking system call.
    fn attempt(&mut self, socket: &Socket, shape: &mut Self::Shape) -> i32;

    /// Returns whether another way is left, after the kernel has refused this one with `res`.
    fn step_down(&mut self, _socket: &Socket, _res: i32) -> bool {
        false
    }

    /// Called with the notification of a zero-copy send.
    fn on_zero_copy_notice(&mut self, _socket: &Socket, _usage: i32) {}
}

impl<K: SendKind> StreamSend<K> {
    /// Returns the errno of an incomplete send after the final result; 0 if all is sent.
    #[inline]
    fn missing(&self, res: i32) -> i32 {
        match res {
            ..0 => -res,
            _ if !self.shape.has_rest() => 0,
            // The last send of a stream, whose rest is not submitted again.
            _ if self.permit.socket().is_released() => ECANCELED,
            _ => EPIPE,
        }
    }
}

// SAFETY: Lent, Still, Open: the shape and the kind own what the SQE points to (`SendKind`), and `permit` owns the
// descriptor. A send only reads through the pointers.
unsafe impl<K: SendKind> Op for StreamSend<K> {
    const INFO: OpInfo = K::INFO;

    #[inline]
    fn sqe(&mut self) -> Sqe {
        self.kind.sqe(self.permit.socket(), &mut self.shape)
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        let socket = self.permit.socket();
        // The number may belong to another file now, so nothing more is submitted.
        let is_over = socket.is_released();
        if res < 0 {
            return match is_over {
                true => Resume::Done(res),
                false if self.kind.step_down(socket, res) => Resume::Again,
                false => retry_interrupted(res),
            };
        }
        self.shape.advance(count(res));
        // A short send is a success (trap 35). A send of 0 bytes would be retried without end.
        if res > 0 && self.shape.has_rest() && !is_over {
            return Resume::Again;
        }
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> Self::Output {
        let errno = self.missing(res);
        if errno != 0 && self.shape.done() > 0 {
            self.permit.cut(errno);
        }
        let bufs = self.shape.into_bufs();
        match errno {
            0 => Ok(bufs),
            errno => Err(BufError::new(error_of(errno), Some(bufs))),
        }
    }
}

impl<K: SendKind> Returns for StreamSend<K> {
    type Output = WholeResult<<K::Shape as Buffers>::Bufs>;
}

impl<K: SendKind> SocketOp for StreamSend<K> {
    const INTEREST: Interest = Interest::Write;
    const CONTINUES_AFTER_DROP: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.permit.socket()
    }

    fn attempt(&mut self) -> i32 {
        self.kind.attempt(self.permit.socket(), &mut self.shape)
    }

    fn on_zero_copy_notice(&mut self, usage: i32) {
        self.kind.on_zero_copy_notice(self.permit.socket(), usage);
    }

    /// A peer that accepts nothing sends no acknowledgements, so an incomplete send is aborted instead of awaited.
    fn on_core_end(&self, res: i32) {
        if self.shape.done() + count(res) < self.shape.want() {
            self.permit.socket().abort();
        }
    }

    fn on_leak(&self) {
        self.permit.cut(ECANCELED);
    }

    #[inline]
    fn on_drop(self, res: i32) {
        let errno = self.missing(res);
        if errno != 0 {
            self.permit.fail(errno);
        }
    }
}

/// SEND, or `send`.
pub(crate) struct Plain<B> {
    /// The end of the stream follows in the same segment.
    is_last: bool,
    buf: PhantomData<B>,
}

// SAFETY: Lent, Still: points only to the rest of the shape.
unsafe impl<B: IoBuf> SendKind for Plain<B> {
    const INFO: OpInfo = table::SEND;
    type Shape = Single<B>;

    #[inline]
    fn sqe(&mut self, socket: &Socket, shape: &mut Single<B>) -> Sqe {
        let (base, bytes) = shape.rest();
        Sqe {
            addr: base as u64,
            len: transfer_len(bytes),
            op_flags: if self.is_last {
                MSG_WAITALL | MSG_MORE
            } else {
                MSG_WAITALL
            },
            ..Sqe::new(opcode::SEND, socket.raw())
        }
    }

    fn attempt(&mut self, socket: &Socket, shape: &mut Single<B>) -> i32 {
        let (base, bytes) = shape.rest();
        // SAFETY: Lent and Open: the op owns both, and is not touched during the call.
        unsafe {
            match self.is_last {
                true => net::send_last(socket.raw(), base, bytes),
                false => net::send(socket.raw(), base, bytes),
            }
        }
    }
}

impl<B: IoBuf> SendAll<B> {
    #[inline]
    pub(crate) fn new(buf: B, permit: SendPermit) -> SendAll<B> {
        StreamSend {
            shape: Single::new(buf),
            permit,
            kind: Plain {
                is_last: false,
                buf: PhantomData,
            },
        }
    }

    /// Marks the send as the last one of a socket that has no other user.
    #[inline]
    pub(crate) fn last(mut self) -> SendAll<B> {
        self.kind.is_last = true;
        self
    }

    /// Returns the buffer of a send that was not started.
    pub(crate) fn into_buf(self) -> B {
        self.shape.into_bufs()
    }

    /// Returns whether one operation can transfer the whole buffer.
    #[inline]
    pub(crate) fn is_one_transfer(&self) -> bool {
        self.shape.want() <= TRANSFER_MAX
    }
}

/// A send that is not awaited, and passes its buffer to a function at its end.
pub(crate) struct SendThen<B: IoBuf, F> {
    send: SendAll<B>,
    then: F,
}

impl<B: IoBuf, F: FnOnce(B)> SendThen<B, F> {
    #[inline]
    pub(crate) fn new(send: SendAll<B>, then: F) -> SendThen<B, F> {
        SendThen { send, then }
    }

    /// Returns the buffer of a send that was not started.
    pub(crate) fn into_buf(self) -> B {
        self.send.into_buf()
    }
}

// SAFETY: Lent, Still, Open: `send` owns everything that the kernel points to.
unsafe impl<B: IoBuf, F: FnOnce(B) + 'static> Op for SendThen<B, F> {
    const INFO: OpInfo = SendAll::<B>::INFO;

    #[inline]
    fn sqe(&mut self) -> Sqe {
        self.send.sqe()
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        self.send.resume(res)
    }

    /// Returns the permit first, because `then` may send the buffer again.
    #[inline]
    fn complete(self, res: i32) {
        let errno = self.send.missing(res);
        let StreamSend { shape, permit, .. } = self.send;
        if errno != 0 {
            permit.fail(errno);
        }
        drop(permit);
        (self.then)(shape.into_bufs());
    }
}

impl<B: IoBuf, F> Returns for SendThen<B, F> {
    type Output = ();
}

impl<B: IoBuf, F: FnOnce(B) + 'static> SocketOp for SendThen<B, F> {
    const INTEREST: Interest = Interest::Write;
    const CONTINUES_AFTER_DROP: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.send.socket()
    }

    fn attempt(&mut self) -> i32 {
        self.send.attempt()
    }

    fn on_leak(&self) {
        self.send.on_leak();
    }
}
