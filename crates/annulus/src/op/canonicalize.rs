//! # Safety
//!
//! `canonicalize`: `realpath(3)` on a blocking thread, because io_uring has no opcode for it. The path and the buffer
//! are those of a `ReadLink` (Lent, Still).
#![allow(unsafe_code)]

use std::io;
use std::path::PathBuf;

use super::at::At;
use super::read_link::ReadLink;
use super::{FileOp, Op, OpInfo, Returns, table};
use crate::sys::call;
use crate::sys::sqe::{Sqe, opcode};

/// Resolves a path to an absolute one without symbolic links.
#[derive(Debug)]
pub struct Canonicalize(ReadLink);

impl Canonicalize {
    pub(crate) fn new(path: At) -> Canonicalize {
        Canonicalize(ReadLink::new(path))
    }
}

// SAFETY: Lent, Still: the `ReadLink` has the same contract.
unsafe impl Op for Canonicalize {
    const INFO: OpInfo = table::CANONICALIZE;

    fn sqe(&mut self) -> Sqe {
        let opcode = opcode::REALPATH;
        Sqe {
            opcode,
            ..self.0.sqe()
        }
    }

    fn complete(self, res: i32) -> io::Result<PathBuf> {
        self.0.complete(res)
    }
}

impl Returns for Canonicalize {
    type Output = io::Result<PathBuf>;
}

impl FileOp for Canonicalize {
    fn syscall(&mut self) -> i32 {
        let (path, into) = self.0.parts();
        call::realpath(path, into)
    }
}
