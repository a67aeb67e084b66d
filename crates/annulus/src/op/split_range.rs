//! A range of a file for operations on whole ranges, which are made piece by piece. Shared by `advise` and
//! `sync_range`.

use super::{Resume, retry_interrupted};
use crate::narrow::low_half;

/// The largest range of one SQE, bytes. Its length field has 32 bits, so longer ranges are split.
const PIECE_BYTES: u64 = 1 << 30;
/// The size from which on a range is made as one up to the end of the file, bytes: it would have too many pieces.
/// Programs pass the largest length for "everything", and few files are longer than this.
const ENDLESS_BYTES: u64 = 16 << 40;

/// The rest of a range.
#[derive(Debug)]
pub(super) struct SplitRange {
    pub(super) offset: u64,
    bytes: u64,
}

impl SplitRange {
    pub(super) fn new(offset: u64, bytes: u64) -> SplitRange {
        let bytes = if bytes < ENDLESS_BYTES { bytes } else { 0 };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_ranges_are_one_piece_up_to_the_end_and_no_other_has_many() {
        for bytes in [ENDLESS_BYTES, i64::MAX as u64, u64::MAX] {
            let mut range = SplitRange::new(5, bytes);
            assert_eq!((range.piece(), range.resume(0)), (0, Resume::Done(0)));
        }
        let mut range = SplitRange::new(i64::MAX as u64, ENDLESS_BYTES - 1);
        let pieces = 1
            + (0..)
                .take_while(|_| range.resume(0) == Resume::Again)
                .count();
        assert_eq!(pieces as u64, ENDLESS_BYTES / PIECE_BYTES);
    }
}
