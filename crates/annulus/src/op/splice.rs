//! # Safety
//!
//! `splice`: SPLICE, or `splice` when both ends are ready. Owns both descriptors (Open); points to nothing. If it
//! writes to a socket, it holds the permit of the stream.
#![allow(unsafe_code)]

use std::io;
use std::rc::Rc;

use super::{Interest, Op, OpInfo, Returns, SocketOp, TRANSFER_MAX, table, transfer_len};
use crate::fd::{SendPermit, Socket};
use crate::sys::errno::{EAGAIN, ECANCELED, check, count};
use crate::sys::message::{self, SPLICE_FLAGS};
use crate::sys::sqe::{POLL_READ, POLL_WRITE, Sqe, opcode};

/// Moves bytes between a pipe and another descriptor, within the kernel.
pub(crate) struct Splice {
    from: Rc<Socket>,
    into: Rc<Socket>,
    bytes: usize,
    permit: Option<SendPermit>,
    /// Other code opened one of the two descriptors, which may be in blocking mode.
    may_wait: bool,
    /// The end that is waited for.
    waits_for: Interest,
}

/// Maximum number of calls that return EAGAIN although both ends are ready, because one of them became ready in
/// between.
const TRIES_MAX: u32 = 16;

impl Splice {
    pub(crate) fn new(
        from: Rc<Socket>,
        into: Rc<Socket>,
        bytes: usize,
        permit: Option<SendPermit>,
        may_wait: bool,
    ) -> Splice {
        Splice {
            from,
            into,
            bytes: bytes.min(TRANSFER_MAX),
            permit,
            may_wait,
            waits_for: Interest::Read,
        }
    }
}

// SAFETY: Lent, Open: points to nothing, and the two own their descriptors.
unsafe impl Op for Splice {
    const INFO: OpInfo = table::SPLICE;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            // No offsets: both ends use their current positions.
            off: u64::MAX,
            addr: u64::MAX,
            len: transfer_len(self.bytes),
            op_flags: SPLICE_FLAGS,
            file_index: self.from.raw(),
            ..Sqe::new(opcode::SPLICE, self.into.raw())
        }
    }

    fn complete(self, res: i32) -> io::Result<usize> {
        check(res)
    }
}

impl Returns for Splice {
    type Output = io::Result<usize>;
}

impl SocketOp for Splice {
    fn socket(&self) -> &Rc<Socket> {
        match self.waits_for {
            Interest::Read => &self.from,
            Interest::Write => &self.into,
        }
    }

    fn interest(&self) -> Interest {
        self.waits_for
    }

    fn attempt(&mut self) -> i32 {
        for _ in 0..TRIES_MAX {
            let (from, into) = (self.from.raw(), self.into.raw());
            let res = match self.may_wait {
                true => message::splice_without_waiting(from, into, self.bytes),
                false => message::splice(from, into, self.bytes),
            };
            if res != -EAGAIN {
                return res;
            }
            if message::poll(self.from.raw(), POLL_READ) == 0 {
                self.waits_for = Interest::Read;
                return res;
            }
            if message::poll(self.into.raw(), POLL_WRITE) == 0 {
                self.waits_for = Interest::Write;
                return res;
            }
        }
        self.waits_for = Interest::Write;
        -EAGAIN
    }

    fn on_leak(&self) {
        self.permit.iter().for_each(|permit| permit.cut(ECANCELED));
    }

    /// Cuts the connection after a partial transfer if the core has ended, because nothing continues the transfer.
    fn on_drop(self, res: i32) {
        let Some(permit) = self.permit else { return };
        let is_part = res > 0 && count(res) < self.bytes;
        if is_part && permit.socket().is_over() {
            permit.cut(ECANCELED);
        }
    }
}
