//! # Safety
//!
//! `send_all`: SEND, or `send` when there is room. Owns the socket (Open) and the buffer (Lent, Still). It
//! holds the permit of its stream, so that no other send overtakes it (trap 34), and keeps it when its future
//! is dropped: half a message would be worse than a whole one. The last one of a stream may have its socket's
//! number closed behind it in the same enter; the kernel keeps the socket until it is through, and nothing is asked
//! of the number any more (Open).
#![allow(unsafe_code)]

use std::fmt;
use std::rc::Rc;

use super::{
    Interest, OpInfo, Resume, SocketOp, TRANSFER_MAX, retry_interrupted, table, transfer_len,
};
use crate::buf::IoBuf;
use crate::error::{BufError, WholeResult};
use crate::fd::{SendPermit, Socket};
use crate::sys::engine_error::error_of;
use crate::sys::errno::{ECANCELED, EPIPE, count};
use crate::sys::net::{self, MSG_MORE, MSG_WAITALL};
use crate::sys::sqe::{Sqe, opcode};

/// The answer of a send that somebody has waited for. `errno`: why not all is sent, or 0; `begun`: a part of it is.
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
pub struct SendAll<B> {
    buf: B,
    done: usize,
    permit: SendPermit,
    /// The end of the stream follows immediately, and leaves in the same segment.
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

    /// The same, as the last of a socket that nobody else uses.
    #[inline]
    pub(crate) fn last(self) -> SendAll<B> {
        SendAll {
            is_last: true,
            ..self
        }
    }

    /// The buffer of a send that was not begun.
    pub(crate) fn into_buf(self) -> B {
        self.buf
    }

    /// Whether the kernel takes all of it in one operation.
    #[inline]
    pub(crate) fn is_one_transfer(&self) -> bool {
        self.buf.init_bytes() <= TRANSFER_MAX
    }

    /// Why, after the final answer, not all is sent; 0: it is.
    #[inline]
    fn missing(&self, res: i32) -> i32 {
        match res {
            ..0 => -res,
            _ if self.done >= self.buf.init_bytes() => 0,
            // The last one of a stream, of which the rest is not asked for.
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

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, `permit` the descriptor.
unsafe impl<B: IoBuf> SocketOp for SendAll<B> {
    const INFO: OpInfo = table::SEND;
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;
    type Output = WholeResult<B>;

    #[expect(private_interfaces)]
    fn socket(&self) -> &Rc<Socket> {
        self.permit.socket()
    }

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

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        // What its number stands for may be another's: as far as it came, it is over.
        let is_over = self.permit.socket().is_released();
        if res < 0 {
            return if is_over {
                Resume::Done(res)
            } else {
                retry_interrupted(res)
            };
        }
        self.done += count(res);
        // A short send is a success (trap 35); nothing at all would be retried without end.
        if res > 0 && self.done < self.buf.init_bytes() && !is_over {
            return Resume::Again;
        }
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> WholeResult<B> {
        let errno = self.missing(res);
        ended(&self.permit, errno, self.done > 0, self.buf)
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

/// The same, when nobody waits for the end but the buffer is wanted back.
pub struct SendThen<B, F> {
    send: SendAll<B>,
    then: F,
}

impl<B: IoBuf, F: FnOnce(B)> SendThen<B, F> {
    #[inline]
    pub(crate) fn new(send: SendAll<B>, then: F) -> SendThen<B, F> {
        SendThen { send, then }
    }

    /// The buffer of a send that was not begun.
    pub(crate) fn into_buf(self) -> B {
        self.send.into_buf()
    }
}

// SAFETY: Lent, Still, Open: `send` owns what the kernel is pointed to.
unsafe impl<B: IoBuf, F: FnOnce(B) + 'static> SocketOp for SendThen<B, F> {
    const INFO: OpInfo = SendAll::<B>::INFO;
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;
    type Output = ();

    #[expect(private_interfaces)]
    fn socket(&self) -> &Rc<Socket> {
        self.send.socket()
    }

    #[inline]
    fn sqe(&mut self) -> Sqe {
        self.send.sqe()
    }

    fn attempt(&mut self) -> i32 {
        self.send.attempt()
    }

    #[inline]
    fn resume(&mut self, res: i32) -> Resume {
        self.send.resume(res)
    }

    fn left_behind(&self) {
        self.send.left_behind();
    }

    /// The permit is returned first: the receiver of the buffer may send it again.
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

impl<B> fmt::Debug for SendAll<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendAll")
            .field(self.permit.socket())
            .finish()
    }
}
