//! # Safety
//!
//! A part of a buffer, as a buffer. Still follows from the inner buffer's promise.
#![allow(unsafe_code)]

use super::{IoBuf, IoBufMut};

/// The bytes `from..to` of a buffer. Returned by [`IoBuf::subslice`].
#[derive(Debug)]
pub struct Slice<B> {
    buf: B,
    from: usize,
    to: usize,
}

impl<B: IoBuf> Slice<B> {
    pub(super) fn new(buf: B, from: usize, to: usize) -> Slice<B> {
        assert!(from <= to, "the slice {from}..{to} ends before it starts");
        assert!(
            to <= buf.init_bytes(),
            "the slice ends at {to}, but the buffer has {} initialised bytes",
            buf.init_bytes()
        );
        Slice { buf, from, to }
    }
}

impl<B> Slice<B> {
    /// Returns the whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }

    /// Returns the start of this part within the buffer.
    pub fn begin(&self) -> usize {
        self.from
    }

    /// Returns the end of this part within the buffer, exclusive.
    pub fn end(&self) -> usize {
        self.to
    }
}

impl<B: IoBuf> std::ops::Deref for Slice<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` checked that `from..to` is initialised; the pointer is Still.
        unsafe {
            std::slice::from_raw_parts(self.buf.stable_ptr().add(self.from), self.to - self.from)
        }
    }
}

// SAFETY: Still and Lent, by the inner buffer's promise; `new` checked the bounds.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn stable_ptr(&self) -> *const u8 {
        // SAFETY: Still: `from` is within the buffer.
        unsafe { self.buf.stable_ptr().add(self.from) }
    }

    fn init_bytes(&self) -> usize {
        self.to - self.from
    }
}

// SAFETY: Still and Lent, by the inner buffer's promise; `new` checked the bounds.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: Still: `from` is within the buffer.
        unsafe { self.buf.stable_mut_ptr().add(self.from) }
    }

    fn lent_bytes(&self) -> usize {
        // `new` checked the bounds against the initialised bytes, which lie within the lent ones. A buffer that breaks
        // this rule lends no more than it has.
        self.to.min(self.buf.lent_bytes()).saturating_sub(self.from)
    }

    unsafe fn set_init(&mut self, _: usize) {
        // All of `from..to` was initialised when the slice was made.
    }
}
