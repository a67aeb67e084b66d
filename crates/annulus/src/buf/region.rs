//! # Safety
//!
//! A large range of memory, as one buffer or as many. It is split into pieces that are lent separately and read in
//! parallel, and joined again when all pieces have been dropped (Owned: pieces do not overlap, and the last one keeps
//! the mapping alive).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::{IoBuf, IoBufMut};
use crate::sys::mapping::{HugePages, Mapping, PagesInUse};

/// Owned memory of any size on its own pages. [`File::load`](crate::File::load) returns it.
///
/// The memory is zeroed, and the kernel provides each page when it is first touched. A region is also an ordinary
/// buffer: `file.read_at(region, offset)` reads at most 2 GiB per operation into it.
///
/// ```
/// let region = annulus::buf::Region::new(1 << 20, annulus::buf::HugePages::default())?;
/// assert_eq!((region.len(), region[12345]), (1 << 20, 0));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Region {
    memory: Mapping,
    /// The visible part of the memory.
    from: usize,
    len: usize,
}

impl Region {
    /// Allocates `bytes` zero bytes at an address that is a multiple of 4,096.
    ///
    /// ```
    /// use annulus::buf::{HugePages, Region};
    ///
    /// // Memory is used page by page, as it is touched: this needs 4 KiB, or a huge page.
    /// let mut table = Region::new(1 << 30, HugePages::SystemDefault)?;
    /// table[123_456_789] = 1;
    /// let error = Region::new(usize::MAX, HugePages::default()).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `ENOMEM`, or with `OutOfMemory` without an errno, if the memory cannot be allocated.
    pub fn new(bytes: usize, huge_pages: HugePages) -> io::Result<Region> {
        Region::with_start(bytes, 0, huge_pages)
    }

    /// Allocates `bytes` zero bytes at an address that is `from` bytes past a multiple of 4,096.
    pub(crate) fn with_start(
        bytes: usize,
        from: usize,
        huge_pages: HugePages,
    ) -> io::Result<Region> {
        let all = bytes.checked_add(from).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region {
            memory: Mapping::new(all, huge_pages)?,
            from,
            len: bytes,
        })
    }

    /// Returns the kind of pages in use.
    pub fn pages(&self) -> PagesInUse {
        self.memory.pages()
    }

    /// Splits the region into pieces.
    pub(crate) fn take_apart(self) -> Pieces {
        // Device reads during a fork must arrive in this process (trap 59).
        self.memory.keep_from_children(true);
        Pieces {
            at: 0,
            from: self.from,
            len: self.len,
            memory: Arc::new(self.memory),
        }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: Owned: within the mapping, which belongs to this value alone and was mapped zeroed.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(self.from), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: Owned, as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().add(self.from), self.len) }
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes in {})", self.len, self.pages())
    }
}

// SAFETY: Still. The mapping's address never changes, wherever the value is moved.
unsafe impl IoBuf for Region {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: Still, and the region is the only way to these bytes.
unsafe impl IoBufMut for Region {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len
    }

    unsafe fn set_init(&mut self, _: usize) {
        // Nothing to do: mapped zeroed, so always initialised.
    }
}

/// A region that is split into pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    memory: Arc<Mapping>,
    /// The offset up to which pieces have been cut.
    at: usize,
    from: usize,
    len: usize,
}

impl Pieces {
    /// Returns the range of the region's bytes within the memory.
    pub(crate) fn visible(&self) -> Range<usize> {
        self.from..self.from + self.len
    }

    /// Returns the address and the size of the memory.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.memory.base().addr(), self.memory.bytes())
    }

    /// Cuts a piece that starts at offset `from` of the memory. Returns `None` if the piece overlaps an earlier one, or
    /// ends beyond the memory.
    pub(crate) fn cut(&mut self, from: usize, bytes: usize) -> Option<Piece> {
        let to = from.checked_add(bytes)?;
        if from < self.at || to > self.memory.bytes() {
            return None;
        }
        self.at = to;
        Some(Piece {
            memory: Arc::clone(&self.memory),
            from,
            len: bytes,
        })
    }

    /// Joins the pieces into the region; `None` if a piece still exists.
    pub(crate) fn join(self) -> Option<Region> {
        let memory = Arc::into_inner(self.memory)?;
        memory.keep_from_children(false);
        Some(Region {
            memory,
            from: self.from,
            len: self.len,
        })
    }
}

/// A piece of a region, and the only access to its bytes.
#[derive(Debug)]
pub(crate) struct Piece {
    memory: Arc<Mapping>,
    from: usize,
    len: usize,
}

// SAFETY: Still. The piece holds the mapping, whose address never changes.
unsafe impl IoBuf for Piece {
    fn stable_ptr(&self) -> *const u8 {
        self.memory.base().wrapping_add(self.from)
    }

    fn init_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: Still, and `cut` gives each byte to one piece.
unsafe impl IoBufMut for Piece {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory.base().wrapping_add(self.from)
    }

    fn lent_bytes(&self) -> usize {
        self.len
    }

    unsafe fn set_init(&mut self, _: usize) {
        // Nothing to do: mapped zeroed, so always initialised.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_never_overlap_and_join_into_the_region_when_all_are_dropped() {
        let region = Region::with_start(10_000, 100, HugePages::SystemDefault).unwrap();
        let mut pieces = region.take_apart();
        assert_eq!((pieces.visible(), pieces.memory().1), (100..10_100, 12_288));
        let first = pieces.cut(0, 5000).unwrap();
        assert!(pieces.cut(4999, 10).is_none());
        assert!(pieces.cut(12_000, 289).is_none());
        assert!(pieces.cut(12_000, usize::MAX).is_none());
        let mut last = pieces.cut(12_000, 288).unwrap();
        assert_eq!(
            last.stable_mut_ptr().addr() - first.stable_ptr().addr(),
            12_000
        );
        drop(first);
        drop(last);
        assert_eq!(pieces.join().unwrap().len(), 10_000);

        let mut pieces = Region::new(1, HugePages::SystemDefault)
            .unwrap()
            .take_apart();
        let out = pieces.cut(0, 1).unwrap();
        assert!(pieces.join().is_none());
        assert_eq!(out.lent_bytes(), 1);
        assert!(Region::with_start(usize::MAX, 1, HugePages::SystemDefault).is_err());
    }
}
