//! Receive buffers of a ring, which the echo server by hand and the load generator use.
//!
//! # Safety
//!
//! The kernel writes to a buffer from [`Provided::give_back`] until a completion names it. The owner keeps the value
//! until the ring has ended, or leaks it.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use memmap2::{MmapMut, MmapRaw};

/// The only buffer group of a ring.
pub(crate) const GROUP: u16 = 0;

/// The receive buffers, and the ring that provides them to the kernel.
pub(crate) struct Provided {
    entries: MmapRaw,
    memory: MmapRaw,
    buffer_bytes: usize,
    count: u16,
    tail: u16,
}

impl Provided {
    /// Creates `count` buffers, a power of two, and registers them with a ring.
    pub(crate) fn new(
        submitter: &Submitter<'_>,
        count: u16,
        buffer_bytes: usize,
    ) -> io::Result<Provided> {
        let entries = MmapMut::map_anon(usize::from(count) * size_of::<BufRingEntry>())?;
        let memory = MmapMut::map_anon(usize::from(count) * buffer_bytes)?;
        let mut provided = Provided {
            entries: MmapRaw::from(entries),
            memory: MmapRaw::from(memory),
            buffer_bytes,
            count,
            tail: 0,
        };
        let address = provided.entries.as_mut_ptr() as u64;
        // SAFETY: the map begins at a page and has room for `count` entries. It is unmapped after the ring has ended
        // (see the head).
        unsafe {
            submitter.register_buf_ring_with_flags(address, count, GROUP, 0)?;
        }
        for buffer in 0..count {
            provided.give_back(buffer);
        }
        Ok(provided)
    }

    /// Returns the number of buffers.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the address of a buffer.
    pub(crate) fn start(&self, buffer: u16) -> *mut u8 {
        (self.memory.as_mut_ptr()).wrapping_add(usize::from(buffer) * self.buffer_bytes)
    }

    /// Returns the first `len` bytes of a buffer that a completion named.
    #[inline]
    pub(crate) fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(
            buffer < self.count && len <= self.buffer_bytes,
            "a completion names a buffer of the group"
        );
        // SAFETY: the range is within the map (asserted). The completion passed the buffer to this thread, and the
        // kernel gets it back only in `give_back`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start(buffer), len) }
    }

    /// Provides a buffer to the kernel.
    #[inline]
    pub(crate) fn give_back(&mut self, buffer: u16) {
        let base = self.entries.as_mut_ptr().cast::<BufRingEntry>();
        let index = usize::from(self.tail & (self.count - 1));
        let start = self.start(buffer);
        // SAFETY: the slot is within the map and past the tail, which the kernel does not read. The map is zeroed,
        // which is valid for an entry. The tail is a field of the first entry.
        unsafe {
            let entry = &mut *base.add(index);
            entry.set_addr(start as u64);
            entry.set_len(self.buffer_bytes as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(base).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}
