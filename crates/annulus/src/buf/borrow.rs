//! # Safety
//!
//! The bytes of an owned buffer as slices, for calls of std that end before the buffer moves on (Lent, Still).
#![allow(unsafe_code)]

use std::io;
use std::slice;

use super::{IoBuf, IoBufMut, ReadTarget};

/// Returns the bytes that a write takes.
pub(crate) fn bytes_of<B: IoBuf>(buf: &B) -> &[u8] {
    // SAFETY: Still and Lent: the buffer is borrowed, so its initialised bytes stay where they are.
    unsafe { slice::from_raw_parts(buf.stable_ptr(), buf.init_bytes()) }
}

/// Calls `read` with the bytes that a read may fill, and marks as initialised as many as it returns.
pub(crate) fn fill<B: IoBufMut>(
    buf: &mut B,
    read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let (base, bytes) = (buf.fill_ptr(), buf.fill_bytes());
    let init = buf.init_bytes().saturating_sub(buf.kept_bytes()).min(bytes);
    // SAFETY: Lent: `bytes` bytes from `base` belong to the buffer, which no other code uses meanwhile. A slice needs
    // initialised bytes, so the rest is zeroed.
    let into = unsafe {
        base.add(init).write_bytes(0, bytes - init);
        slice::from_raw_parts_mut(base, bytes)
    };
    let filled = read(into)?.min(bytes);
    // SAFETY: Written: all `bytes` bytes are initialised.
    unsafe { buf.set_filled(filled) };
    Ok(filled)
}
