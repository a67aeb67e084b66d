//! # Safety
//!
//! The buffers of a vectored transfer and the vectors that point to them, cut off at the front as the
//! transfer goes on. Buffers and vectors are on the heap (Lent, Still).
#![allow(unsafe_code)]

use super::VECTORS_MAX;
use crate::buf::IoBuf;
use crate::sys::call::IoVec;

/// Buffers to be sent, one after the other.
#[derive(Debug)]
pub(crate) struct Vectors<B> {
    bufs: Vec<B>,
    vectors: Vec<IoVec>,
    /// The first vector with something left.
    first: usize,
    left: usize,
}

impl<B: IoBuf> Vectors<B> {
    pub(crate) fn new(bufs: Vec<B>) -> Vectors<B> {
        let vectors: Vec<IoVec> = bufs
            .iter()
            .map(|buf| IoVec {
                base: buf.stable_ptr().cast_mut(),
                bytes: buf.init_bytes(),
            })
            .collect();
        let left = vectors.iter().map(|vector| vector.bytes).sum();
        Vectors {
            bufs,
            vectors,
            first: 0,
            left,
        }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// What is left, or as much of it as one transfer takes.
    pub(crate) fn rest(&mut self) -> &mut [IoVec] {
        let rest = self.vectors.get_mut(self.first..).unwrap_or_default();
        let count = rest.len().min(VECTORS_MAX);
        &mut rest[..count]
    }

    /// Cuts `bytes` off the front.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
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

    /// The buffers.
    pub(crate) fn into_bufs(self) -> Vec<B> {
        self.bufs
    }
}
