//! # Safety
//!
//! `send_message`: SENDMSG, or `sendmsg` when there is space. Sends one datagram, to an address or to the connected
//! peer. Owns the socket (Open), the buffer and the boxed message header (Lent, Still). A datagram is sent whole or
//! not at all.
#![allow(unsafe_code)]

use std::io;
use std::rc::Rc;

use super::{Interest, Op, OpInfo, Resume, Returns, SocketOp, retry_interrupted, table};
use crate::buf::IoBuf;
use crate::error::{BufError, WholeResult};
use crate::fd::Socket;
use crate::sys::errno::{EAGAIN, check};
use crate::sys::message::MessageHeader;
use crate::sys::net::{self, Address, MSG_DONTWAIT, Message};
use crate::sys::sqe::{Sqe, opcode};

/// Sends one datagram.
pub(crate) struct SendMessage<B> {
    socket: Rc<Socket>,
    buf: B,
    header: Box<MessageHeader>,
    /// A full queue of the receiver is a result (EAGAIN).
    tries_once: bool,
}

impl<B: IoBuf> SendMessage<B> {
    pub(crate) fn new(
        socket: Rc<Socket>,
        buf: B,
        to: Option<&Address>,
        tries_once: bool,
    ) -> SendMessage<B> {
        SendMessage {
            socket,
            buf,
            header: MessageHeader::to(to),
            tries_once,
        }
    }

    fn message(&mut self) -> *mut Message {
        let base = self.buf.stable_ptr().cast_mut();
        self.header.aim(base, self.buf.init_bytes())
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, the header is boxed, and `socket` owns
// the descriptor. A send only reads through the pointers.
unsafe impl<B: IoBuf> Op for SendMessage<B> {
    const INFO: OpInfo = table::SEND_MESSAGE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.message() as u64,
            len: 1,
            op_flags: if self.tries_once { MSG_DONTWAIT } else { 0 },
            ..Sqe::new(opcode::SENDMSG, self.socket.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        match self.tries_once && res == -EAGAIN {
            true => Resume::Done(res),
            false => retry_interrupted(res),
        }
    }

    fn complete(self, res: i32) -> WholeResult<B> {
        let error = match check(res) {
            Ok(bytes) if bytes == self.buf.init_bytes() => return Ok(self.buf),
            Ok(bytes) => {
                let want = self.buf.init_bytes();
                let what = format!("only {bytes} of {want} bytes of a datagram were sent");
                io::Error::new(io::ErrorKind::WriteZero, what)
            }
            Err(error) => error,
        };
        Err(BufError::new(error, Some(self.buf)))
    }
}

impl<B> Returns for SendMessage<B> {
    type Output = WholeResult<B>;
}

impl<B: IoBuf> SocketOp for SendMessage<B> {
    const INTEREST: Interest = Interest::Write;
    const CONTINUES_AFTER_DROP: bool = true;

    fn socket(&self) -> &Rc<Socket> {
        &self.socket
    }

    fn attempt(&mut self) -> i32 {
        let message = self.message();
        // SAFETY: Lent and Open: the op owns all of it, and is not touched during the call.
        unsafe { net::send_message(self.socket.raw(), message) }
    }

    fn is_unready(&self, res: i32) -> bool {
        res == -EAGAIN && !self.tries_once
    }
}
