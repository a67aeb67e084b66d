//! # Safety
//!
//! The memory that the program passes to a read or a write. It is valid for the call, by the contract of the function
//! that the program called (Lent: each value is made by an unsafe function, whose caller guarantees it).
#![allow(unsafe_code)]

use libc::iovec;

use crate::arch;
use crate::errno::CallResult;

/// The vectors of a write.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(&'a [iovec]);

/// The vectors of a read.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a>(&'a [iovec]);

impl<'a> Source<'a> {
    /// # Safety
    ///
    /// Lent: the vectors are valid for reads as long as the value is used.
    #[inline]
    pub(crate) unsafe fn new(vectors: &'a [iovec]) -> Source<'a> {
        Source(vectors)
    }

    pub(crate) fn vectors(self) -> &'a [iovec] {
        self.0
    }

    /// Returns the number of bytes, and fails as the kernel does.
    #[inline]
    pub(crate) fn bytes(self) -> CallResult {
        bytes(self.0, true)
    }

    /// Copies the bytes to `into`, as many as it holds.
    #[inline]
    pub(crate) fn copy_to(self, mut into: &mut [u8]) {
        for vector in self.0 {
            let (part, rest) = into.split_at_mut(vector.iov_len.min(into.len()));
            // SAFETY: Lent: the vectors are valid for reads (`new`).
            unsafe {
                vector
                    .iov_base
                    .cast::<u8>()
                    .copy_to_nonoverlapping(part.as_mut_ptr(), part.len())
            };
            into = rest;
        }
    }
}

impl<'a> Target<'a> {
    /// # Safety
    ///
    /// Lent: the vectors are valid for writes as long as the value is used.
    #[inline]
    pub(crate) unsafe fn new(vectors: &'a [iovec]) -> Target<'a> {
        Target(vectors)
    }

    pub(crate) fn vectors(self) -> &'a [iovec] {
        self.0
    }

    /// Returns the number of bytes, and fails as the kernel does. `is_filled`: the call writes to those bytes.
    #[inline]
    pub(crate) fn bytes(self, is_filled: bool) -> CallResult {
        bytes(self.0, is_filled)
    }

    /// Calls `call` with the vectors behind their first `done` bytes, of which it gets `MAX` at most.
    pub(crate) fn behind<const MAX: usize, T>(
        self,
        done: usize,
        call: impl FnOnce(Target<'_>) -> T,
    ) -> T {
        let mut rest = [iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; MAX];
        let (mut skipped, mut count) = (done, 0);
        for vector in self.0 {
            let skip = skipped.min(vector.iov_len);
            skipped -= skip;
            if skip < vector.iov_len && count < MAX {
                rest[count].iov_base = vector.iov_base.wrapping_byte_add(skip);
                rest[count].iov_len = vector.iov_len - skip;
                count += 1;
            }
        }
        call(Target(&rest[..count]))
    }

    /// Copies bytes behind the first `skip` bytes, as many as fit. Returns their number.
    #[inline]
    pub(crate) fn fill(self, mut skip: usize, mut from: &[u8]) -> usize {
        let before = from.len();
        for vector in self.0 {
            let start = skip.min(vector.iov_len);
            skip -= start;
            let (part, rest) = from.split_at(from.len().min(vector.iov_len - start));
            let into = vector.iov_base.cast::<u8>().wrapping_add(start);
            // SAFETY: Lent: the vectors are valid for writes (`new`).
            unsafe { part.as_ptr().copy_to_nonoverlapping(into, part.len()) };
            from = rest;
        }
        before - from.len()
    }
}

/// Returns the number of bytes of a call's vectors, and fails as the kernel does. `accesses`: the call reads or writes
/// those bytes.
#[inline]
fn bytes(vectors: &[iovec], accesses: bool) -> CallResult {
    let mut total = 0_usize;
    for vector in vectors {
        if vector.iov_len > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        total = total.saturating_add(vector.iov_len);
        if accesses && !may_be_mapped(vector.iov_base) && vector.iov_len > 0 {
            return Err(libc::EFAULT);
        }
    }
    Ok(total)
}

/// Returns whether a pointer may be mapped in the program. If not, the kernel returns the error. A pointer that may be
/// mapped but is not ends the program, where the kernel would have returned EFAULT.
#[inline]
pub(crate) fn may_be_mapped<T>(pointer: *const T) -> bool {
    arch::may_be_mapped(pointer.addr())
}
