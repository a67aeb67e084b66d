//! # Safety
//!
//! NOP: a round trip through the driver and the kernel. Names no memory.
#![allow(unsafe_code)]

use super::{OpInfo, UnitOp, table};
use crate::sys::sqe::{Sqe, opcode};

/// Does nothing; its time is the engine's overhead.
#[derive(Debug)]
pub struct Nop;

// SAFETY: Lent: points to nothing.
unsafe impl UnitOp for Nop {
    const INFO: OpInfo = table::NOP;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::NOP, -1)
    }

    fn syscall(&mut self) -> i32 {
        0
    }
}
