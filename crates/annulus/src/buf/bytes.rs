//! `Bytes` and `BytesMut` as buffers.
//!
//! # Safety
//!
//! A handle of the crate `bytes` points to heap memory, a static, or an owner that it keeps alive. Moving the handle
//! does not move the bytes (Still). The bytes of a `Bytes` do not change. The memory of a `BytesMut` up to its capacity
//! belongs to that handle alone: other handles on the allocation have other parts of it (Lent).
#![allow(unsafe_code)]

use ::bytes::{Bytes, BytesMut};

use super::{IoBuf, IoBufMut};

// SAFETY: Still. The memory stays while a handle lives, and is never written to.
unsafe impl IoBuf for Bytes {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. Only resizing the handle moves the memory, and the engine does not resize it.
unsafe impl IoBuf for BytesMut {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

/// A read appends: it keeps the contents and fills spare capacity, as `read_buf` of Tokio does. To overwrite contents,
/// pass a [`subslice`](IoBuf::subslice).
// SAFETY: Still. Only resizing the handle moves the memory, and the engine does not resize it.
// Lent: `capacity` bytes belong to this handle.
unsafe impl IoBufMut for BytesMut {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        let len = self.len();
        // The pointer of `as_mut_ptr` is valid only for the `len` initialised bytes. The pointer of an empty
        // `BytesMut`'s spare capacity is valid for all of it.
        // SAFETY: Written: nothing is claimed to be initialised.
        unsafe { self.set_len(0) };
        let base = self.spare_capacity_mut().as_mut_ptr();
        // SAFETY: Written: as before.
        unsafe { self.set_len(len) };
        base.cast()
    }

    fn lent_bytes(&self) -> usize {
        self.capacity()
    }

    fn kept_bytes(&self) -> usize {
        self.len()
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        if bytes > self.len() {
            // SAFETY: Written, by the caller's promise; `lent_bytes` is the capacity.
            unsafe { self.set_len(bytes) }
        }
    }
}
