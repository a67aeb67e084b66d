//! # Safety
//!
//! `close`: CLOSE, or `close`. It is the only owner of the descriptor's number (Open). An operation that is dropped
//! before it ran still closes the number. It is never retried: after EINTR the number is free.
//!
//! On a mount that is known to be local, the caller's thread closes a file that was only read. A blocking thread closes
//! a file that has no name any more, because the close then frees its blocks.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::{Op, OpInfo, Resume, SyncAttempt, table};
use crate::fd::CloseFd;
use crate::sys::call;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{ECANCELED, check};
use crate::sys::mount::{self, Closing};
use crate::sys::sqe::{Sqe, opcode};

/// Closes a descriptor, and reports the file system's error, if any.
pub struct Close {
    raw: i32,
    closer: Option<Arc<dyn CloseFd>>,
    way: Way,
}

/// The way to close the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ByDriver,
    /// The file is on a local mount; its number of names decides.
    Local {
        only_reads: bool,
    },
    ByThread,
}

impl Close {
    pub(crate) fn new(raw: i32, closer: Option<Arc<dyn CloseFd>>) -> Close {
        let way = Way::ByDriver;
        Close { raw, closer, way }
    }

    /// Closes a file on a mount that is known to be local.
    pub(crate) fn local(mut self, only_reads: bool) -> Close {
        self.way = Way::Local { only_reads };
        self
    }
}

// SAFETY: Open: the number is the op's own; no memory is lent.
unsafe impl Op for Close {
    const INFO: OpInfo = table::CLOSE;
    type Output = io::Result<()>;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::CLOSE, self.raw)
    }

    fn opcode(&self) -> u8 {
        match self.way {
            Way::ByThread => opcode::BY_THREAD,
            Way::ByDriver | Way::Local { .. } => Self::INFO.opcode,
        }
    }

    fn try_sync(&mut self) -> SyncAttempt {
        let Way::Local { only_reads } = self.way else {
            return SyncAttempt::NotTried;
        };
        self.way = match mount::closing(self.raw) {
            Closing::Brief if only_reads => return SyncAttempt::Done(self.syscall()),
            Closing::Frees => Way::ByThread,
            Closing::Brief | Closing::Usual => Way::ByDriver,
        };
        SyncAttempt::NotTried
    }

    fn has_sync_path(&self) -> bool {
        matches!(self.way, Way::Local { .. })
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
