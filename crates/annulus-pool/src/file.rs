//! A file of a pool, and the ways to read it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use annulus::File;

use crate::budget;
use crate::page::Page;
use crate::shared::Shared;
use crate::table::FileCore;

/// The most loads that one call for a range has in flight.
const WINDOW: usize = 64;

/// A file whose pages are in a [`PagePool`](crate::PagePool). Cheap to clone; when the last clone is dropped, its pages
/// leave memory.
///
/// The file is immutable: its length is that at the open, and pages in memory do not follow changes of the file. A file
/// that has become shorter since gives `UnexpectedEof` for pages that it does not have any more.
#[derive(Clone)]
pub struct PoolFile {
    core: Arc<FileCore>,
}

impl PoolFile {
    pub(crate) fn new(
        pool: &Arc<Shared>,
        file: File,
        path: PathBuf,
        len: u64,
        direct: bool,
    ) -> io::Result<PoolFile> {
        let core = FileCore::new(pool, file, path, len, direct)?;
        Ok(PoolFile { core })
    }

    /// Returns the length of the file in bytes, as it was when it was opened.
    pub fn len(&self) -> u64 {
        self.core.len
    }

    /// Returns whether the file had no bytes when it was opened.
    pub fn is_empty(&self) -> bool {
        self.core.len == 0
    }

    /// Returns the number of pages; the last one may be shorter than the others.
    pub fn page_count(&self) -> u64 {
        self.core.page_count()
    }

    /// Returns whether the file is read with direct I/O. It is not where the file system has none, such as some of
    /// FUSE: then the page cache has a copy of each page, too.
    pub fn is_direct(&self) -> bool {
        self.core.direct
    }

    /// Returns a page, and reads it if it is not in memory.
    ///
    /// Cancel safe: a read that no one awaits any more is abandoned, and its frame is free after its last completion.
    ///
    /// A task that holds a page and waits for another one may wait indefinitely if all frames are held so. Take
    /// the second one with [`try_page`](PoolFile::try_page), or both with [`pages`](PoolFile::pages).
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` past the end, `UnexpectedEof` if the file has become shorter, the error of the read or
    /// of the check, and in a forked child. Everyone who waits for that read gets the error; the next call reads again.
    pub async fn page(&self, number: u64) -> io::Result<Page> {
        if let Some(guard) = self.core.hit(number) {
            budget::spend().await;
            return Ok(guard);
        }
        self.core.miss(self.core.number(number)?).await
    }

    /// Returns a page if it is in memory.
    #[inline(always)]
    pub fn try_page(&self, number: u64) -> Option<Page> {
        match self.core.hit(number) {
            Some(guard) => Some(guard),
            None => self.core.hit_late(number),
        }
    }

    /// Returns a page, and blocks the thread while it is read. Not for asynchronous tasks: they block their executor.
    /// On a core of Annulus's runtime and in a waker it waits indefinitely, because that thread ends the reads.
    ///
    /// # Errors
    ///
    /// As [`page`](PoolFile::page).
    pub fn page_blocking(&self, number: u64) -> io::Result<Page> {
        pollster::block_on(self.page(number))
    }

    /// Returns several pages, in their order. All that are not in memory are read at the same time.
    ///
    /// # Errors
    ///
    /// The first error, as [`page`](PoolFile::page); `InvalidInput` if the pool has fewer frames.
    pub async fn pages(&self, numbers: &[u64]) -> io::Result<Vec<Page>> {
        let asked = numbers.iter().map(|number| (self, *number));
        crate::batch::pages(asked).await
    }

    /// Calls `look` with the bytes of a page if it is in memory.
    #[inline(always)]
    pub fn with<R>(&self, number: u64, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        Some(self.try_page(number)?.look(look))
    }

    /// Copies the bytes from `offset` on into `buf`, and fills it.
    ///
    /// # Errors
    ///
    /// As [`page`](PoolFile::page); `UnexpectedEof` if the file ends before.
    pub async fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut at = 0;
        while at < buf.len() {
            let (page, from) = self.core.find(offset + at as u64)?;
            let bytes = match self.core.hit(u64::from(page)) {
                Some(guard) => guard,
                None => {
                    self.start(page, offset, buf.len());
                    self.core.miss(page).await?
                }
            };
            at += copy(&bytes, from, &mut buf[at..])?;
            drop(bytes);
            budget::spend().await;
        }
        Ok(())
    }

    /// Copies the bytes from `offset` on into `buf` if all of them are in memory, and returns whether. Otherwise `buf`
    /// may have a part of them.
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends before.
    #[inline]
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let mut at = 0;
        while at < buf.len() {
            let (page, from) = self.core.find(offset + at as u64)?;
            let Some(bytes) = self.try_page(u64::from(page)) else {
                return Ok(false);
            };
            at += copy(&bytes, from, &mut buf[at..])?;
        }
        Ok(true)
    }

    /// Returns a range of the file as a chain of its pages, without a copy: all of them are held until it is dropped.
    ///
    /// # Errors
    ///
    /// As [`pages`](PoolFile::pages); `UnexpectedEof` past the end.
    #[cfg(feature = "bytes")]
    pub async fn bytes(&self, range: Range<u64>) -> io::Result<crate::PageBytes> {
        if range.is_empty() {
            return Ok(crate::PageBytes::default());
        }
        let (_, skip) = self.core.find(range.start)?;
        self.core.find(range.end - 1)?;
        let numbers: Vec<u64> = self.core.pages_of(&range).map(u64::from).collect();
        let pages = self.pages(&numbers).await?;
        Ok(crate::PageBytes::new(
            pages,
            skip,
            (range.end - range.start) as usize,
        ))
    }

    /// Starts to read the pages of a range that are not in memory, and returns at once. Reads ahead take about an
    /// eighth of the frames at a time, and evict no page that is held. The first call for such a page ends its read.
    pub fn prefetch(&self, bytes: Range<u64>) {
        if self.core.pool.check_process().is_err() {
            return;
        }
        for page in self.core.pages_of(&bytes) {
            if !self.core.prefetch(page) {
                break;
            }
        }
    }

    /// Removes the pages of a range from memory; those with guards as soon as they have none. Those who wait for a read
    /// in flight get its bytes; later calls read again.
    pub fn invalidate(&self, bytes: Range<u64>) {
        if self.core.pool.check_process().is_ok() {
            let pages = self.core.pages_of(&bytes);
            self.core.remove(pages);
        }
    }

    /// Starts the reads of the pages after `page` that a range needs.
    fn start(&self, page: u32, offset: u64, bytes: usize) {
        let end = offset.saturating_add(bytes as u64);
        let others = page + 1..self.core.pages_of(&(offset..end)).end;
        for page in others.take(WINDOW) {
            if self.core.entry(page).frame().is_none() && !self.core.prefetch(page) {
                break;
            }
        }
    }

    pub(crate) fn core(&self) -> &Arc<FileCore> {
        &self.core
    }
}

impl fmt::Debug for PoolFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolFile")
            .field("path", &self.core.path)
            .field("len", &self.core.len)
            .finish_non_exhaustive()
    }
}

/// Copies from `from` on as many bytes as fit, and returns how many.
#[inline]
fn copy(page: &Page, from: usize, to: &mut [u8]) -> io::Result<usize> {
    let bytes = page.bytes()?;
    let bytes = &bytes[from..bytes.len().min(from + to.len())];
    to[..bytes.len()].copy_from_slice(bytes);
    Ok(bytes.len())
}
