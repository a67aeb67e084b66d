//! # Safety
//!
//! A buffer that is filled piece by piece, by copying (Lent: it is ours meanwhile). It is told what has
//! been written when it is given back (Written).
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

use super::{IoBufMut, ReadTarget, check_lent};

/// A buffer, and how far it is full.
pub(crate) struct Filling<B> {
    buf: B,
    done: usize,
    /// What it lent before anything was written.
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

    /// Copies what fits of `bytes`; returns how many.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.whole - self.done);
        let base = self.buf.fill_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: Lent: the buffer is ours, and lends `whole` bytes, of which `done + taken` are no more.
        let target = unsafe { std::slice::from_raw_parts_mut(base.add(self.done), taken) };
        target.write_copy_of_slice(&bytes[..taken]);
        self.done += taken;
        taken
    }

    /// Whether the buffer may be filled: see [`check_lent`].
    pub(crate) fn check(&mut self) -> io::Result<()> {
        check_lent(&mut self.buf).map(drop)
    }

    /// What has been copied.
    pub(crate) fn filled(&mut self) -> &[u8] {
        // SAFETY: Written: `push` has, at this address, and nobody else has the buffer.
        unsafe { std::slice::from_raw_parts(self.buf.fill_ptr(), self.done) }
    }

    /// The buffer, with what has been copied.
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
    fn a_buffer_is_filled_up_to_what_it_lends_and_no_further() {
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
    fn what_was_not_filled_of_an_empty_vector_is_not_there() {
        let mut filling = Filling::new(Vec::with_capacity(16));
        filling.push(b"ab");
        assert_eq!(filling.into_buf(), b"ab");
    }
}
