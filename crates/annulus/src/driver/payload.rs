//! # Safety
//!
//! A type-erased value in `BYTES` bytes that are aligned as a `u64`: stored in place if it fits, otherwise boxed. The
//! owner remembers the type in a table of functions (Typed).
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

const fn fits<T, const BYTES: usize>() -> bool {
    size_of::<T>() <= BYTES && align_of::<T>() <= align_of::<u64>()
}

/// Returns the op stored at `data`.
///
/// # Safety
///
/// A `T` was stored there, and `'a` ends before it is taken out.
#[inline]
pub(super) unsafe fn at<'a, T, const BYTES: usize>(data: *mut u8) -> &'a mut T {
    if fits::<T, BYTES>() {
        // SAFETY: Typed: stored in place.
        unsafe { &mut *data.cast::<T>() }
    } else {
        // SAFETY: Typed: stored as a box.
        unsafe { &mut *data.cast::<ManuallyDrop<Box<T>>>() }
    }
}

/// # Safety
///
/// `data` points to `BYTES` bytes, aligned and empty.
#[inline]
pub(super) unsafe fn store<T, const BYTES: usize>(data: *mut u8, op: T) {
    if fits::<T, BYTES>() {
        // SAFETY: Typed: it fits, checked just now.
        unsafe { data.cast::<T>().write(op) }
    } else {
        // SAFETY: Typed: a box fits always.
        unsafe {
            data.cast::<ManuallyDrop<Box<T>>>()
                .write(ManuallyDrop::new(Box::new(op)))
        }
    }
}

/// # Safety
///
/// A `T` was stored there; it is gone after this.
#[inline]
pub(super) unsafe fn load<T, const BYTES: usize>(data: *mut u8) -> T {
    if fits::<T, BYTES>() {
        // SAFETY: Typed: stored in place.
        unsafe { data.cast::<T>().read() }
    } else {
        // SAFETY: Typed: stored as a box.
        *ManuallyDrop::into_inner(unsafe { data.cast::<ManuallyDrop<Box<T>>>().read() })
    }
}
