//! # Safety
//!
//! The traits of buffers. `IoBuf` and `IoBufMut` promise that an address stays valid and unchanged while the value
//! lives, wherever the value itself is moved (Still). The implementations here cover the types of std that can keep
//! this promise.
#![allow(unsafe_code)]

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::Slice;

/// A buffer whose bytes an operation may read: the source of a write.
///
/// The buffer is owned, so that it can outlive the future: after the future is dropped, the engine keeps the buffer
/// until the kernel has finished with it. To write a part of a buffer, wrap it: [`IoBuf::subslice`].
///
/// Borrowed buffers do not compile. To read into borrowed memory, use [`File::read_into`](crate::File::read_into).
///
/// ```compile_fail,E0277
/// async fn fill(file: &annulus::File, page: &mut [u8]) {
///     let _ = file.read_at(page, 0).await;
/// }
/// ```
///
/// A shorter borrow of a type that implements the trait only for `'static` does not compile either:
///
/// ```compile_fail,E0521
/// async fn store(file: &annulus::File, page: &[u8]) {
///     let _ = file.write_at(page, 0).await;
/// }
/// ```
///
/// A literal, a `String` or a shared `Arc<[u8]>` is a buffer, too:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let file = engine.create(dir.path().join("data")).await?;
/// use std::sync::Arc;
///
/// let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
/// file.write_all_at(Arc::clone(&shared), 0).await?; // no copy of the bytes
/// file.write_all_at("literal", 6).await?;
/// file.write_all_at(String::from("string"), 13).await?;
/// # assert_eq!(file.metadata().await?.len(), 19);
/// # Ok(()) }) }
/// ```
///
/// # Safety
///
/// The library reads the bytes through a raw pointer, from other threads, and after the future that received the buffer
/// has been dropped. It relies on the following from the moment a buffer is passed to it until the buffer is returned
/// or dropped, wherever the value is moved meanwhile:
///
/// - `stable_ptr` points to `init_bytes` bytes of one allocation. They are initialised and may be read from any thread.
///   The pointer is not null, even if `init_bytes` is 0.
/// - Both methods return the same value at every call. After a short transfer, the library continues with the pointer
///   and the count that they return then, and [`Slice`] checks its bounds only once. Only
///   [`set_init`](IoBufMut::set_init) changes `init_bytes`, and nothing changes the address.
/// - No other code writes to the bytes: neither through a handle that shares the memory, nor in these methods.
///
/// A method that panics breaks no promise. A driver or a blocking thread calls both methods. If one of them panics
/// there, its operation fails with [`EngineError::Panicked`](crate::EngineError::Panicked), and other operations are
/// not affected.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that the kernel may read",
    label = "not an owned buffer with a stable address",
    note = "pass an owned `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>` or `AlignedBuf`; it comes back with the result",
    note = "`Bytes` and `BytesMut` need the feature `bytes` of annulus",
    note = "to fill a borrowed `&mut [u8]`, use `File::read_into`"
)]
pub unsafe trait IoBuf: Send + 'static {
    /// Returns the address of the bytes.
    fn stable_ptr(&self) -> *const u8;

    /// Returns the number of initialised bytes, counted from the start.
    ///
    /// A `Vec<u8>` is written up to its length, not up to its capacity:
    ///
    /// ```
    /// use annulus::IoBuf;
    ///
    /// let mut record = Vec::with_capacity(4096);
    /// record.extend_from_slice(b"record");
    /// assert_eq!(record.init_bytes(), 6);
    /// ```
    fn init_bytes(&self) -> usize;

    /// Returns the bytes of `range` as a buffer. An operation on it accesses only those bytes. [`Slice::into_inner`]
    /// returns the whole buffer.
    ///
    /// An open end means [`init_bytes`](IoBuf::init_bytes). The name differs from `slice` because `Bytes` and
    /// `BytesMut` have methods of that name, which would take precedence.
    ///
    /// ```
    /// use annulus::IoBuf;
    ///
    /// let part = b"0123456789".to_vec().subslice(4..7);
    /// assert_eq!(&part[..], b"456");
    /// assert_eq!(part.into_inner(), b"0123456789");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the range starts after its end, or ends beyond the initialised bytes.
    fn subslice(self, range: impl RangeBounds<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.init_bytes(),
        };
        Slice::new(self, from, to)
    }
}

/// A buffer that an operation may fill: the target of a read.
///
/// A read fills the buffer up to its length, or an empty one up to its capacity:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
/// let file = engine.open(&path).await?;
/// let (bytes, buf) = file.read_at(vec![0; 4], 0).await?;
/// assert_eq!((bytes, buf.len()), (4, 4));
/// let (bytes, buf) = file.read_at(Vec::with_capacity(8), 0).await?;
/// assert_eq!((bytes, buf.len()), (8, 8)); // a read sets the length
/// // A second read into the same buffer replaces the contents, and keeps the length.
/// let (bytes, buf) = file.read_at(buf, 8).await?;
/// assert_eq!((bytes, &buf[..]), (2, &b"89234567"[..]));
/// # Ok(()) }) }
/// ```
///
/// # Safety
///
/// The requirements of [`IoBuf`] apply, for the same time, and these:
///
/// - `stable_mut_ptr` returns the same address as [`stable_ptr`](IoBuf::stable_ptr), so that the filled bytes are the
///   bytes that are read afterwards.
/// - `lent_bytes` bytes from that address, of the same allocation, may be written from any thread, initialised or not.
///   No other code reads or writes them.
/// - The initialised bytes lie within the lent bytes: `init_bytes` is at most `lent_bytes`.
/// - The bytes that a read keeps are initialised: `kept_bytes` is at most `init_bytes`.
/// - All three methods return the same value at every call until `set_init` is called. After that, `lent_bytes` and
///   `kept_bytes` may change; the address stays.
/// - After `set_init(n)`, `init_bytes` is at least `n`, and not less than before.
///
/// The library calls `set_init` with at most the number of lent bytes, after they have been written.
///
/// A buffer is checked before it is lent. The operation returns it with [`InvalidInput`] if its two addresses differ,
/// if it has more initialised than lent bytes, or if it keeps more bytes than it has initialised.
///
/// [`InvalidInput`]: std::io::ErrorKind::InvalidInput
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer that the kernel may fill",
    label = "not an owned, writable buffer with a stable address",
    note = "pass an owned `Vec<u8>`, `Box<[u8]>` or `AlignedBuf`; it comes back with the result",
    note = "`BytesMut` needs the feature `bytes` of annulus",
    note = "to fill a borrowed `&mut [u8]`, use `File::read_into`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Returns the address of the bytes, the same as [`stable_ptr`](IoBuf::stable_ptr).
    fn stable_mut_ptr(&mut self) -> *mut u8;

    /// Returns how many bytes a read may fill, counted from the start.
    ///
    /// A `Vec<u8>` with contents lends its length: `vec![0; 4096]` requests 4,096 bytes. An empty one lends its
    /// capacity: `Vec::with_capacity(4096)` does too.
    ///
    /// ```
    /// use annulus::IoBufMut;
    ///
    /// assert_eq!(vec![0; 4096].lent_bytes(), 4096);
    /// assert!(Vec::<u8>::with_capacity(4096).lent_bytes() >= 4096);
    /// assert_eq!(Vec::<u8>::new().lent_bytes(), 0); // a read into it fails with `InvalidInput`
    /// ```
    fn lent_bytes(&self) -> usize;

    /// Returns how many bytes at the start a read keeps. A read fills the bytes from there to
    /// [`lent_bytes`](IoBufMut::lent_bytes).
    ///
    /// The default is 0: a read overwrites the contents. A buffer to which reads append returns
    /// [`init_bytes`](IoBuf::init_bytes), as `BytesMut` does.
    ///
    /// With `BytesMut`, pieces are put together without a copy:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// # #[cfg(feature = "bytes")] {
    /// let file = engine.open(&path).await?;
    /// let buf = bytes::BytesMut::with_capacity(4);
    /// let (bytes, mut buf) = file.read_at(buf, 0).await?;
    /// assert_eq!((bytes, &buf[..4]), (4, &b"0123"[..]));
    /// buf.reserve(4); // a read needs spare capacity
    /// let (_, buf) = file.read_at(buf, 4).await?;
    /// assert!(buf.starts_with(b"01234567")); // appended
    /// # }
    /// # Ok(()) }) }
    /// ```
    fn kept_bytes(&self) -> usize {
        0
    }

    /// Marks the first `bytes` bytes as initialised. Never shortens the buffer.
    ///
    /// # Safety
    ///
    /// Written: these bytes are initialised, and at most [`lent_bytes`](IoBufMut::lent_bytes).
    unsafe fn set_init(&mut self, bytes: usize);
}

// SAFETY: Still. The heap block of a Vec moves only on a resize, and the engine does not resize it.
unsafe impl IoBuf for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. The heap block of a Vec moves only on a resize, and the engine does not resize it. The Vec owns all
// `capacity` bytes of the block.
unsafe impl IoBufMut for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        if self.is_empty() {
            self.capacity()
        } else {
            self.len()
        }
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        if bytes > self.len() {
            // SAFETY: Written, by the caller's promise; `lent_bytes` never exceeds the capacity.
            unsafe { self.set_len(bytes) }
        }
    }
}

// SAFETY: Still. The heap block of a Box stays where it is.
unsafe impl IoBuf for Box<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still, and a Box is its block's only owner.
unsafe impl IoBufMut for Box<[u8]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len()
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

// SAFETY: Still. A fixed block behind a pointer, all of it initialised.
unsafe impl<const N: usize> IoBuf for Box<[u8; N]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        N
    }
}

// SAFETY: Still, and a Box is its block's only owner.
unsafe impl<const N: usize> IoBufMut for Box<[u8; N]> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        N
    }

    unsafe fn set_init(&mut self, _: usize) {}
}

// SAFETY: Still. Shared and immutable while any handle lives.
unsafe impl IoBuf for Arc<[u8]> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. Statics are never freed.
unsafe impl IoBuf for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. Statics are never freed.
unsafe impl IoBuf for &'static str {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. The heap block of a String moves only on a resize, and the engine does not resize it.
unsafe impl IoBuf for String {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still. The box stays where it is, and its contents keep their own promise.
unsafe impl IoBuf for Box<dyn IoBuf> {
    fn stable_ptr(&self) -> *const u8 {
        (**self).stable_ptr()
    }

    fn init_bytes(&self) -> usize {
        (**self).init_bytes()
    }
}

/// The part of a buffer that a read fills: after the bytes that it keeps.
pub(crate) trait ReadTarget: IoBufMut {
    /// Returns the address of the first byte to fill.
    #[inline]
    fn fill_ptr(&mut self) -> *mut u8 {
        let kept = self.kept_bytes();
        self.stable_mut_ptr().wrapping_add(kept)
    }

    /// Returns how many bytes may be filled from `fill_ptr` on.
    #[inline]
    fn fill_bytes(&self) -> usize {
        self.lent_bytes().saturating_sub(self.kept_bytes())
    }

    /// Marks `bytes` bytes from `fill_ptr` on as initialised. `fill_ptr` and `fill_bytes` may change.
    ///
    /// # Safety
    ///
    /// Written: these bytes are initialised, and at most `fill_bytes`.
    #[inline]
    unsafe fn set_filled(&mut self, bytes: usize) {
        let init = self.kept_bytes() + bytes;
        // SAFETY: Written: the kept bytes by the buffer's promise, the bytes after them by the caller's.
        unsafe { self.set_init(init) };
    }
}

impl<B: IoBufMut> ReadTarget for B {}
