//! # Safety
//!
//! The calling thread's errno, and the C library's way of answering (Typed: its own functions).
#![allow(unsafe_code)]

use std::ffi::c_int;

use libc::ssize_t;

/// A count, or an errno.
pub(crate) type CallResult = Result<usize, i32>;

pub(crate) fn set(errno: i32) {
    // SAFETY: Typed: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn get() -> i32 {
    // SAFETY: Typed: as above.
    unsafe { *libc::__errno_location() }
}

/// What `body` answers. A defect in it, a panic, ends no server: there is no answer then. errno is as it was.
#[inline]
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    let before = get();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(None);
    set(before);
    result
}

/// As the C library says it.
#[inline]
pub(crate) fn into_return(result: CallResult) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// Likewise, for a call that answers with an int.
#[inline]
pub(crate) fn into_return_int(result: CallResult) -> c_int {
    into_return(result) as c_int
}
