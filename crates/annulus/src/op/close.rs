//! # Safety
//!
//! `close`: CLOSE, or `close`. It is the only owner of the descriptor's number (Open). An operation that is dropped
//! before it ran still closes the number: `complete` or `drop` does so. It is never retried: after EINTR the number is
//! free.
//!
//! On a mount that is known to be local, the caller's thread closes a file that was only read. A blocking thread closes
//! a file that has no name any more, because the close then frees its blocks. Small files that had a name when they
//! were last queried are not queried again.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::{FileOp, Op, OpInfo, Resume, Returns, SyncAttempt, table};
use crate::fd::{CloseFd, GIVEN_UP};
use crate::sys::call;
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{ECANCELED, check};
use crate::sys::mount::{self, Closing};
use crate::sys::sqe::{Sqe, opcode};

/// Closes a descriptor, and reports the file system's error, if any.
pub struct Close {
    raw: i32,
    closer: Option<Arc<dyn CloseFd>>,
    place: ClosePlace,
}

/// The place where the descriptor is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosePlace {
    ByDriver,
    /// The caller's thread, because the file is small and was only read.
    Here,
    /// The file is on a local mount; its number of names decides.
    Local {
        only_reads: bool,
    },
    ByThread,
}

impl Close {
    pub(crate) fn new(raw: i32, closer: Option<Arc<dyn CloseFd>>) -> Close {
        let place = ClosePlace::ByDriver;
        Close { raw, closer, place }
    }

    /// Closes a file on a mount that is known to be local. `brief`: a query has shown that the close is brief.
    pub(crate) fn local(mut self, only_reads: bool, brief: bool) -> Close {
        self.place = match only_reads && brief {
            true => ClosePlace::Here,
            false => ClosePlace::Local { only_reads },
        };
        self
    }

    /// Closes the file on a blocking thread.
    pub(crate) fn by_thread(mut self) -> Close {
        self.place = ClosePlace::ByThread;
        self
    }
}

/// Returns whether a request with this result was made, so that it may have had an effect.
pub(super) fn has_run(res: i32) -> bool {
    -res != ECANCELED && EngineError::of_code(-res).is_none()
}

impl Close {
    pub(super) fn raw(&self) -> i32 {
        self.raw
    }

    /// Gives up the number, which the caller then owns.
    pub(super) fn give_up(mut self) -> i32 {
        std::mem::replace(&mut self.raw, GIVEN_UP)
    }

    /// Closes the number, which is still open.
    fn close_here(&self) -> i32 {
        match &self.closer {
            Some(closer) => closer.close(self.raw),
            // SAFETY: Open: this op is the only owner of the number, which is still open.
            None => unsafe { call::close(self.raw) },
        }
    }
}

impl Drop for Close {
    fn drop(&mut self) {
        if self.raw != GIVEN_UP {
            self.close_here();
        }
    }
}

// SAFETY: Open: the number is the op's own; no memory is lent.
unsafe impl Op for Close {
    const INFO: OpInfo = table::CLOSE;

    fn sqe(&mut self) -> Sqe {
        Sqe::new(opcode::CLOSE, self.raw)
    }

    fn resume(&mut self, res: i32) -> Resume {
        Resume::Done(res)
    }

    fn complete(mut self, res: i32) -> io::Result<()> {
        let res = match has_run(res) {
            true => res,
            false => self.close_here(),
        };
        self.raw = GIVEN_UP;
        check(res).map(drop)
    }
}

impl Returns for Close {
    type Output = io::Result<()>;
}

impl FileOp for Close {
    fn opcode(&self) -> u8 {
        match self.place {
            ClosePlace::ByThread => opcode::BY_THREAD,
            ClosePlace::ByDriver | ClosePlace::Here | ClosePlace::Local { .. } => Self::INFO.opcode,
        }
    }

    fn try_sync(&mut self) -> SyncAttempt {
        let only_reads = match self.place {
            ClosePlace::Here => return SyncAttempt::Done(self.syscall()),
            ClosePlace::Local { only_reads } => only_reads,
            ClosePlace::ByDriver | ClosePlace::ByThread => return SyncAttempt::NotTried,
        };
        self.place = match mount::closing(self.raw) {
            Closing::Brief if only_reads => return SyncAttempt::Done(self.syscall()),
            Closing::Frees => ClosePlace::ByThread,
            Closing::Brief | Closing::Usual => ClosePlace::ByDriver,
        };
        SyncAttempt::NotTried
    }

    fn has_sync_path(&self) -> bool {
        matches!(self.place, ClosePlace::Here | ClosePlace::Local { .. })
    }

    fn syscall(&mut self) -> i32 {
        // SAFETY: Open: this op is the only owner of the number.
        unsafe { call::close(self.raw) }
    }
}
