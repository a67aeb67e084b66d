//! # Safety
//!
//! The buffer for direct I/O: heap memory with the caller's alignment. It is allocated zeroed, so all of it is always
//! initialised. One value owns it, and frees it with the layout of its allocation (Owned).
#![allow(unsafe_code)]

use std::alloc::{Layout, LayoutError, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{IoBuf, IoBufMut};

/// A byte buffer aligned for direct I/O. [`File::direct_alignment`](crate::File::direct_alignment) returns the
/// alignment that a file needs.
///
/// ```
/// let page = annulus::buf::AlignedBuf::with_len(4096, 4096);
/// assert_eq!(page.len(), 4096);
/// assert_eq!(page.as_ptr().addr() % 4096, 0);
/// ```
pub struct AlignedBuf {
    base: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: Owned, like a Box: writing needs `&mut` or ownership.
unsafe impl Send for AlignedBuf {}
// SAFETY: Owned; shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `bytes` zero bytes at an address that is a multiple of `align_bytes`. Ends the process if memory is
    /// short, like a `Vec`; see [`try_with_len`](AlignedBuf::try_with_len).
    ///
    /// Direct I/O needs a length that is a multiple of the alignment as well. Round it up:
    ///
    /// ```
    /// use annulus::buf::AlignedBuf;
    ///
    /// let record = b"a record of any length";
    /// let mut buf = AlignedBuf::with_len(record.len().next_multiple_of(512), 512);
    /// buf[..record.len()].copy_from_slice(record); // the rest is zeros
    /// assert_eq!(buf.len(), 512);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `align_bytes` is not a power of two, or if the size overflows `isize`.
    pub fn with_len(bytes: usize, align_bytes: usize) -> AlignedBuf {
        let layout = match layout(bytes, align_bytes) {
            Ok(layout) => layout,
            Err(_) => panic!(
                "cannot allocate {bytes} bytes aligned to {align_bytes}: not a power of two, or too large"
            ),
        };
        AlignedBuf::allocate(bytes, layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Allocates like [`with_len`](AlignedBuf::with_len), for a size that comes from a file or a peer.
    ///
    /// ```
    /// use annulus::buf::AlignedBuf;
    ///
    /// let header = usize::MAX / 4; // a length from a damaged file
    /// let error = AlignedBuf::try_with_len(header, 4096).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` if `align_bytes` is not a power of two, and with `OutOfMemory` if memory is short.
    pub fn try_with_len(bytes: usize, align_bytes: usize) -> io::Result<AlignedBuf> {
        if !align_bytes.is_power_of_two() {
            let text = format!("an alignment of {align_bytes} bytes is not a power of two");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        let layout = layout(bytes, align_bytes).map_err(|_| ErrorKind::OutOfMemory)?;
        Ok(AlignedBuf::allocate(bytes, layout).ok_or(ErrorKind::OutOfMemory)?)
    }

    fn allocate(bytes: usize, layout: Layout) -> Option<AlignedBuf> {
        // SAFETY: Owned from here on; the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(AlignedBuf {
            base,
            layout,
            len: bytes,
        })
    }

    /// Sets the length that operations use and that the slice has. It may be raised again up to the capacity.
    ///
    /// One buffer serves transfers of several sizes:
    ///
    /// ```
    /// let mut buf = annulus::buf::AlignedBuf::with_len(1 << 16, 4096);
    /// buf.set_len(4096); // the next read takes one page
    /// assert_eq!((buf.len(), buf.capacity()), (4096, 1 << 16));
    /// buf.set_len(1 << 16); // the contents beyond the old length are still there
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `bytes` exceeds [`capacity`](AlignedBuf::capacity).
    pub fn set_len(&mut self, bytes: usize) {
        assert!(
            bytes <= self.layout.size(),
            "cannot set the length to {bytes} bytes: the buffer has {}",
            self.layout.size()
        );
        self.len = bytes;
    }

    /// Returns the allocated size in bytes.
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Returns the alignment of the allocation, in bytes.
    pub fn align_bytes(&self) -> usize {
        self.layout.align()
    }
}

fn layout(bytes: usize, align_bytes: usize) -> Result<Layout, LayoutError> {
    Layout::from_size_align(bytes.max(1), align_bytes)
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: Owned: allocated in `allocate` with this layout, and freed nowhere else.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: Owned: `len` bytes of the block, all initialised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: Owned, as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AlignedBuf({} bytes, aligned to {})",
            self.len,
            self.layout.align()
        )
    }
}

// SAFETY: Still. The block is freed only with the value and moved never.
unsafe impl IoBuf for AlignedBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: Still, and the value is the block's only owner.
unsafe impl IoBufMut for AlignedBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len
    }

    unsafe fn set_init(&mut self, _: usize) {
        // Nothing to do: allocated zeroed, so always initialised.
    }
}
