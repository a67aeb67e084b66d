//! A range of a file for operations on whole ranges, which are made piece by piece. Shared by `advise` and
//! `sync_range`.

use super::{Resume, retry_interrupted};
use crate::narrow::low_half;

/// The largest range of one SQE, bytes. Its length field has 32 bits, so longer ranges are split.
const PIECE_BYTES: u64 = 1 << 30;

/// The rest of a range.
#[derive(Debug)]
pub(super) struct SplitRange {
    pub(super) offset: u64,
    bytes: u64,
}

impl SplitRange {
    pub(super) fn new(offset: u64, bytes: u64) -> SplitRange {
        SplitRange { offset, bytes }
    }

    /// Returns the length of the piece at `offset`, bytes.
    pub(super) fn piece(&self) -> u32 {
        low_half(self.bytes.min(PIECE_BYTES))
    }

    /// Takes the next step after a piece with the result `res`.
    pub(super) fn resume(&mut self, res: i32) -> Resume {
        let piece = u64::from(self.piece());
        if res == 0 && self.bytes > piece {
            self.offset += piece;
            self.bytes -= piece;
            return Resume::Again;
        }
        retry_interrupted(res)
    }
}
