//! # Safety
//!
//! A pause without a kernel request; the driver's list of deadlines completes it.
#![allow(unsafe_code)]

use super::{OpInfo, UnitOp, table};
use crate::sys::sqe::{Sqe, opcode};

/// Waits for its deadline.
#[derive(Debug)]
pub struct Sleep;

// SAFETY: Lent: points to nothing.
unsafe impl UnitOp for Sleep {
    const INFO: OpInfo = table::SLEEP;

    fn sqe(&mut self) -> Sqe {
        // Only a sleep without a deadline gets here, and `Engine::sleep` makes none.
        Sqe::new(opcode::NOP, -1)
    }

    fn syscall(&mut self) -> i32 {
        0
    }
}
