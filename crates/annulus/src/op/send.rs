//! # Safety
//!
//! `send_all`: SEND, or `send` when there is space. Owns the socket (Open) and the buffer (Lent, Still).
//!
//! It holds the permit of its stream, so that no other send overtakes it (trap 34). A dropped future keeps the
//! permit, and the whole message is sent, because a part of it would be worse.
//!
//! The last send of a stream may have its socket's number closed after it in the same enter. The kernel keeps the
//! socket until the send is complete, and no further operation uses the number (Open).
#![allow(unsafe_code)]

use std::rc::Rc;

use super::{
    Interest, Op, OpInfo, Resume, SocketOp, TRANSFER_MAX, retry_interrupted, table, transfer_len,
};
use crate::buf::IoBuf;
use crate::error::{BufError, WholeResult};
use crate::fd::{SendPermit, Socket};
use crate::sys::engine_error::error_of;
use crate::sys::errno::{ECANCELED, EPIPE, count};
use crate::sys::net::{self, MSG_MORE, MSG_WAITALL};
use crate::sys::sqe::{Sqe, opcode};

/// Returns the output of a send that was awaited. `errno` is 0 if everything was sent. `begun` is set if a part was.
pub(super) fn ended<B>(permit: &SendPermit, errno: i32, begun: bool, bufs: B) -> WholeResult<B> {
    if errno == 0 {
        return Ok(bufs);
    }
    if begun {
        permit.cut(errno);
    }
    let error = error_of(errno);
    Err(BufError::new(error, Some(bufs)))
}

/// Sends all of a buffer.
pub(crate) struct SendAll<B> {
    buf: B,
    done: usize,
    permit: SendPermit,
    /// The end of the stream follows in the same segment.
    is_last: bool,
}

impl<B: IoBuf> SendAll<B> {
    #[inline]
    pub(crate) fn new(buf: B, permit: SendPermit) -> SendAll<B> {
        SendAll {
            buf,
            done: 0,
            permit,
            is_last: false,
        }
    }

    /// Marks the send as the last one of a socket that has no other user.
    #[inline]
    pub(crate) fn last(self) -> SendAll<B> {
        SendAll {
            is_last: true,
            ..self
        }
    }

    /// Returns the buffer of a send that was not started.
    pub(crate) fn into_buf(self) -> B {
        self.buf
    }

    /// Returns whether one operation can transfer the whole buffer.
    #[inline]
    pub(crate) fn is_one_transfer(&self) -> bool {
        self.buf.init_bytes() <= TRANSFER_MAX
    }

    /// Returns the errno of an incomplete send after the final result; 0 if all is sent.
    #[inline]
    fn missing(&self, res: i32) -> i32 {
        match res {
            ..0 => -res,
            _ if self.done >= self.buf.init_bytes() => 0,
            // The last send of a stream, whose rest is not submitted again.
            _ if self.is_last => ECANCELED,
            _ => EPIPE,
        }
    }

    #[inline]
    fn rest(&self) -> (*const u8, usize) {
        let bytes = self.buf.init_bytes().saturating_sub(self.done);
        // SAFETY: Lent: `done` never exceeds the buffer (`resume` bounds it).
        let base = unsafe { self.buf.stable_ptr().add(self.done) };
        (base, bytes.min(TRANSFER_MAX))
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, and `permit` owns the descriptor.
unsafe impl<B: IoBuf> Op for SendAll<B> {
    const INFO: OpInfo = table::SEND;
    type Output = WholeResult<B>;

    #[inline]
    fn sqe(&mut self) -> Sqe {
        let (base, bytes) = self.rest();
        Sqe {
            addr: base as u64,
            len: transfer_len(bytes),
            op_flags: if self.is_last {
                MSG_WAITALL | MSG_MORE
            } else {
                MSG_WAITALL
            },
            ..Sqe::new(opcode::SEND, self.permit.socket().raw())
        }
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        // The number may belong to another file now, so nothing more is submitted.
        let is_over = self.permit.socket().is_released();
        if res < 0 {
            return if is_over {
                Resume::Done(res)
            } else {
                retry_interrupted(res)
            };
        }
        self.done += count(res);
        // A short send is a success (trap 35). A send of 0 bytes would be retried without end.
        if res > 0 && self.done < self.buf.init_bytes() && !is_over {
            return Resume::Again;
        }
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> WholeResult<B> {
        let errno = self.missing(res);
        ended(&self.permit, errno, self.done > 0, self.buf)
    }
}

impl<B: IoBuf> SocketOp for SendAll<B> {
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.permit.socket()
    }

    fn attempt(&mut self) -> i32 {
        let (base, bytes) = self.rest();
        let raw = self.permit.socket().raw();
        // SAFETY: Lent and Open: the op owns both, and is not touched during the call.
        unsafe {
            match self.is_last {
                true => net::send_last(raw, base, bytes),
                false => net::send(raw, base, bytes),
            }
        }
    }

    fn left_behind(&self) {
        self.permit.cut(ECANCELED);
    }

    #[inline]
    fn abandoned(self, res: i32) {
        let errno = self.missing(res);
        if errno != 0 {
            self.permit.fail(errno);
        }
    }
}

/// A send that is not awaited, and passes its buffer to a function at its end.
pub(crate) struct SendThen<B, F> {
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
    type Output = ();

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
        let SendAll { buf, permit, .. } = self.send;
        if errno != 0 {
            permit.fail(errno);
        }
        drop(permit);
        (self.then)(buf);
    }
}

impl<B: IoBuf, F: FnOnce(B) + 'static> SocketOp for SendThen<B, F> {
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.send.socket()
    }

    fn attempt(&mut self) -> i32 {
        self.send.attempt()
    }

    fn left_behind(&self) {
        self.send.left_behind();
    }
}
