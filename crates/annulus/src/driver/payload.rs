//! # Safety
//!
//! A type-erased operation in `BYTES` bytes that are aligned as a `u64`: stored in place if it fits, otherwise boxed.
//! The owner remembers the type in a table of functions (Typed).
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use super::contain::contained;
use crate::metrics::OperationNumber;
use crate::op::{Op, Refusals, Resume};
use crate::sys::engine_error::EngineError;
use crate::sys::sqe::Sqe;

/// The result of an operation whose buffer panicked. Such a panic fails that operation, and nothing else.
pub(super) const PANICKED: i32 = -EngineError::Panicked.code();

/// The functions of [`Op`] with the type erased. They may call the buffer, which is foreign code, and contain its
/// panics. That costs nothing if the compiler sees that it has none.
pub(super) struct OpFunctions {
    pub(super) operation: OperationNumber,
    sqe: unsafe fn(*mut u8) -> Option<Sqe>,
    resume: unsafe fn(*mut u8, i32) -> Resume,
}

impl OpFunctions {
    pub(super) const fn of<T: Op, const BYTES: usize>() -> OpFunctions {
        OpFunctions {
            operation: T::INFO.number(),
            // SAFETY: Typed: the owner calls these with the payload it stored a `T` in.
            sqe: |data| contained(|| unsafe { at::<T, BYTES>(data) }.sqe()),
            resume: |data, res| {
                // SAFETY: Typed: the owner calls these with the payload it stored a `T` in.
                contained(|| unsafe { at::<T, BYTES>(data) }.resume(res))
                    .unwrap_or(Resume::Done(PANICKED))
            },
        }
    }

    /// Returns the op's SQE, with this token; `None` if the buffer panicked when it was asked for its address.
    ///
    /// # Safety
    ///
    /// Held, Typed. The caller holds the op at `data`, whose functions these are.
    #[inline]
    pub(super) unsafe fn sqe(&self, data: *mut u8, token: u64) -> Option<Sqe> {
        // SAFETY: Held, Typed: the caller upholds the contract in `# Safety`.
        let mut sqe = unsafe { (self.sqe)(data) }?;
        sqe.user_data = token;
        Some(sqe)
    }

    /// Passes a result of the kernel to the op, and applies the retry rule.
    ///
    /// # Safety
    ///
    /// As for `sqe`.
    #[inline]
    pub(super) unsafe fn judge(&self, data: *mut u8, res: i32, refusals: &mut Refusals) -> Resume {
        // SAFETY: Held, Typed: the caller upholds the contract in `# Safety`.
        refusals.judge(res, unsafe { (self.resume)(data, res) })
    }
}

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
