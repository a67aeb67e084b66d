//! # Safety
//!
//! The memory of a driver, addressed through SQEs. Like a device, the simulated kernel writes at any moment between the
//! submission and the final CQE, and as late as possible. AddressSanitizer then finds memory that a driver freed too
//! early.
//!
//! Invariants: Lent (memory that an SQE points to belongs to the in-flight table until the final CQE; a `Lent` is
//! dropped before that CQE is posted), Still.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr;

use super::super::call::{IoVec, OpenHow, Statx};
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
    /// Lent and Still: the range stays valid for the accesses of the operation until this value is dropped.
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
        // SAFETY: Lent, by the promise of `new`: `bytes` are within the range, and no other code writes to it
        // meanwhile.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.base, bytes) }
    }

    /// Fills the range with garbage.
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

    /// Writes the result of a statx.
    pub(super) fn fill_statx(&mut self, statx: &Statx) {
        debug_assert_eq!(self.bytes, size_of::<Statx>());
        // SAFETY: Lent, by the promise of `new`: a `Statx` that the operation owns, aligned in its box.
        unsafe { ptr::copy_nonoverlapping(statx, self.base.cast::<Statx>(), 1) }
    }
}

/// A path, copied when the operation starts, as kernels with `SUBMIT_STABLE` do.
///
/// # Safety
///
/// Lent: `addr` points to a NUL-terminated string.
pub(super) unsafe fn path(addr: u64) -> Vec<u8> {
    let path = ptr::with_exposed_provenance::<std::ffi::c_char>(to_usize(addr));
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    unsafe { CStr::from_ptr(path) }.to_bytes().to_vec()
}

/// Returns the options of an `openat2(2)`, which are copied like a path.
///
/// # Safety
///
/// Lent: `addr` points to an `OpenHow`.
pub(super) unsafe fn open_how(addr: u64) -> OpenHow {
    let how = ptr::with_exposed_provenance::<OpenHow>(to_usize(addr));
    // SAFETY: Lent: the caller upholds the contract in `# Safety`.
    unsafe { how.read() }
}

/// Returns the ranges of a vectored operation. The vector is copied when the operation starts.
///
/// # Safety
///
/// Lent and Still: `addr` points to `count` vectors, and each of those to a range as required by `Lent::new`.
pub(super) unsafe fn vector(addr: u64, count: usize) -> Vec<Lent> {
    let vectors = ptr::with_exposed_provenance::<IoVec>(to_usize(addr));
    let one = |at| {
        // SAFETY: Lent: the caller upholds the contract in `# Safety`, and `at` is below `count`.
        let IoVec { base, bytes } = unsafe { vectors.add(at).read() };
        Lent { base, bytes }
    };
    (0..count).map(one).collect()
}
