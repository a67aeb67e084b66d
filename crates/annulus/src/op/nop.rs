//! # Safety
//!
//! NOP: a round trip through the driver and the kernel. Names no memory.
#![allow(unsafe_code)]

use std::io;

use super::{Op, OpInfo, table};
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Does nothing; its time is the engine's overhead.
#[derive(Debug)]
pub struct Nop;

// SAFETY: Lent: points to nothing.
unsafe impl Op for Nop {
    const INFO: OpInfo = table::NOP;
    type Output = io::Result<()>;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::NOP, -1)
    }

    fn syscall(&mut self) -> i32 {
        0
    }

    fn complete(self, res: i32) -> io::Result<()> {
        check(res).map(drop)
    }

    fn on_timeout(error: io::Error) -> io::Result<()> {
        Err(error)
    }
}
