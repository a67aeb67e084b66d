//! # Safety
//!
//! `poll`: POLL_ADD, or `ppoll` without waiting. Owns the descriptor (Open); points to nothing.
#![allow(unsafe_code)]

use std::io;
use std::rc::Rc;

use super::{Interest, Op, OpInfo, Returns, SocketOp, table};
use crate::fd::Socket;
use crate::sys::errno::{EAGAIN, check};
use crate::sys::message;
use crate::sys::sqe::{POLL_READ, POLL_WRITE, Sqe, opcode, poll_mask};

/// Waits until a descriptor is ready.
pub(crate) struct Poll {
    descriptor: Rc<Socket>,
    interest: Interest,
}

impl Poll {
    pub(crate) fn new(descriptor: Rc<Socket>, interest: Interest) -> Poll {
        Poll {
            descriptor,
            interest,
        }
    }

    fn events(&self) -> u32 {
        match self.interest {
            Interest::Read => POLL_READ,
            Interest::Write => POLL_WRITE,
        }
    }
}

// SAFETY: Lent, Open: points to nothing; `descriptor` owns the number.
unsafe impl Op for Poll {
    const INFO: OpInfo = table::POLL;

    fn sqe(&mut self) -> Sqe {
        Sqe {
            op_flags: poll_mask(self.events()),
            ..Sqe::new(opcode::POLL_ADD, self.descriptor.raw())
        }
    }

    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }
}

impl Returns for Poll {
    type Output = io::Result<()>;
}

impl SocketOp for Poll {
    fn socket(&self) -> &Rc<Socket> {
        &self.descriptor
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    fn attempt(&mut self) -> i32 {
        match message::poll(self.descriptor.raw(), self.events()) {
            0 => -EAGAIN,
            res => res,
        }
    }
}
