//! Whether operations continue each other on a file. The block layer merges such requests, but only those of one enter.

use crate::sys::sqe::{Sqe, opcode};

/// The number of operations in a row that must each continue the one before.
const RUN_MIN: u32 = 2;

/// The last operation that was pushed.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    fd: i32,
    end: u64,
    run: u32,
}

impl Sequence {
    /// Notes an operation that is about to be pushed.
    #[inline]
    pub(super) fn note(&mut self, sqe: &Sqe) {
        let continues = sqe.fd == self.fd && sqe.off == self.end;
        let moves_bytes = matches!(
            sqe.opcode,
            opcode::READ | opcode::READ_FIXED | opcode::WRITE | opcode::WRITE_FIXED
        );
        self.run = if continues && moves_bytes {
            self.run + 1
        } else {
            0
        };
        self.fd = sqe.fd;
        self.end = sqe.off.wrapping_add(u64::from(sqe.len));
    }

    /// Returns whether the next operation is expected to continue the last one.
    #[inline]
    pub(super) fn goes_on(&self) -> bool {
        self.run >= RUN_MIN
    }
}
