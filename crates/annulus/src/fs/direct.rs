//! Direct I/O: the alignment that a file opened with `O_DIRECT` needs, and the handling of unaligned transfers.

use std::io;
use std::sync::Arc;

use crate::buf::BouncePool;
use crate::op::ReadMemory;
use crate::sys::call;
use crate::sys::mount::Identity;

/// The alignment that a file needs, in bytes; powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct {
    pub(crate) memory_bytes: u32,
    pub(crate) offset_bytes: u32,
}

/// The alignment if `STATX_DIOALIGN` (Linux 6.1) is missing. Every device accepts it.
const ALIGN_BYTES_SAFE: u32 = 4096;

impl Direct {
    /// Returns the alignment of an open file with these flags; `None` if it is not direct.
    pub(crate) fn of(flags: u32, file: &Identity) -> Option<Direct> {
        let safe = (ALIGN_BYTES_SAFE, ALIGN_BYTES_SAFE);
        let (memory_bytes, offset_bytes) = match flags & call::O_DIRECT {
            0 => return None,
            _ => file.direct_alignment().unwrap_or(safe),
        };
        Some(Direct {
            memory_bytes,
            offset_bytes,
        })
    }

    fn is_aligned(self, address: usize, bytes: usize, offset: u64) -> bool {
        address.is_multiple_of(self.memory_bytes as usize)
            && bytes.is_multiple_of(self.offset_bytes as usize)
            && offset.is_multiple_of(u64::from(self.offset_bytes))
    }

    /// Returns the target of a read: the buffer if it is aligned, otherwise a bounce buffer for the rounded range.
    /// Fails with `OutOfMemory` if there is no memory for that.
    pub(crate) fn target(
        self,
        address: usize,
        bytes: usize,
        offset: u64,
        pool: &Arc<BouncePool>,
    ) -> io::Result<ReadMemory> {
        let align_bytes = self.offset_bytes;
        if self.is_aligned(address, bytes, offset) {
            return Ok(ReadMemory::Buf { align_bytes });
        }
        // Less than `align_bytes`, which has 32 bits.
        let skip = u32::try_from(offset % u64::from(align_bytes)).unwrap_or(0);
        let rounded = bytes
            .checked_add(skip as usize)
            .and_then(|bytes| bytes.checked_next_multiple_of(align_bytes as usize))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(ReadMemory::Bounce {
            bounce: pool.take(rounded)?,
            skip,
            align_bytes,
        })
    }

    /// Rejects an unaligned transfer, with the numbers.
    pub(crate) fn check(
        self,
        address: usize,
        bytes: usize,
        offset: u64,
        verb: &str,
    ) -> io::Result<()> {
        if self.is_aligned(address, bytes, offset) {
            return Ok(());
        }
        let Direct {
            memory_bytes,
            offset_bytes,
        } = self;
        let off_by = address % memory_bytes as usize;
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "unaligned direct {verb} of {bytes} bytes at offset {offset}, with memory {off_by} bytes past a multiple \
                 of {memory_bytes}: this file needs lengths and offsets in multiples of {offset_bytes} and memory \
                 aligned to {memory_bytes}; use AlignedBuf::with_len(bytes, {memory_bytes})"
            ),
        ))
    }
}
