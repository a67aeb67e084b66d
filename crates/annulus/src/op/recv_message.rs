//! # Safety
//!
//! `recv_message`: RECVMSG, or `recvmsg` when there is a message: a datagram and its sender. Owns the socket (Open),
//! the buffer and the boxed message header (Lent, Still). Treats at most `res` bytes of the buffer as initialised
//! (Written). With a buffer group and multishot, the kernel takes a buffer for each datagram, and writes header,
//! address and datagram into it.
#![allow(unsafe_code)]

use std::rc::Rc;

use super::{Op, OpInfo, Returns, SocketOp, TRANSFER_MAX, table};
use crate::buf::{Chunk, IoBufMut, ReadTarget};
use crate::error::{BufError, BufResult};
use crate::fd::Socket;
use crate::sys::errno::{ECANCELED, check};
use crate::sys::message::{HEADER_BYTES, MessageHeader, parse, shape};
use crate::sys::net::{self, Address, Message};
use crate::sys::sqe::{BUFFER_SELECT, RECV_MULTISHOT, Sqe, opcode};

/// Describes a received datagram.
#[derive(Debug)]
pub(crate) struct MessageInfo {
    pub(crate) bytes: usize,
    /// `None` if the sender's socket has no address.
    pub(crate) sender: Option<Address>,
    /// The buffer was too small; the rest of the datagram is lost.
    pub(crate) is_truncated: bool,
}

/// A datagram in a buffer of the core.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) chunk: Chunk,
    pub(crate) sender: Option<Address>,
    pub(crate) is_truncated: bool,
}

/// The right to receive on a socket. One receive at a time has it, until the kernel has completed the receive.
/// Otherwise a new receive could overtake one that is being cancelled, and get a later datagram (trap 34).
pub(crate) trait ReceiveQueue: 'static {
    /// Keeps a datagram that arrived after the future of its receive had been dropped.
    fn keep(&self, received: ReceivedMessage);
    /// Keeps an error, which the kernel reports once.
    fn keep_error(&self, errno: i32);
}

/// Receives one datagram.
pub(crate) struct RecvMessage<B, M> {
    socket: Rc<Socket>,
    buf: B,
    header: Box<MessageHeader>,
    permit: M,
}

impl<B: IoBufMut, M> RecvMessage<B, M> {
    pub(crate) fn new(socket: Rc<Socket>, buf: B, permit: M) -> RecvMessage<B, M> {
        RecvMessage {
            socket,
            buf,
            header: MessageHeader::from_anybody(),
            permit,
        }
    }

    fn message(&mut self) -> *mut Message {
        let bytes = self.buf.fill_bytes().min(TRANSFER_MAX);
        self.header.aim(self.buf.fill_ptr(), bytes)
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, the header is boxed, and `socket` owns
// the descriptor.
unsafe impl<B: IoBufMut, M: ReceiveQueue> Op for RecvMessage<B, M> {
    const INFO: OpInfo = table::RECV_MESSAGE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.message() as u64,
            len: 1,
            ..Sqe::new(opcode::RECVMSG, self.socket.raw())
        }
    }

    fn complete(mut self, res: i32) -> Self::Output {
        match check(res) {
            Ok(bytes) => {
                // SAFETY: Written: the kernel has written `res` bytes there.
                unsafe { self.buf.set_filled(bytes) };
                let info = MessageInfo {
                    bytes,
                    sender: self.header.sender(),
                    is_truncated: self.header.is_truncated(),
                };
                Ok((info, self.buf))
            }
            Err(error) => Err(BufError::new(error, Some(self.buf))),
        }
    }
}

impl<B, M: ReceiveQueue> Returns for RecvMessage<B, M> {
    type Output = BufResult<MessageInfo, B>;
}

impl<B: IoBufMut, M: ReceiveQueue> SocketOp for RecvMessage<B, M> {
    fn socket(&self) -> &Rc<Socket> {
        &self.socket
    }

    fn attempt(&mut self) -> i32 {
        let message = self.message();
        // SAFETY: Lent and Open: the op owns all of it, and is not touched during the call.
        unsafe { net::receive_message(self.socket.raw(), message) }
    }

    fn on_drop(mut self, res: i32) {
        match check(res) {
            Ok(bytes) => {
                // SAFETY: Written, Lent: the kernel has written `res` bytes there, and has released the buffer.
                let bytes = unsafe { std::slice::from_raw_parts(self.buf.fill_ptr(), bytes) };
                self.permit.keep(ReceivedMessage {
                    chunk: Chunk::copy_of(bytes),
                    sender: self.header.sender(),
                    is_truncated: self.header.is_truncated(),
                });
            }
            Err(_) if res == -ECANCELED => {}
            Err(_) => self.permit.keep_error(-res),
        }
    }
}

/// The message header of a multishot receive. It stays at a fixed address while the kernel may read it.
pub(crate) struct Shape {
    message: Box<Message>,
    name_bytes: usize,
}

impl Shape {
    /// Makes a header for addresses of up to `name_bytes` bytes.
    pub(crate) fn new(name_bytes: usize) -> Shape {
        Shape {
            message: Box::new(shape(name_bytes)),
            name_bytes,
        }
    }

    /// Returns the bytes of a buffer that precede the datagram.
    pub(crate) fn overhead(&self) -> usize {
        HEADER_BYTES + self.name_bytes
    }

    /// Returns a multishot receive into buffers of `group`. It continues until it is cancelled. Since Linux 6.0.
    pub(crate) fn multishot(&self, socket: &Socket, group: u16) -> Sqe {
        Sqe {
            flags: BUFFER_SELECT,
            ioprio: RECV_MULTISHOT,
            addr: (&raw const *self.message) as u64,
            len: 1,
            buf_index: group,
            ..Sqe::new(opcode::RECVMSG, socket.raw())
        }
    }

    /// Returns the datagram in a buffer that the kernel has filled for this receive; `None` if its header is invalid.
    pub(crate) fn open(&self, mut chunk: Chunk) -> Option<ReceivedMessage> {
        let parsed = parse(&chunk, self.name_bytes)?;
        chunk.advance(parsed.from);
        Some(ReceivedMessage {
            chunk,
            sender: parsed.sender,
            is_truncated: parsed.is_truncated,
        })
    }
}
