//! # Safety
//!
//! `recv`: RECV, or `recv` when there is data. Owns the socket (Open) and the buffer (Lent, Still). Treats at most
//! `res` bytes of the buffer as initialised (Written). With a buffer group and multishot, the kernel takes a buffer
//! for each piece of data.
#![allow(unsafe_code)]

use std::rc::Rc;

use super::{Op, OpInfo, Returns, SocketOp, TRANSFER_MAX, table, transfer_len};
use crate::buf::{IoBufMut, ReadTarget};
use crate::error::{BufError, BufResult};
use crate::fd::Socket;
use crate::sys::errno::{ECANCELED, check, count};
use crate::sys::net;
use crate::sys::sqe::{BUFFER_SELECT, POLL_FIRST, RECV_MULTISHOT, Sqe, opcode};

/// Keeps the bytes of a receive whose future was dropped, so that none are lost.
pub(crate) trait UnreadBuffer {
    fn keep(&self, bytes: &[u8]);
    /// Keeps an error, which the kernel reports once.
    fn keep_error(&self, errno: i32);
    /// Called when the receive is complete and its data has been kept.
    fn pass_on(&self);
}

/// The right to receive. One receive at a time has it, until the kernel has completed the receive. Otherwise a new
/// receive could overtake one that is being cancelled, and get later data (trap 34).
pub(crate) struct ReceivePermit(Rc<dyn UnreadBuffer>);

impl ReceivePermit {
    pub(crate) fn new(unread: Rc<dyn UnreadBuffer>) -> ReceivePermit {
        ReceivePermit(unread)
    }
}

impl Drop for ReceivePermit {
    #[inline]
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

/// Receives the available bytes, at most the buffer's length; 0 is the end of the stream.
pub(crate) struct Recv<B> {
    socket: Rc<Socket>,
    buf: B,
    permit: ReceivePermit,
}

impl<B: IoBufMut> Recv<B> {
    pub(crate) fn new(socket: Rc<Socket>, buf: B, permit: ReceivePermit) -> Recv<B> {
        Recv {
            socket,
            buf,
            permit,
        }
    }

    fn bytes(&self) -> usize {
        self.buf.fill_bytes().min(TRANSFER_MAX)
    }
}

// SAFETY: Lent, Still, Open: the buffer owns its memory at a fixed address, and `socket` owns the descriptor.
unsafe impl<B: IoBufMut> Op for Recv<B> {
    const INFO: OpInfo = table::RECV;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            addr: self.buf.fill_ptr() as u64,
            len: transfer_len(self.bytes()),
            ..Sqe::new(opcode::RECV, self.socket.raw())
        }
    }

    fn complete(mut self, res: i32) -> BufResult<usize, B> {
        match check(res) {
            Ok(bytes) => {
                // SAFETY: Written: the kernel has written `res` bytes there.
                unsafe { self.buf.set_filled(bytes) };
                Ok((bytes, self.buf))
            }
            Err(error) => Err(BufError::new(error, Some(self.buf))),
        }
    }
}

impl<B> Returns for Recv<B> {
    type Output = BufResult<usize, B>;
}

impl<B: IoBufMut> SocketOp for Recv<B> {
    fn socket(&self) -> &Rc<Socket> {
        &self.socket
    }

    fn attempt(&mut self) -> i32 {
        let bytes = self.bytes();
        // SAFETY: Lent and Open: the op owns both, and is not touched during the call.
        unsafe { net::recv(self.socket.raw(), self.buf.fill_ptr(), bytes) }
    }

    fn on_drop(mut self, res: i32) {
        match res {
            0 => {}
            res if res > 0 => {
                let base = self.buf.fill_ptr();
                // SAFETY: Written, Lent: the kernel has written `res` bytes there, and has released the buffer.
                let bytes = unsafe { std::slice::from_raw_parts(base, count(res)) };
                self.permit.0.keep(bytes);
            }
            res if res == -ECANCELED => {}
            res => self.permit.0.keep_error(-res),
        }
    }
}

/// The duration of a receive into a buffer group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveKind {
    /// One completion. Since Linux 5.19 with a ring of buffers.
    Single,
    /// One completion. Data that is available is received when the ring is polled, not during the submission.
    ///
    /// There is no such multishot receive: it would get one event for data and an end that are both available, return
    /// the data, and then wait indefinitely (trap 62).
    SinglePollFirst,
    /// Completions until it is cancelled. Since Linux 6.0.
    Multishot,
}

/// Returns a receive into buffers of `group`.
pub(crate) fn into_group(socket: &Socket, group: u16, kind: ReceiveKind) -> Sqe {
    let kind = match kind {
        ReceiveKind::Single => 0,
        ReceiveKind::SinglePollFirst => POLL_FIRST,
        ReceiveKind::Multishot => RECV_MULTISHOT,
    };
    Sqe {
        flags: BUFFER_SELECT,
        ioprio: kind,
        buf_index: group,
        ..Sqe::new(opcode::RECV, socket.raw())
    }
}
