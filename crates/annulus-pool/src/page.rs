//! # Safety
//!
//! Guards of pages. The bytes of a frame are written by the kernel only while the frame has no page, and a frame loses
//! its page, and its memory, only after the heavy barrier with its address in no slot (Guarded).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::sync::AtomicUsize;
use crate::{forked, waiting};

/// The address of the first frame.
pub(crate) struct Base(*const u8);

// SAFETY: Guarded: an address; only guards read the bytes.
unsafe impl Send for Base {}
// SAFETY: Guarded: as above.
unsafe impl Sync for Base {}

impl Base {
    pub(crate) fn new(address: *const u8) -> Base {
        Base(address)
    }

    /// Returns the address that is `distance` bytes after it.
    #[inline]
    pub(crate) fn address(&self, distance: usize) -> usize {
        self.0.addr().wrapping_add(distance)
    }

    /// Returns a pointer to an address in a frame.
    #[inline(always)]
    pub(crate) fn pointer(&self, address: usize) -> *const u8 {
        self.0.with_addr(address)
    }
}

/// Asks the processor for the first bytes at an address.
#[inline(always)]
pub(crate) fn prefetch(bytes: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: Guarded: a hint, which reads nothing and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}

/// A page in memory, or the part of it that the file has. While the guard exists, its frame keeps the page, even if it
/// is evicted, the file is closed, or the pool has ended.
///
/// A guard may be sent to another thread and held across an await. A guard that is forgotten
/// ([`std::mem::forget`]) takes a frame from the pool permanently.
pub struct Page {
    slot: &'static AtomicUsize,
    bytes: NonNull<u8>,
    len: u32,
    /// The process that has the memory.
    process: u32,
}

// SAFETY: Guarded: the guard gives shared access to bytes that no one writes; a slot may be emptied by any thread.
unsafe impl Send for Page {}
// SAFETY: Guarded: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes a guard of the frame at `bytes`, which `slot` protects already.
    #[inline(always)]
    pub(crate) fn new(
        bytes: *const u8,
        len: u32,
        slot: &'static AtomicUsize,
        process: u32,
    ) -> Page {
        Page {
            slot,
            // SAFETY: Guarded: a frame, which is not at address 0.
            bytes: unsafe { NonNull::new_unchecked(bytes.cast_mut()) },
            len,
            process,
        }
    }

    /// Calls `look` with the bytes of a guard that was taken in this call, so in this process.
    #[inline(always)]
    pub(crate) fn look<R>(self, look: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: Guarded: as in `bytes`.
        look(unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len as usize) })
    }

    /// Returns the bytes, or an error in a child of a fork, where the memory is not mapped.
    ///
    /// # Errors
    ///
    /// Fails in a forked child of the process that took the guard.
    #[inline]
    pub fn bytes(&self) -> io::Result<&[u8]> {
        if forked::process() != self.process {
            return Err(forked::elsewhere());
        }
        // SAFETY: Guarded: the slot protects the frame, whose bytes are initialised, until this guard is dropped.
        Ok(unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len as usize) })
    }
}

impl Deref for Page {
    type Target = [u8];

    /// Returns the bytes.
    ///
    /// # Panics
    ///
    /// Panics in a forked child of the process that took the guard; [`bytes`](Page::bytes) returns an error instead.
    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes().expect("the bytes of a page")
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Page {
    #[inline(always)]
    fn drop(&mut self) {
        waiting::release(self.slot, self.bytes.addr().get());
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} bytes)", self.len)
    }
}
