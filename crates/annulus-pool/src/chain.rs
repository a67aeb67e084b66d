//! A range of a file as a chain of pages.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Buf;

use crate::page::Page;

/// A range of a file, without a copy. [`PoolFile::bytes`](crate::PoolFile::bytes) returns it.
///
/// Each page is held until it has been advanced past.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
/// use bytes::Buf;
///
/// let engine = annulus::Engine::new()?;
/// let pool = annulus_pool::PagePool::builder(&engine).build()?;
/// let file = pool.open(&path).await?;
/// let mut record = file.bytes(4000..12_000).await?;              // three pages
/// assert_eq!((record.remaining(), record.chunk().len()), (8000, 96));
/// assert_eq!(record.get_u64(), 0x0707_0707_0707_0707);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Default)]
pub struct PageBytes {
    pages: VecDeque<Page>,
    /// The bytes of the first page that are not part of it.
    skip: usize,
    remaining: usize,
}

impl PageBytes {
    pub(crate) fn new(pages: Vec<Page>, skip: usize, remaining: usize) -> PageBytes {
        PageBytes {
            pages: pages.into(),
            skip,
            remaining,
        }
    }

    /// Returns the parts of the pages, in their order.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.skip;
        let mut remaining = self.remaining;
        self.pages.iter().map(move |page| {
            let part = &page[std::mem::take(&mut skip)..];
            let part = &part[..part.len().min(remaining)];
            remaining -= part.len();
            part
        })
    }
}

impl Buf for PageBytes {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts().next().unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slice, part) in into.iter_mut().zip(self.parts()) {
            *slice = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    /// Moves on by `bytes`.
    ///
    /// # Panics
    ///
    /// Panics if that is more than `remaining`, as the trait demands.
    fn advance(&mut self, bytes: usize) {
        assert!(
            bytes <= self.remaining,
            "advance by {bytes} of {}",
            self.remaining
        );
        self.remaining -= bytes;
        self.skip += bytes;
        while let Some(first) = self.pages.front()
            && self.skip >= first.len()
        {
            self.skip -= first.len();
            self.pages.pop_front();
        }
    }
}
