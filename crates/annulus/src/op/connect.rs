//! # Safety
//!
//! `connect`: CONNECT, or `connect` and its result once the socket is writable. Owns the socket (Open) and the boxed
//! address (Lent, Still).
#![allow(unsafe_code)]

use std::io;
use std::rc::Rc;

use super::{Interest, Op, OpInfo, Resume, Returns, SocketOp, table};
use crate::fd::Socket;
use crate::sys::errno::{EAGAIN, EALREADY, EINPROGRESS, check};
use crate::sys::net::{self, Address};
use crate::sys::sqe::{Sqe, opcode};

/// Connects a socket.
pub(crate) struct Connect {
    socket: Rc<Socket>,
    address: Box<Address>,
    /// The system call has started the connection.
    begun: bool,
}

impl Connect {
    pub(crate) fn new(socket: Rc<Socket>, address: Address) -> Connect {
        Connect {
            socket,
            address: Box::new(address),
            begun: false,
        }
    }
}

// SAFETY: Lent, Still, Open: the address is boxed, `socket` owns the descriptor.
unsafe impl Op for Connect {
    const INFO: OpInfo = table::CONNECT;

    fn sqe(&mut self) -> Sqe {
        let (base, bytes) = net::raw(&self.address);
        Sqe {
            addr: base as u64,
            off: u64::from(bytes),
            ..Sqe::new(opcode::CONNECT, self.socket.raw())
        }
    }

    /// EAGAIN is a result here: the backlog of a Unix listener is full.
    fn resume(&mut self, res: i32) -> Resume {
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }
}

impl Returns for Connect {
    type Output = io::Result<()>;
}

impl SocketOp for Connect {
    const INTEREST: Interest = Interest::Write;

    fn socket(&self) -> &Rc<Socket> {
        &self.socket
    }

    fn attempt(&mut self) -> i32 {
        if self.begun {
            match net::take_error(self.socket.raw()) {
                0 if net::peer_address(self.socket.raw()).is_err() => return -EAGAIN,
                outcome => return outcome,
            }
        }
        match net::connect(self.socket.raw(), &self.address) {
            res if res == -EINPROGRESS || res == -EALREADY => {
                self.begun = true;
                -EAGAIN
            }
            res => res,
        }
    }

    /// EAGAIN before the connection has started is a result: the backlog of a Unix listener is full, and no event
    /// reports free space in it.
    fn is_unready(&self, res: i32) -> bool {
        self.begun && res == -EAGAIN
    }
}
