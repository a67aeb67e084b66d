//! # Safety
//!
//! A buffer that is filled by copying, in several steps. The buffer is owned here meanwhile (Lent). When it is
//! returned, it is told how many bytes have been written (Written).
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use super::{IoBufMut, ReadTarget, check_lent};

/// A buffer that is partly filled.
pub(crate) struct Filling<B> {
    buf: B,
    done: usize,
    /// The number of bytes that could be filled at first.
    whole: usize,
}

impl<B: IoBufMut> Filling<B> {
    pub(crate) fn new(buf: B) -> Filling<B> {
        Filling {
            done: 0,
            whole: buf.fill_bytes(),
            buf,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.done == self.whole
    }

    #[cfg(feature = "net")]
    pub(crate) fn is_empty(&self) -> bool {
        self.done == 0
    }

    /// Copies as much of `bytes` as fits, and returns the number of bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.whole - self.done);
        let base = self.buf.fill_ptr();
        // SAFETY: Lent: the buffer is owned here, and lends `whole` bytes; `done + taken` does not exceed that.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(self.done), taken) };
        self.done += taken;
        taken
    }

    /// Checks that the buffer may be filled: see [`check_lent`].
    pub(crate) fn check(&mut self) -> io::Result<()> {
        check_lent(&mut self.buf).map(drop)
    }

    /// Returns the copied bytes.
    pub(crate) fn filled(&mut self) -> &[u8] {
        // SAFETY: Written: `push` wrote them at this address, and no other code has the buffer.
        unsafe { std::slice::from_raw_parts(self.buf.fill_ptr(), self.done) }
    }

    /// Returns the buffer with the copied bytes.
    pub(crate) fn into_buf(mut self) -> B {
        // SAFETY: Written: `done` bytes, by `push`.
        unsafe { self.buf.set_filled(self.done) };
        self.buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_filled_up_to_the_bytes_it_lends() {
        let mut filling = Filling::new(Vec::with_capacity(4));
        assert_eq!(filling.push(b"abc"), 3);
        assert_eq!(filling.filled(), b"abc");
        let whole = filling.whole;
        assert_eq!(filling.push(&[b'x'; 64]), whole - 3);
        assert!(filling.is_full());
        assert_eq!(filling.push(b"y"), 0);
        assert_eq!(&filling.into_buf()[..4], b"abcx");
    }

    #[test]
    fn an_empty_vector_grows_by_the_filled_bytes_only() {
        let mut filling = Filling::new(Vec::with_capacity(16));
        filling.push(b"ab");
        assert_eq!(filling.into_buf(), b"ab");
    }
}
