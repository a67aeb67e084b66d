//! Memory for operations: one page-aligned map, cut into slots of one block each.
//!
//! One per submitting thread. Aligned to pages because direct I/O asks for it; filled with random bytes
//! because the pages must exist before the clock starts and because what is written must not compress.
//!
//! # Safety
//!
//! Slots never overlap, the map never moves, and it is unmapped only when this is dropped. A slot may be
//! looked at only while no kernel operation on that slot is in flight; each user's header says how it knows.

#![allow(unsafe_code)]

use std::io;

use memmap2::{MmapMut, MmapRaw};

use crate::Failure;

/// Slots begin at multiples of this: the strictest memory alignment that direct I/O asks for in practice.
const SLOT_ALIGN_BYTES: usize = 4096;

/// A block of memory per operation in flight.
pub struct Memory {
    map: MmapRaw,
    block_bytes: usize,
    stride_bytes: usize,
    slots: usize,
}

impl Memory {
    /// Room for `slots` blocks of `block_bytes` each.
    pub fn new(slots: usize, block_bytes: usize) -> Result<Memory, Failure> {
        let stride_bytes = block_bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        let bytes = stride_bytes.saturating_mul(slots.max(1));
        let mut map = MmapMut::map_anon(bytes).map_err(|error: io::Error| {
            Failure::failed(
                &format!("mapping {bytes} bytes of memory for {slots} operations"),
                &error,
            )
        })?;
        fastrand::Rng::with_seed(bytes as u64).fill(&mut map);
        Ok(Memory {
            map: MmapRaw::from(map),
            block_bytes,
            stride_bytes,
            slots,
        })
    }

    /// Where slot `slot` begins.
    pub(crate) fn slot_ptr(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.map.as_mut_ptr().wrapping_add(slot * self.stride_bytes)
    }

    /// The bytes of slot `slot`.
    ///
    /// # Safety
    ///
    /// No kernel operation on this slot is in flight, and no other reference to it exists.
    #[allow(clippy::mut_from_ref)] // Slots are disjoint; one borrow of the whole would forbid using two.
    pub(crate) unsafe fn slot(&self, slot: usize) -> &mut [u8] {
        // SAFETY: `slot_ptr` checks the index, so the range lies inside the map, which lives as long as
        // `self`; its pages are initialised. The caller promises that nobody else has this slot.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot), self.block_bytes) }
    }

    /// The bytes of the only slot, for a thread or task that has one operation at a time.
    pub fn only(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` excludes every other reference, and those who use this method give the
        // memory to the kernel only for the length of a blocking call that holds this very borrow.
        unsafe { self.slot(0) }
    }
}
