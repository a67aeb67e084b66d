//! # Safety
//!
//! The buffers of a vectored transfer of a file or socket, and the vectors that point to them. Transferred bytes are
//! cut off at the front. Buffers and vectors are on the heap (Lent, Still).
#![allow(unsafe_code)]

use super::VECTORS_MAX;
use crate::buf::{IoBuf, IoBufMut, ReadTarget};
use crate::sys::call::IoVec;

/// Buffers of a transfer, in order.
#[derive(Debug)]
pub(crate) struct Vectors<B> {
    bufs: Vec<B>,
    vectors: Vec<IoVec>,
    /// The first vector with something left.
    first: usize,
    /// The total size, bytes.
    want: usize,
    done: usize,
}

// SAFETY: Lent: the vectors point into the buffers, which are `Send` and move with them.
unsafe impl<B: Send> Send for Vectors<B> {}

impl<B: IoBuf> Vectors<B> {
    /// Makes the vectors of buffers to write.
    pub(crate) fn from(bufs: Vec<B>) -> Vectors<B> {
        let vector = |buf: &B| IoVec {
            base: buf.stable_ptr().cast_mut(),
            bytes: buf.init_bytes(),
        };
        let vectors = bufs.iter().map(vector).collect();
        Vectors::new(bufs, vectors)
    }
}

impl<B: IoBufMut> Vectors<B> {
    /// Makes the vectors of buffers to fill.
    pub(crate) fn into(mut bufs: Vec<B>) -> Vectors<B> {
        let vector = |buf: &mut B| IoVec {
            base: buf.fill_ptr(),
            bytes: buf.fill_bytes(),
        };
        let vectors = bufs.iter_mut().map(vector).collect();
        Vectors::new(bufs, vectors)
    }
}

impl<B> Vectors<B> {
    fn new(bufs: Vec<B>, vectors: Vec<IoVec>) -> Vectors<B> {
        let want = vectors.iter().map(|vector| vector.bytes).sum();
        let mut vectors = Vectors {
            bufs,
            vectors,
            first: 0,
            want,
            done: 0,
        };
        // Skip empty buffers at the front: a transfer of 0 bytes would look like the end.
        vectors.advance(0);
        vectors
    }

    /// Returns the total size of the buffers, bytes.
    pub(crate) fn want(&self) -> usize {
        self.want
    }

    /// Returns the number of bytes that have been transferred.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Returns whether bytes are left to transfer.
    pub(crate) fn has_rest(&self) -> bool {
        self.done < self.want
    }

    /// Returns the vectors that are left, at most those of one transfer.
    pub(crate) fn rest(&mut self) -> &mut [IoVec] {
        let rest = self.vectors.get_mut(self.first..).unwrap_or_default();
        let count = rest.len().min(VECTORS_MAX);
        &mut rest[..count]
    }

    /// Cuts `bytes` off the front.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.done += bytes;
        while let Some(vector) = self.vectors.get_mut(self.first) {
            if bytes < vector.bytes {
                // SAFETY: Lent: still inside the same buffer.
                vector.base = unsafe { vector.base.add(bytes) };
                vector.bytes -= bytes;
                return;
            }
            bytes -= vector.bytes;
            self.first += 1;
        }
    }

    /// Returns the buffers.
    pub(crate) fn into_bufs(self) -> Vec<B> {
        self.bufs
    }
}
