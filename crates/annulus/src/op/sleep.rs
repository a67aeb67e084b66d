//! # Safety
//!
//! A pause without a kernel request; the driver's list of deadlines completes it.
#![allow(unsafe_code)]

use std::io;

use super::{Op, OpInfo, table};
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Waits for its deadline.
#[derive(Debug)]
pub struct Sleep;

// SAFETY: Lent: points to nothing.
unsafe impl Op for Sleep {
    const INFO: OpInfo = table::SLEEP;
    type Output = io::Result<()>;

    fn sqe(&mut self) -> Sqe {
        // Only a sleep without a deadline gets here, and `Engine::sleep` makes none.
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
