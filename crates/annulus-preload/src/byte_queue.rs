//! # Safety
//!
//! A queue of buffered bytes: a vector that is read from its start. Zeroed memory is an empty queue, and memory is
//! allocated only when bytes are appended (Owned: the box is freed here only).
#![allow(unsafe_code)]

use std::ptr;

/// A queue; the null pointer is an empty one, so that an idle connection spends 8 bytes on it.
#[repr(transparent)]
pub(crate) struct ByteQueue(*mut Shared);

struct Shared {
    bytes: Vec<u8>,
    /// Bytes that have been consumed.
    consumed: usize,
    /// Descriptors that share these bytes.
    holders: u32,
}

impl ByteQueue {
    pub(crate) const fn new() -> ByteQueue {
        ByteQueue(ptr::null_mut())
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: Owned: null, or a box made in `allocated`.
        match unsafe { self.0.as_ref() } {
            Some(shared) => &shared.bytes[shared.consumed..],
            None => &[],
        }
    }

    pub(crate) fn append(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        let shared = self.allocated(more.len());
        if shared.consumed > shared.bytes.len() / 2 {
            shared.bytes.drain(..shared.consumed);
            shared.consumed = 0;
        }
        shared.bytes.extend_from_slice(more);
    }

    /// Returns the queue's memory, which is allocated here if it has none.
    fn allocated(&mut self, capacity: usize) -> &mut Shared {
        if self.0.is_null() {
            let shared = Shared {
                bytes: Vec::with_capacity(capacity),
                consumed: 0,
                holders: 1,
            };
            self.0 = Box::into_raw(Box::new(shared));
        }
        // SAFETY: Owned: made above, or before.
        unsafe { &mut *self.0 }
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn take(&mut self, count: usize) {
        // SAFETY: Owned: null, or a box made in `allocated`.
        let Some(shared) = (unsafe { self.0.as_mut() }) else {
            return;
        };
        shared.consumed = (shared.consumed + count).min(shared.bytes.len());
        if shared.consumed == shared.bytes.len() && shared.holders == 1 {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        // SAFETY: Owned: null, or a box made in `allocated`.
        if let Some(shared) = unsafe { self.0.as_mut() } {
            shared.holders -= 1;
            if shared.holders == 0 {
                // SAFETY: Owned: leaked in `allocated`, and not used any more.
                drop(unsafe { Box::from_raw(self.0) });
            }
            self.0 = ptr::null_mut();
        }
    }

    /// Returns another holder of the same bytes, of which there may be none: bytes that one holder consumes are
    /// consumed for all.
    pub(crate) fn share(&mut self) -> ByteQueue {
        self.allocated(0).holders += 1;
        ByteQueue(self.0)
    }

    /// Returns the number of descriptors that have the same bytes; 0: no bytes were appended, and none shares them.
    pub(crate) fn holders(&self) -> u32 {
        // SAFETY: Owned: null, or a box made in `allocated`.
        unsafe { self.0.as_ref() }.map_or(0, |shared| shared.holders)
    }

    /// Returns whether another descriptor has the same bytes.
    pub(crate) fn is_shared(&self) -> bool {
        self.holders() > 1
    }

    /// Returns whether both are holders of the same bytes.
    pub(crate) fn is_shared_with(&self, other: &ByteQueue) -> bool {
        !self.0.is_null() && ptr::eq(self.0, other.0)
    }

    /// Moves all bytes out.
    pub(crate) fn move_out(&mut self) -> TakenBytes {
        TakenBytes(ByteQueue(std::mem::replace(&mut self.0, ptr::null_mut())))
    }
}

/// Bytes that are freed when this value is dropped, unlike the queues of the table, which are never dropped.
pub(crate) struct TakenBytes(ByteQueue);

impl TakenBytes {
    pub(crate) const fn none() -> TakenBytes {
        TakenBytes(ByteQueue::new())
    }
}

impl std::ops::Deref for TakenBytes {
    type Target = ByteQueue;

    fn deref(&self) -> &ByteQueue {
        &self.0
    }
}

impl std::ops::DerefMut for TakenBytes {
    fn deref_mut(&mut self) -> &mut ByteQueue {
        &mut self.0
    }
}

impl Drop for TakenBytes {
    fn drop(&mut self) {
        self.0.clear();
    }
}
