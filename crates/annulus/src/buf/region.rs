//! # Safety
//!
//! A large range of memory as one buffer, and as many: taken apart into pieces that are read into
//! side by side, each of them lent on its own, and put together again when all of them are back
//! (Owned: the pieces do not overlap, and hold the mapping until the last is gone).
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::{IoBuf, IoBufMut};
use crate::sys::mapping::{HugePages, Mapping, PagesInUse};

/// Owned memory of any size, in pages of its own: what [`File::load`](crate::File::load) answers.
///
/// Zeroed, and given to the process page by page as it is touched first. A buffer like others, too:
/// `file.read_at(region, offset)` reads at most 2 GiB per operation into it.
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
    /// `bytes` zero bytes, at an address that is a multiple of 4,096.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, or `OutOfMemory` without an errno, if there can be no such range.
    pub fn new(bytes: usize, huge_pages: HugePages) -> io::Result<Region> {
        Region::with_start(bytes, 0, huge_pages)
    }

    /// The same at an address that is `from` bytes off its alignment.
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

    /// Which pages it got.
    pub fn pages(&self) -> PagesInUse {
        self.memory.pages()
    }

    /// Takes it apart.
    pub(crate) fn take_apart(self) -> Pieces {
        // What a device reads while the process forks must arrive here (trap 59).
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
        // SAFETY: Owned: within the mapping, which is ours alone and was mapped zeroed.
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
        // Zeroed at birth: nothing is ever uninitialised.
    }
}

/// A region taken apart.
#[derive(Debug)]
pub(crate) struct Pieces {
    memory: Arc<Mapping>,
    /// What lies before has been given out.
    at: usize,
    from: usize,
    len: usize,
}

impl Pieces {
    /// Where in the memory the region's bytes are.
    pub(crate) fn visible(&self) -> Range<usize> {
        self.from..self.from + self.len
    }

    /// Where the memory begins, and how much there is.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (self.memory.base().addr(), self.memory.bytes())
    }

    /// A piece, from the offset `from` of the memory on; the next one has to begin behind it. `None`
    /// if this one does not lie behind the last, or not within the memory.
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

    /// Puts the region together again; `None` if a piece is still out.
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

/// A part of a region, the only way to its bytes.
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
        // Zeroed at birth: nothing is ever uninitialised.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_never_overlap_and_the_region_comes_back_when_all_are_back() {
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
