//! # Safety
//!
//! `accept`: ACCEPT, or `accept4` when a connection waits. Owns the listener (Open). The result is a new descriptor,
//! which is closed if the operation was abandoned (trap 4). A multishot SQE accepts connections until it ends.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::{Op, OpInfo, Returns, SocketOp, table};
use crate::fd::Socket;
use crate::sys::errno::check;
use crate::sys::net::{self, SOCK_CLOEXEC};
use crate::sys::sqe::{ACCEPT_MULTISHOT, Sqe, opcode};

/// Accepts one connection.
pub(crate) struct Accept {
    listener: Rc<Socket>,
}

impl Accept {
    pub(crate) fn new(listener: Rc<Socket>) -> Accept {
        Accept { listener }
    }
}

// SAFETY: Lent, Open: points to nothing; `listener` owns the descriptor.
unsafe impl Op for Accept {
    const INFO: OpInfo = table::ACCEPT;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            op_flags: SOCK_CLOEXEC,
            ..Sqe::new(opcode::ACCEPT, self.listener.raw())
        }
    }

    fn complete(self, res: i32) -> io::Result<OwnedFd> {
        check(res).map(|_| net::accepted(res))
    }
}

impl Returns for Accept {
    type Output = io::Result<OwnedFd>;
}

impl SocketOp for Accept {
    fn socket(&self) -> &Rc<Socket> {
        &self.listener
    }

    fn attempt(&mut self) -> i32 {
        net::accept(self.listener.raw(), true)
    }
}

/// Returns a multishot accept, which continues until it is cancelled or fails. Since Linux 5.19. It requests no
/// addresses, because all connections would write to the same memory (trap 32).
pub(crate) fn multishot(listener: &Socket) -> Sqe {
    Sqe {
        ioprio: ACCEPT_MULTISHOT,
        op_flags: SOCK_CLOEXEC,
        ..Sqe::new(opcode::ACCEPT, listener.raw())
    }
}
