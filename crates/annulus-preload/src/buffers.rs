//! # Safety
//!
//! Memory that the kernel reads and writes for a set: the receive buffers, and the arena that sends read from. Each is
//! one mapping for the life of the set's ring (Owned, Still). A buffer belongs to the kernel or to its readers, never
//! to both (Once). It returns to the kernel after the kernel's last completion for it, once the last reader has
//! released it.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use annulus::preload::ServerRing;

use crate::arch;
use crate::errno;
use crate::mapping;

/// A range of zeroed memory; a forked child has a copy.
pub(crate) struct Range {
    base: *mut u8,
    bytes: usize,
}

impl Range {
    pub(crate) fn new(bytes: usize) -> io::Result<Range> {
        let base = mapping::map_zeroed(bytes).ok_or_else(io::Error::last_os_error)?;
        Ok(Range { base, bytes })
    }

    /// Returns unused pages to the system, which zeroes them at their next use. Locked memory stays, and so does a part
    /// of a page: the kernel would discard the whole page.
    fn discard(&self, from: usize, bytes: usize) {
        debug_assert!(from + bytes <= self.bytes);
        if !bytes.is_multiple_of(arch::page_bytes()) {
            return;
        }
        // SAFETY: Owned, Once: within the mapping, and by the caller's promise neither the kernel's nor a reader's.
        errno::keep(|| unsafe {
            libc::madvise(self.base.add(from).cast(), bytes, libc::MADV_DONTNEED)
        });
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: Owned: mapped in `new`, and unmapped here only.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// The count and the size of buffers that are filled incrementally, and of buffers that are filled once.
const INCREMENTAL: (u16, u32) = (32, 64 << 10);
const WHOLE: (u16, u32) = (256, 8 << 10);
/// The number of slots of the buffer ring.
pub(crate) const RING_SLOTS: u16 = 256;
/// Rounds without a shortage after which the kernel gets fewer buffers again: memory that is reused often stays in the
/// processor's cache.
const CALM_ROUNDS: u32 = 4096;

/// The receive buffers of a ring.
pub(crate) struct Pool {
    memory: Range,
    bytes: u32,
    parts: Box<[Part]>,
    /// Free buffers that are currently not provided to the kernel.
    spare: Vec<u16>,
    /// The number of buffers that have readers.
    busy: usize,
    /// The number of buffers that the kernel and the readers should have.
    target_count: usize,
    target_min: usize,
    calm_rounds: u32,
}

#[derive(Clone, Copy, Default)]
struct Part {
    filled: u32,
    readers: u32,
    finished: bool,
}

impl Pool {
    pub(crate) fn new(ring: &mut ServerRing) -> io::Result<Pool> {
        let (count, bytes) = if ring.is_incremental() {
            INCREMENTAL
        } else {
            WHOLE
        };
        let target_min = usize::from(count) / 4;
        let mut pool = Pool {
            memory: Range::new(usize::from(count) * bytes as usize)?,
            bytes,
            parts: vec![Part::default(); usize::from(count)].into_boxed_slice(),
            spare: (0..count).rev().collect(),
            busy: 0,
            target_count: target_min,
            target_min,
            calm_rounds: 0,
        };
        pool.provide_spare(ring);
        Ok(pool)
    }

    fn base(&self, id: u16) -> *mut u8 {
        debug_assert!(usize::from(id) < self.parts.len());
        // SAFETY: Owned: there are as many buffers as parts.
        unsafe { self.memory.base.add(usize::from(id) * self.bytes as usize) }
    }

    fn provide_spare(&mut self, ring: &mut ServerRing) {
        while self.parts.len() - self.spare.len() < self.target_count {
            let Some(id) = self.spare.pop() else { return };
            // SAFETY: Lent, Still, Once: the buffer was free, and the memory stays as long as the ring.
            unsafe { ring.provide(self.base(id), self.bytes, id) };
        }
    }

    /// Adds a reader to buffer `id`, into which the kernel has written `bytes`. `None`: the buffer cannot hold them.
    #[inline]
    pub(crate) fn received(&mut self, id: u16, bytes: u32, keeps: bool) -> Option<*mut u8> {
        let part = self.parts.get_mut(usize::from(id))?;
        if part.finished || bytes > self.bytes - part.filled {
            return None;
        }
        let from = part.filled;
        part.filled += bytes;
        self.busy += usize::from(part.readers == 0);
        part.readers += 1;
        part.finished = !keeps;
        // SAFETY: Owned: within the buffer, as was just compared.
        Some(unsafe { self.base(id).add(from as usize) })
    }

    /// Removes a reader of buffer `id`. Returns whether the buffer was provided to the kernel again.
    #[inline]
    pub(crate) fn release(&mut self, id: u16, ring: &mut ServerRing) -> bool {
        let part = &mut self.parts[usize::from(id)];
        part.readers -= 1;
        self.busy -= usize::from(part.readers == 0);
        if part.readers > 0 || !part.finished {
            return false;
        }
        *part = Part::default();
        if self.parts.len() - self.spare.len() > self.target_count {
            // Buffers that only a burst needed are freed after it.
            let bytes = self.bytes as usize;
            self.memory.discard(usize::from(id) * bytes, bytes);
            self.spare.push(id);
            return false;
        }
        // SAFETY: Lent, Still, Once: the kernel is done with the buffer, and the last reader has released it.
        unsafe { ring.provide(self.base(id), self.bytes, id) };
        true
    }

    /// Returns the number of buffers, and the number of buffers without unread data.
    pub(crate) fn occupancy(&self) -> (u64, u64) {
        let all = self.parts.len();
        (all as u64, (all - self.busy) as u64)
    }

    /// Handles a receive that found no free buffer. Returns whether more buffers were provided.
    pub(crate) fn run_short(&mut self, ring: &mut ServerRing) -> bool {
        self.calm_rounds = 0;
        if self.spare.is_empty() {
            return false;
        }
        self.target_count = (self.target_count * 2).min(self.parts.len());
        self.provide_spare(ring);
        true
    }

    pub(crate) fn round(&mut self) {
        self.calm_rounds += 1;
        if self.calm_rounds >= CALM_ROUNDS {
            self.calm_rounds = 0;
            self.target_count = (self.target_count / 2).max(self.target_min);
        }
    }
}

/// The memory of bytes that are written but not yet submitted, filled from the start.
pub(crate) struct Arena {
    memory: Range,
    tip: u32,
}

pub(crate) const ARENA_BYTES: u32 = 512 << 10;

impl Arena {
    pub(crate) fn new() -> io::Result<Arena> {
        Ok(Arena {
            memory: Range::new(ARENA_BYTES as usize)?,
            tip: 0,
        })
    }

    /// Empties the arena, once the kernel has taken all its bytes.
    pub(crate) fn reset(&mut self) {
        self.tip = 0;
    }

    /// Extends a reservation of `reserved` bytes at `from`, of which `used` are filled, by `more` bytes. Returns the
    /// offset and size of the reservation, which may have moved. `None`: the arena is full.
    pub(crate) fn extend(
        &mut self,
        from: u32,
        used: u32,
        reserved: u32,
        more: u32,
    ) -> Option<(u32, u32)> {
        let needed = used + more;
        if needed <= reserved {
            return Some((from, reserved));
        }
        if reserved > 0 && from + reserved == self.tip && from + needed <= ARENA_BYTES {
            self.tip = from + needed;
            return Some((from, needed));
        }
        // A reservation that had to move will probably grow again.
        let target = if used > 0 { needed * 2 } else { needed };
        let reserved = target.min(ARENA_BYTES - self.tip);
        if reserved < needed {
            return None;
        }
        let to = self.tip;
        self.tip += reserved;
        if used > 0 {
            // SAFETY: Owned: both ranges are in the mapping, and the new one is behind all others.
            unsafe {
                ptr::copy_nonoverlapping(self.at(from, used), self.at(to, used), used as usize)
            };
        }
        Some((to, reserved))
    }

    /// Returns bytes of a reservation, for which the kernel may have a send.
    #[inline]
    pub(crate) fn bytes(&self, from: u32, bytes: u32) -> &[u8] {
        // SAFETY: Owned: within the mapping, as `at` checks.
        unsafe { std::slice::from_raw_parts(self.at(from, bytes), bytes as usize) }
    }

    /// Returns bytes of a reservation that are not queued yet.
    #[inline]
    pub(crate) fn space(&mut self, from: u32, bytes: u32) -> &mut [u8] {
        // SAFETY: Owned: within the mapping, as `at` checks. Once: the kernel has no send of them.
        unsafe { std::slice::from_raw_parts_mut(self.at(from, bytes), bytes as usize) }
    }

    /// Returns the address of a range, which is in the mapping.
    fn at(&self, from: u32, bytes: u32) -> *mut u8 {
        assert!(u64::from(from) + u64::from(bytes) <= u64::from(ARENA_BYTES));
        self.memory.base.wrapping_add(from as usize)
    }
}
