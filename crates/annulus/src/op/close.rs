//! # Safety
//!
//! `close`: CLOSE, or `close`. It is the only owner of the descriptor's number (Open). An operation that is dropped
//! before it ran still closes the number. It is never retried: after EINTR the number is free.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::{Op, OpInfo, Resume, table};
use crate::fd::CloseFd;
use crate::sys::call;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{ECANCELED, check};
use crate::sys::sqe::{Sqe, opcode};

/// Closes a descriptor, and reports the file system's error, if any.
pub struct Close {
    raw: i32,
    closer: Option<Arc<dyn CloseFd>>,
}

impl Close {
    pub(crate) fn new(raw: i32, closer: Option<Arc<dyn CloseFd>>) -> Close {
        Close { raw, closer }
    }
}

// SAFETY: Open: the number is the op's own; no memory is lent.
unsafe impl Op for Close {
    const INFO: OpInfo = table::CLOSE;
    type Output = io::Result<()>;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::CLOSE, self.raw)
    }

    fn syscall(&mut self) -> i32 {
        // SAFETY: Open: this op is the only owner of the number.
        unsafe { call::close(self.raw) }
    }

    fn resume(&mut self, res: i32) -> Resume {
        Resume::Done(res)
    }

    fn complete(self, res: i32) -> io::Result<()> {
        if -res == ECANCELED || EngineError::of_code(-res).is_some() {
            // The operation never ran.
            return check(match &self.closer {
                Some(closer) => closer.close(self.raw),
                // SAFETY: Open: this op is the only owner of the number, which is still open.
                None => unsafe { call::close(self.raw) },
            })
            .map(drop);
        }
        check(res).map(drop)
    }

    fn on_timeout(error: io::Error) -> io::Result<()> {
        Err(error)
    }
}
