//! # Safety
//!
//! The calling thread's errno, and the return convention of the C library (Typed: its own functions).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;

use libc::ssize_t;

/// A count, or an errno.
pub(crate) type CallResult = Result<usize, i32>;

pub(crate) fn set(errno: i32) {
    // SAFETY: Typed: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn get() -> i32 {
    // SAFETY: Typed: the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Runs `body`, and returns `None` if it panics, so that a defect does not end the server. errno is unchanged.
#[inline]
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    keep(|| catch_panic_only(body))
}

/// Runs `body`, and goes on if it panics. errno is unchanged.
pub(crate) fn attempt<T>(body: impl FnOnce() -> T) {
    catch_panic(|| Some(body()));
}

/// Runs `body`, which does not change errno, and returns `None` if it panics.
#[inline]
pub(crate) fn catch_panic_only<T>(body: impl FnOnce() -> Option<T>) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(None)
}

/// Runs `body`, after which errno is as it was before.
#[inline]
pub(crate) fn keep<T>(body: impl FnOnce() -> T) -> T {
    // One call of the C library for both.
    // SAFETY: Typed: the address of the calling thread's own errno, which stays for as long as the thread.
    let errno = unsafe { &*libc::__errno_location().cast::<Cell<c_int>>() };
    let before = errno.get();
    let result = body();
    errno.set(before);
    result
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `body`, in which the program cannot cancel the calling thread. Functions that open, read or close a file are
/// cancellation points, and a thread that ends in the library would leave it half done.
pub(crate) fn without_cancel<T>(body: impl FnOnce() -> T) -> T {
    struct Restore(c_int);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: Typed: a state that the call below returned.
            unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
        }
    }
    const PTHREAD_CANCEL_DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: Typed: `before` is of this stack.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let _restore = Restore(before);
    body()
}

/// Converts a result to the C library's convention: a count, or -1 and errno.
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

/// Converts the result of a call that returns an int.
#[inline]
pub(crate) fn into_return_int(result: CallResult) -> c_int {
    into_return(result) as c_int
}
