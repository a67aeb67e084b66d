//! # Safety
//!
//! The in-flight table: all slots of a driver. Slots are created in chunks that are never moved,
//! and not freed before the table is (Still), so a pointer to a slot is valid as long as the table.
//! Free slots form a list that any thread takes from and gives back to. Its head has a tag that
//! counts the changes, so that a slot that was taken and given back in between is noticed (no ABA).
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::PoisonError;

use super::contain::contain;
use super::slot::Slot;
use crate::narrow::low_half;
use crate::sync::{AtomicPtr, AtomicU64, Mutation, Mutex, Ordering, broken};

/// The number of slots of the first chunk; each further one doubles the table. Small under the
/// model checker and under Miri.
const FIRST_CHUNK: u32 = if cfg!(annulus_loom) {
    2
} else if cfg!(miri) {
    8
} else {
    256
};
/// The maximum number of chunks: 256 << 12 is 1,048,576 slots, the limit of operations per driver,
/// including waiting ones.
const CHUNKS: usize = 13;

/// "No slot" in the free list.
const NONE: u32 = u32::MAX;

pub(crate) struct SlotTable {
    chunks: [AtomicPtr<Slot>; CHUNKS],
    /// Low half: index of the first free slot. High half: the tag.
    free: AtomicU64,
    /// Held while a chunk is added.
    growing: Mutex<usize>,
}

impl SlotTable {
    pub(crate) fn new() -> SlotTable {
        SlotTable {
            chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
            free: AtomicU64::new(u64::from(NONE)),
            growing: Mutex::new(0),
        }
    }

    /// Returns the slot at `index`, if it exists.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Slot> {
        let (chunk, offset, _) = locate(index)?;
        let base = NonNull::new(self.chunks.get(chunk)?.load(Ordering::Acquire))?;
        // SAFETY: Still. `offset` is within the chunk, which lives as long as the table.
        Some(unsafe { base.add(offset).as_ref() })
    }

    /// Returns the slot of the operation that `token` names; `None` if it has left.
    #[inline]
    pub(crate) fn named(&self, token: u64) -> Option<&Slot> {
        self.at(low_half(token))
            .filter(|slot| slot.token() == token)
    }

    /// Takes a free slot; `None` when the table has reached its limit.
    pub(crate) fn take(&self) -> Option<&Slot> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = low_half(head);
            if index == NONE {
                self.grow()?;
                head = self.free.load(Ordering::Acquire);
                continue;
            }
            let slot = self.at(index)?;
            let next = slot.free_next.load(Ordering::Relaxed);
            match self.swap(head, next) {
                Ok(()) => return Some(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Gives a slot back. Its token ends: CQEs that still carry it are stale.
    ///
    /// # Safety
    ///
    /// Once. The caller holds the slot, its payload is gone, and no other code refers to it.
    pub(crate) unsafe fn free(&self, slot: &Slot) {
        slot.next_generation();
        let left = slot.lifecycle.reset(None);
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            slot.free_next.store(low_half(head), Ordering::Relaxed);
            match self.swap(head, slot.index()) {
                Ok(()) => break,
                Err(now) => head = now,
            }
        }
        // Last: foreign code. A panic would leave what the caller still has to do.
        if left.is_some() {
            contain(|| drop(left));
        }
    }

    /// Returns the number of slots that are not free. Only exact if no thread takes or frees one
    /// meanwhile.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn in_use(&self) -> usize {
        let made = *self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = (0..made).map(|chunk| extent(chunk).1 as usize).sum();
        let mut free = 0;
        let mut index = low_half(self.free.load(Ordering::Acquire));
        while let Some(slot) = self.at(index) {
            free += 1;
            index = slot.free_next.load(Ordering::Relaxed);
        }
        all - free
    }

    fn swap(&self, head: u64, index: u32) -> Result<(), u64> {
        let changes = u64::from(!broken(Mutation::FreeListUntagged));
        let tag = (head >> 32).wrapping_add(changes) << 32;
        self.free
            .compare_exchange_weak(
                head,
                tag | u64::from(index),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .map(drop)
    }

    #[cold]
    fn grow(&self) -> Option<()> {
        let mut made = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        if low_half(self.free.load(Ordering::Acquire)) != NONE {
            return Some(());
        }
        let chunk = self.chunks.get(*made)?;
        let (first, count) = extent(*made);
        let slots: Box<[Slot]> = (first..first + count).map(Slot::new).collect();
        chunk.store(Box::into_raw(slots).cast::<Slot>(), Ordering::Release);
        *made += 1;
        for index in (first..first + count).rev() {
            // SAFETY: Once. New slots, which no other code has seen.
            unsafe { self.free(self.at(index)?) };
        }
        Some(())
    }
}

/// Returns the first index and the number of slots of a chunk.
fn extent(chunk: usize) -> (u32, u32) {
    match chunk {
        0 => (0, FIRST_CHUNK),
        n => (FIRST_CHUNK << (n - 1), FIRST_CHUNK << (n - 1)),
    }
}

/// Returns the chunk of an index, the offset in it, and the chunk's size.
#[inline]
fn locate(index: u32) -> Option<(usize, usize, u32)> {
    let chunk = match index / FIRST_CHUNK {
        0 => 0,
        n => (n.ilog2() + 1) as usize,
    };
    let (first, count) = extent(chunk.min(CHUNKS));
    Some((chunk, index.checked_sub(first)? as usize, count))
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        // Drained: the owner of the table makes sure that no slot is in use (or has leaked it).
        for (chunk, base) in self.chunks.iter().enumerate() {
            let base = base.load(Ordering::Acquire);
            if !base.is_null() {
                let (_, count) = extent(chunk);
                let slots = ptr::slice_from_raw_parts_mut(base, count as usize);
                // SAFETY: Owned: made by `Box::into_raw` in `grow`, of this length.
                drop(unsafe { Box::from_raw(slots) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_index_once() {
        let mut expected = 0;
        for chunk in 0..CHUNKS {
            let (first, count) = extent(chunk);
            assert_eq!(first, expected);
            for index in [first, first + count / 2, first + count - 1] {
                assert_eq!(
                    locate(index),
                    Some((chunk, (index - first) as usize, count))
                );
            }
            expected = first + count;
        }
        assert_eq!(expected, FIRST_CHUNK << (CHUNKS - 1));
        assert!(SlotTable::new().at(expected).is_none());
    }

    #[test]
    fn a_slot_freed_and_taken_again_has_a_new_token() {
        let table = SlotTable::new();
        let slot = table.take().unwrap();
        let (at, token) = (ptr::from_ref(slot), slot.token());
        // SAFETY: Once. Just taken, never filled.
        unsafe { table.free(slot) };
        let again = table.take().unwrap();
        assert_eq!(ptr::from_ref(again), at);
        assert_ne!(again.token(), token);
        assert_eq!(low_half(again.token()), low_half(token));
    }

    #[test]
    fn a_full_table_returns_no_slot() {
        let table = SlotTable::new();
        let taken: Vec<_> = std::iter::from_fn(|| table.take()).take(1 << 11).collect();
        assert_eq!(taken.len(), 1 << 11);
        let mut tokens: Vec<_> = taken.iter().map(|slot| slot.index()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 1 << 11, "no slot is given out twice");
    }
}
