//! # Safety
//!
//! `send_vectored_all`: SENDMSG, or `sendmsg` when there is space. Owns the socket (Open), the buffers, the vectors
//! that point to them and the boxed header that points to the vectors (Lent, Still). It holds the permit of its
//! stream, and keeps it when its future is dropped, as `send_all` does.
#![allow(unsafe_code)]

use std::rc::Rc;

use super::send::ended;
use super::vectors::Vectors;
use super::{Interest, Op, OpInfo, Resume, SocketOp, retry_interrupted, table};
use crate::buf::IoBuf;
use crate::error::WholeResult;
use crate::fd::{SendPermit, Socket};
use crate::sys::errno::{ECANCELED, EPIPE, count};
use crate::sys::net::{self, MSG_WAITALL, Message};
use crate::sys::sqe::{Sqe, opcode};

/// Sends all of several buffers, in order.
pub(crate) struct SendVectored<B> {
    vectors: Vectors<B>,
    message: Box<Message>,
    permit: SendPermit,
    /// A part has been sent.
    begun: bool,
}

impl<B: IoBuf> SendVectored<B> {
    pub(crate) fn new(bufs: Vec<B>, permit: SendPermit) -> SendVectored<B> {
        SendVectored {
            vectors: Vectors::from(bufs),
            message: Box::new(net::no_message()),
            permit,
            begun: false,
        }
    }

    /// Returns the errno of an incomplete send after the final result; 0 if all is sent.
    fn missing(&self, res: i32) -> i32 {
        match res {
            ..0 => -res,
            _ if self.vectors.has_rest() => EPIPE,
            _ => 0,
        }
    }

    fn aim(&mut self) -> *const Message {
        *self.message = net::message(std::ptr::null_mut(), 0, self.vectors.rest());
        &raw const *self.message
    }
}

// SAFETY: Lent, Still, Open: buffers, vectors and header are the op's own, on the heap, and `permit` owns the
// descriptor. A send only reads through the pointers.
unsafe impl<B: IoBuf> Op for SendVectored<B> {
    const INFO: OpInfo = table::SEND_VECTORED;
    type Output = WholeResult<Vec<B>>;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.aim() as u64,
            len: 1,
            op_flags: MSG_WAITALL,
            ..Sqe::new(opcode::SENDMSG, self.permit.socket().raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if res < 0 {
            return retry_interrupted(res);
        }
        self.begun |= res > 0;
        self.vectors.advance(count(res));
        // A short send is a success (trap 35). A send of 0 bytes would be retried without end.
        if res > 0 && self.vectors.has_rest() {
            return Resume::Again;
        }
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> Self::Output {
        let errno = self.missing(res);
        ended(&self.permit, errno, self.begun, self.vectors.into_bufs())
    }
}

impl<B: IoBuf> SocketOp for SendVectored<B> {
    const INTEREST: Interest = Interest::Write;
    const GOES_ON: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        self.permit.socket()
    }

    fn attempt(&mut self) -> i32 {
        let message = self.aim();
        // SAFETY: Lent and Open: the op owns all of it, and is not touched during the call.
        unsafe { net::send_message(self.permit.socket().raw(), message) }
    }

    fn left_behind(&self) {
        self.permit.cut(ECANCELED);
    }

    fn abandoned(self, res: i32) {
        let errno = self.missing(res);
        if errno != 0 {
            self.permit.fail(errno);
        }
    }
}
