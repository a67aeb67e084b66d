//! # Safety
//!
//! `send_vectored_all`: SENDMSG, or `sendmsg` when there is space. Owns the boxed header that points to the vectors
//! (Lent, Still).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::send::{SendKind, StreamSend};
use super::shape::Vectors;
use super::{OpInfo, table};
use crate::buf::IoBuf;
use crate::fd::{SendPermit, Socket};
use crate::sys::net::{self, MSG_WAITALL, Message};
use crate::sys::sqe::{Sqe, opcode};

/// Sends all of several buffers, in order.
pub(crate) type SendVectored<B> = StreamSend<Vectored<B>>;

/// SENDMSG, or `sendmsg`.
pub(crate) struct Vectored<B> {
    message: Box<Message>,
    bufs: PhantomData<B>,
}

impl<B: IoBuf> SendVectored<B> {
    pub(crate) fn new(bufs: Vec<B>, permit: SendPermit) -> SendVectored<B> {
        StreamSend {
            shape: Vectors::from(bufs),
            permit,
            kind: Vectored {
                message: Box::new(net::no_message()),
                bufs: PhantomData,
            },
        }
    }
}

impl<B: IoBuf> Vectored<B> {
    fn aim(&mut self, shape: &mut Vectors<B>) -> *const Message {
        *self.message = net::message(std::ptr::null_mut(), 0, shape.vectors());
        &raw const *self.message
    }
}

// SAFETY: Lent, Still: the header is boxed, and points to the vectors of the shape.
unsafe impl<B: IoBuf> SendKind for Vectored<B> {
    const INFO: OpInfo = table::SEND_VECTORED;
    type Shape = Vectors<B>;

    fn sqe(&mut self, socket: &Socket, shape: &mut Vectors<B>) -> Sqe {
        Sqe {
            addr: self.aim(shape) as u64,
            len: 1,
            op_flags: MSG_WAITALL,
            ..Sqe::new(opcode::SENDMSG, socket.raw())
        }
    }

    fn attempt(&mut self, socket: &Socket, shape: &mut Vectors<B>) -> i32 {
        let message = self.aim(shape);
        // SAFETY: Lent and Open: the op owns all of it, and is not touched during the call.
        unsafe { net::send_message(socket.raw(), message) }
    }
}
