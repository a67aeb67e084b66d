//! # Safety
//!
//! A caller's blocking code, on a blocking thread, because io_uring has no opcode for it. Points to nothing (Lent);
//! the op owns the closure and its value.
#![allow(unsafe_code)]

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Failure, FileOp, Op, OpInfo, Resume, Returns, table};
use crate::sys::engine_error::error_of;
use crate::sys::sqe::{Sqe, opcode};

/// Runs a closure.
#[derive(Debug)]
pub struct RunBlocking<W, T> {
    work: Option<W>,
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
}

impl<W, T> RunBlocking<W, T> {
    pub(crate) fn new(work: W) -> RunBlocking<W, T> {
        RunBlocking {
            work: Some(work),
            outcome: None,
        }
    }
}

/// The reason why the closure returned no value.
#[derive(Debug)]
pub enum RunBlockingError {
    /// The closure has panicked.
    Panicked(Box<dyn Any + Send>),
    /// The closure was never run.
    NotRun(io::Error),
}

// SAFETY: Lent: points to nothing.
unsafe impl<W, T> Op for RunBlocking<W, T>
where
    W: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    const INFO: OpInfo = table::SPAWN_BLOCKING;

    fn sqe(&mut self) -> Sqe {
        // No ring supports the opcode.
        Sqe::new(opcode::NOP, -1)
    }

    fn resume(&mut self, res: i32) -> Resume {
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> Self::Output {
        match self.outcome {
            Some(outcome) => outcome.map_err(RunBlockingError::Panicked),
            None => Err(RunBlockingError::NotRun(error_of(-res))),
        }
    }
}

impl<W, T> Returns for RunBlocking<W, T> {
    type Output = Result<T, RunBlockingError>;
}

impl<W, T> FileOp for RunBlocking<W, T>
where
    W: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    fn syscall(&mut self) -> i32 {
        let work = self.work.take();
        self.outcome = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
        0
    }
}

impl<T> Failure for Result<T, RunBlockingError> {
    fn failure(error: io::Error) -> Result<T, RunBlockingError> {
        Err(RunBlockingError::NotRun(error))
    }
}
