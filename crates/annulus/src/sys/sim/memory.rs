//! # Safety
//!
//! A driver's memory as a simulated kernel sees it: addresses out of SQEs. Like a device, it writes
//! at any moment between the submission and the final CQE, and as late as it can: memory that a
//! driver freed too early is then found by AddressSanitizer.
//!
//! Invariants: Lent (what an SQE points to is the in-flight table's until the final CQE; a `Lent` is
//! dropped before that CQE is posted), Still.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;

use super::super::call::{IoVec, Statx};
use crate::narrow::to_usize;

/// A range that an SQE points to.
#[derive(Debug)]
pub(super) struct Lent {
    base: *mut u8,
    bytes: usize,
}

impl Lent {
    /// # Safety
    ///
    /// Lent and Still: the range stays valid for what the operation does with it until this value is
    /// dropped.
    pub(super) unsafe fn new(addr: u64, bytes: usize) -> Lent {
        Lent {
            base: ptr::with_exposed_provenance_mut(to_usize(addr)),
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes `from` to the start of the range.
    pub(super) fn fill(&mut self, from: &[u8]) {
        let bytes = from.len().min(self.bytes);
        // SAFETY: Lent, by the promise of `new`: `bytes` are within the range, which is written to by
        // nobody else meanwhile.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.base, bytes) }
    }

    /// Writes garbage all over the range.
    pub(super) fn scribble(&mut self, garbage: u8) {
        // SAFETY: Lent, by the promise of `new`.
        unsafe { ptr::write_bytes(self.base, garbage, self.bytes) }
    }

    /// The bytes of the range.
    pub(super) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: Lent, by the promise of `new`: initialised, because it is the source of a write.
        unsafe { ptr::copy_nonoverlapping(self.base, bytes.as_mut_ptr(), self.bytes) }
        bytes
    }

    /// Writes a whole statx answer.
    pub(super) fn fill_statx(&mut self, statx: &Statx) {
        debug_assert_eq!(self.bytes, size_of::<Statx>());
        // SAFETY: Lent, by the promise of `new`: a `Statx` of the op's own, aligned as its box is.
        unsafe { ptr::copy_nonoverlapping(statx, self.base.cast::<Statx>(), 1) }
    }
}

/// A path, copied when the operation starts, as kernels with `SUBMIT_STABLE` do.
///
/// # Safety
///
/// Lent: `addr` points to a string that ends in NUL.
pub(super) unsafe fn path(addr: u64) -> Vec<u8> {
    let path = ptr::with_exposed_provenance::<std::ffi::c_char>(to_usize(addr));
    // SAFETY: Lent, by the caller's promise.
    unsafe { CStr::from_ptr(path) }.to_bytes().to_vec()
}

/// The ranges of a vectored operation; the vector is copied when the operation starts.
///
/// # Safety
///
/// Lent and Still: `addr` points to `count` vectors, and each of those to a range as `Lent::new` has it.
pub(super) unsafe fn vector(addr: u64, count: usize) -> Vec<Lent> {
    let vectors = ptr::with_exposed_provenance::<IoVec>(to_usize(addr));
    let one = |at| {
        // SAFETY: Lent, by the caller's promise: `at` is below `count`.
        let IoVec { base, bytes } = unsafe { vectors.add(at).read() };
        Lent { base, bytes }
    };
    (0..count).map(one).collect()
}
