//! Memory for operations: one page-aligned map, cut into slots of one block each.
//!
//! Each submitting thread has one. The alignment is for direct I/O. The memory is filled with random bytes, so that all
//! pages exist before the clock starts and written data does not compress.
//!
//! # Safety
//!
//! Slots never overlap, the map never moves, and it is unmapped only when the value is dropped. The bytes of a slot are
//! accessed only while no kernel operation on that slot is in flight; the head of each module that uses it states why
//! that holds.

#![allow(unsafe_code)]

use std::io;

use memmap2::{MmapMut, MmapRaw};

use crate::Failure;

/// The alignment of slots: the strictest that direct I/O requires in practice.
const SLOT_ALIGN_BYTES: usize = 4096;

/// A block of memory per operation in flight.
pub struct Memory {
    map: MmapRaw,
    block_bytes: usize,
    stride_bytes: usize,
    slots: usize,
}

impl Memory {
    /// Maps `slots` blocks of `block_bytes` each.
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

    /// Returns the address of a slot.
    pub(crate) fn slot_ptr(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.map.as_mut_ptr().wrapping_add(slot * self.stride_bytes)
    }

    /// Returns the bytes of a slot.
    ///
    /// # Safety
    ///
    /// No kernel operation on this slot is in flight, and no other reference to it exists.
    #[allow(clippy::mut_from_ref)] // Slots are disjoint; one borrow of the whole would forbid using two.
    pub(crate) unsafe fn slot(&self, slot: usize) -> &mut [u8] {
        // SAFETY: `slot_ptr` checks the index, so the range lies inside the map, which lives as long as `self`. Its
        // pages are initialised. The caller guarantees exclusive access to the slot.
        unsafe { std::slice::from_raw_parts_mut(self.slot_ptr(slot), self.block_bytes) }
    }

    /// Returns the bytes of the only slot, for a thread or task with one operation at a time.
    pub fn only(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` excludes every other reference. Callers lend this memory to the kernel only during a
        // blocking call that holds this borrow.
        unsafe { self.slot(0) }
    }
}
