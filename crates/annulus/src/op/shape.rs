//! # Safety
//!
//! The buffers of a transfer of a file or socket: one, or several with the vectors that point to them. Transferred
//! bytes are cut off at the front. Buffers and vectors are on the heap (Lent, Still).
#![allow(unsafe_code)]

use super::{TRANSFER_MAX, VECTORS_MAX};
use crate::buf::{IoBuf, IoBufMut, ReadTarget};
use crate::sys::call::IoVec;

/// The buffers of a shape; see [`Returns`](super::Returns).
pub trait Buffers {
    type Bufs;
}

/// The buffers of a transfer, and how much of them has been transferred.
///
/// # Safety
///
/// Lent, Still: the shape owns what `rest` points to, and moving the shape does not move it.
pub unsafe trait Shape: Buffers<Bufs: Send> + Send + 'static {
    /// Returns the total size of the buffers, bytes.
    fn want(&self) -> usize;

    /// Returns the number of bytes that have been transferred.
    fn done(&self) -> usize;

    /// Returns what is left for one transfer: the address and the number of bytes, or of vectors.
    fn rest(&mut self) -> (*mut u8, usize);

    /// Cuts `bytes` off the front.
    fn advance(&mut self, bytes: usize);

    /// Returns the buffers.
    fn into_bufs(self) -> Self::Bufs;

    /// Returns whether bytes are left to transfer.
    #[inline]
    fn has_rest(&self) -> bool {
        self.done() < self.want()
    }
}

/// One buffer to write.
#[derive(Debug)]
pub struct Single<B> {
    buf: B,
    done: usize,
}

impl<B: IoBuf> Single<B> {
    #[inline]
    pub(super) fn new(buf: B) -> Single<B> {
        Single { buf, done: 0 }
    }
}

// SAFETY: Lent, Still: a buffer owns its memory at a fixed address.
unsafe impl<B: IoBuf> Shape for Single<B> {
    #[inline]
    fn want(&self) -> usize {
        self.buf.init_bytes()
    }

    #[inline]
    fn done(&self) -> usize {
        self.done
    }

    #[inline]
    fn rest(&mut self) -> (*mut u8, usize) {
        let bytes = self.want().saturating_sub(self.done);
        // SAFETY: Lent: `done` never exceeds the initialised bytes.
        let base = unsafe { self.buf.stable_ptr().add(self.done) };
        (base.cast_mut(), bytes.min(TRANSFER_MAX))
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.done += bytes;
    }

    #[inline]
    fn into_bufs(self) -> B {
        self.buf
    }
}

impl<B> Buffers for Single<B> {
    type Bufs = B;
}

/// Several buffers, in order.
#[derive(Debug)]
pub struct Vectors<B> {
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
        vectors.cut(0);
        vectors
    }

    /// Returns the vectors that are left, at most those of one transfer.
    pub(super) fn vectors(&mut self) -> &mut [IoVec] {
        let rest = self.vectors.get_mut(self.first..).unwrap_or_default();
        let count = rest.len().min(VECTORS_MAX);
        &mut rest[..count]
    }

    fn cut(&mut self, mut bytes: usize) {
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
}

// SAFETY: Lent, Still: buffers own their memory at a fixed address, and the vectors are on the heap.
unsafe impl<B: Send + 'static> Shape for Vectors<B> {
    fn want(&self) -> usize {
        self.want
    }

    fn done(&self) -> usize {
        self.done
    }

    fn rest(&mut self) -> (*mut u8, usize) {
        let rest = self.vectors();
        (rest.as_mut_ptr().cast(), rest.len())
    }

    fn advance(&mut self, bytes: usize) {
        self.cut(bytes);
    }

    fn into_bufs(self) -> Vec<B> {
        self.bufs
    }
}

impl<B> Buffers for Vectors<B> {
    type Bufs = Vec<B>;
}
