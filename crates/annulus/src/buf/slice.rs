//! # Safety
//!
//! A part of a buffer, as a buffer. Still follows from the inner buffer's promise.
#![allow(unsafe_code)]

use super::{IoBuf, IoBufMut};

/// The bytes `from..to` of a buffer. Returned by [`IoBuf::subslice`].
///
/// The rest of a message, read into the second half of a buffer:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
/// use annulus::IoBuf;
///
/// let file = engine.open(&path).await?;
/// let buf = file.read_exact_at(vec![0; 8].subslice(..4), 0).await?.into_inner();
/// let buf = file.read_exact_at(buf.subslice(4..), 6).await?.into_inner();
/// assert_eq!(buf, b"01236789");
/// # Ok(()) }) }
/// ```
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
    ///
    /// ```
    /// use annulus::IoBuf;
    ///
    /// // A slice of a slice counts from the start of the inner slice.
    /// let slice = b"0123456789".to_vec().subslice(2..).subslice(1..4);
    /// assert_eq!((slice.begin(), slice.end(), &slice[..]), (1, 4, &b"345"[..]));
    /// assert_eq!(slice.into_inner().begin(), 2);
    /// ```
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
