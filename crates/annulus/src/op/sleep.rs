//! # Safety
//!
//! A pause without a kernel request; the driver's list of deadlines completes it.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use super::{FileOp, Op, OpInfo, Resume, Returns, retry_interrupted, table};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::check;
use crate::sys::sqe::{Sqe, opcode};

/// Waits for its deadline.
#[derive(Debug)]
pub struct Sleep {
    time: Duration,
    /// The deadline is that of a shorter timeout.
    is_cut: bool,
}

impl Sleep {
    /// Creates the operation, whose timeout must be set to `time` as well.
    pub(crate) fn new(time: Duration) -> Sleep {
        let is_cut = false;
        Sleep { time, is_cut }
    }
}

// SAFETY: Lent: points to nothing.
unsafe impl Op for Sleep {
    const INFO: OpInfo = table::SLEEP;

    fn sqe(&mut self) -> Sqe {
        // Only a sleep without a deadline gets here, and `Engine::sleep` makes none.
        Sqe::new(opcode::NOP, -1)
    }

    fn resume(&mut self, res: i32) -> Resume {
        retry_interrupted(res)
    }

    fn complete(self, res: i32) -> io::Result<()> {
        check(res)?;
        match self.is_cut {
            true => Err(EngineError::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl Returns for Sleep {
    type Output = io::Result<()>;
}

impl FileOp for Sleep {
    fn limit(&mut self, timeout: Duration) -> Duration {
        self.is_cut = timeout < self.time;
        timeout.min(self.time)
    }

    fn syscall(&mut self) -> i32 {
        0
    }
}
