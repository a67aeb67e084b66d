//! Loads a large range of a file into new memory with parallel reads. On a file opened with `O_DIRECT`, the device
//! writes every byte to its final place: nothing is copied, whatever the offset.

use std::fmt;
use std::future::{IntoFuture, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{File, check_range};
use crate::buf::{IoBufMut, Piece, Pieces, Region};
use crate::driver::many::Batch;
use crate::error::{BufError, WholeResult};
use crate::narrow::to_usize;
use crate::op::{Op, ReadAt, Until, ended};
use crate::sys::engine_error::error_of;
use crate::sys::mapping::{HugePages, PAGE_BYTES};

/// The size of one read: large enough to be cheap, small enough that several keep a device busy.
const CHUNK_BYTES: usize = 1 << 20;
/// The maximum size of one read; the kernel's own limit is 2 GiB less a page.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// The number of reads in flight: as many as the queue of a fast device takes.
const IN_FLIGHT: usize = 32;

/// A load of a range of a file into memory, returned by [`File::load`] and [`File::load_into`]. Awaiting it starts the
/// reads. If the future is dropped, the engine keeps the memory that the kernel may still write, and frees it.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
/// let file = engine.open(&path).await?;
/// let bytes = file.metadata().await?.len() as usize;
/// let mut loaded = 0;
/// let region = file.load(0, bytes).chunk_bytes(16 << 10).progress(|bytes| loaded = bytes).await?;
/// assert_eq!((region.len(), loaded), (100_000, 100_000));
/// # Ok(()) }) }
/// ```
#[must_use = "nothing is loaded until this is awaited"]
pub struct Load<'a> {
    file: &'a File,
    offset: u64,
    into: Into,
    chunk_bytes: usize,
    in_flight: usize,
    progress: Option<Box<dyn FnMut(u64) + Send + 'a>>,
}

enum Into {
    New { bytes: usize, pages: HugePages },
    Old(Region),
}

impl File {
    /// Loads exactly `bytes` bytes, starting at `offset`, into new memory: model weights, an index, or a range of any
    /// size. To load a whole file, take the length from its [`metadata`](File::metadata), or use
    /// [`Engine::load_file`](crate::Engine::load_file). Linux only.
    ///
    /// Meant for files opened with `O_DIRECT`: the device then fills the memory, with many reads in flight. The offset
    /// need not be aligned: the first byte has the same offset within its memory page as in the file. On other files,
    /// each read is a copy from the page cache.
    ///
    /// Returns a [`Region`]. `?` converts the error into an `io::Error`.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// let file = engine.open(&path).await?;
    /// let middle = file.load(3, 4).await?; // offset and length of any alignment
    /// assert_eq!(&middle[..], b"3456");
    /// let error = file.load(3, 100).await.unwrap_err(); // the length must be in the file
    /// assert_eq!(error.error().kind(), std::io::ErrorKind::UnexpectedEof);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends first, with any error of `read(2)`, unchanged, and with
    /// `OutOfMemory` or `ENOMEM` if the memory cannot be allocated.
    pub fn load(&self, offset: u64, bytes: usize) -> Load<'_> {
        let pages = HugePages::default();
        Load::new(self, offset, Into::New { bytes, pages })
    }

    /// Loads into an existing region, and fills all of it. Linux only.
    ///
    /// Avoids a copy if the region's address and `offset` have the same remainder modulo 4,096. That holds for a new
    /// region with offset 0, and for a region that was loaded from such an offset before.
    ///
    /// Loads one part after another into the same memory:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, [[1; 4096], [2; 4096]].concat())?;
    /// let file = engine.open(&path).await?;
    /// let region = file.load(0, 4096).await?;
    /// assert_eq!(region[0], 1);
    /// let region = file.load_into(region, 4096).await?; // no new allocation
    /// assert_eq!(region[0], 2);
    /// let error = file.load_into(region, 8192).await.unwrap_err();
    /// assert!(error.into_buf().is_some()); // the memory comes back with an error
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`load`](File::load). The error contains the region, with a part of its bytes replaced, unless the
    /// engine's ring failed during the load.
    pub fn load_into(&self, region: Region, offset: u64) -> Load<'_> {
        Load::new(self, offset, Into::Old(region))
    }
}

impl<'a> Load<'a> {
    fn new(file: &'a File, offset: u64, into: Into) -> Load<'a> {
        Load {
            file,
            offset,
            into,
            chunk_bytes: CHUNK_BYTES,
            in_flight: IN_FLIGHT,
            progress: None,
        }
    }

    /// Sets the size of one read; 1 MiB by default, at most 1 GiB, rounded up to the file's alignment.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes.clamp(1, CHUNK_BYTES_MAX);
        self
    }

    /// Sets the number of reads in flight; 32 by default, at least 1. The engine's own limits also apply.
    ///
    /// A load that leaves the device to others:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
    /// let file = engine.open(&path).await?;
    /// let region = file.load(0, 100_000).chunk_bytes(64 << 10).in_flight(2).await?; // 128 KiB at a time
    /// assert_eq!(region.len(), 100_000);
    /// # Ok(()) }) }
    /// ```
    pub fn in_flight(mut self, reads: usize) -> Self {
        self.in_flight = reads.max(1);
        self
    }

    /// Sets the page size of new memory; transparent huge pages by default.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        if let Into::New { pages, .. } = &mut self.into {
            *pages = huge_pages;
        }
        self
    }

    /// Calls `on_progress` after each read with the number of bytes loaded so far.
    pub fn progress(mut self, on_progress: impl FnMut(u64) + Send + 'a) -> Self {
        self.progress = Some(Box::new(on_progress));
        self
    }

    fn region(&mut self) -> io::Result<Region> {
        let Into::New { bytes, pages } = self.into else {
            let taken = Into::New {
                bytes: 0,
                pages: HugePages::SystemDefault,
            };
            match std::mem::replace(&mut self.into, taken) {
                Into::Old(region) => return Ok(region),
                Into::New { .. } => return Err(io::ErrorKind::InvalidInput.into()),
            }
        };
        check_range(self.offset, bytes)?;
        let off = self.offset % PAGE_BYTES as u64;
        Region::with_start(bytes, to_usize(off), pages)
    }

    async fn run(mut self) -> WholeResult<Region> {
        let region = match self.region() {
            Ok(region) => region,
            Err(error) => return Err(BufError::new(error, None)),
        };
        if let Err(error) = check_range(self.offset, region.len()) {
            return Err(BufError::new(error, Some(region)));
        }
        if region.is_empty() {
            return Ok(region);
        }
        let mut run = Run::new(self, region);
        poll_fn(|context| run.poll(context)).await;
        run.finish()
    }
}

/// A load in progress.
struct Run<'a> {
    load: Load<'a>,
    batch: Batch<'a, ReadAt<Piece>, Part>,
    pieces: Pieces,
    /// The start of the next read, and the end of the last one, as offsets in the memory.
    next: usize,
    to: usize,
    chunk_bytes: usize,
    loaded: u64,
    /// The end of the file, in bytes of the region, once a read has reached it.
    ended: Option<usize>,
    error: Option<io::Error>,
}

/// The part of the memory that one read fills.
#[derive(Clone, Copy)]
struct Part {
    from: usize,
    bytes: usize,
}

impl<'a> Run<'a> {
    fn new(load: Load<'a>, region: Region) -> Run<'a> {
        let pieces = region.take_apart();
        let visible = pieces.visible();
        let (address, capacity) = pieces.memory();
        let (mut next, mut to, mut unit) = (visible.start, visible.end, 1);
        if let Some(direct) = load.file.direct {
            unit = direct.offset_bytes as usize;
            let skip = to_usize(load.offset % unit as u64);
            let first = visible.start.checked_sub(skip);
            let fits =
                |&first: &usize| (address + first).is_multiple_of(direct.memory_bytes as usize);
            if let Some(first) = first.filter(fits) {
                // Rounds out to the file's alignment; regions usually have memory before and after.
                next = first;
                let rounded = first + (visible.end - first).next_multiple_of(unit);
                to = if rounded <= capacity { rounded } else { to };
            }
        }
        Run {
            batch: Batch::new(&load.file.submitter),
            chunk_bytes: load.chunk_bytes.next_multiple_of(unit),
            load,
            pieces,
            next,
            to,
            loaded: 0,
            ended: None,
            error: None,
        }
    }

    fn refill(&mut self) {
        while self.error.is_none()
            && self.ended.is_none()
            && self.batch.outstanding() < self.load.in_flight
        {
            let from = self.next;
            let bytes = self.chunk_bytes.min(self.to.saturating_sub(from));
            let cut = self.pieces.cut(from, bytes).filter(|_| bytes > 0);
            let Some(mut piece) = cut else { break };
            self.next = from + bytes;
            // A direct read may begin before the region, at the start of a block.
            let offset = (self.load.offset + from as u64) - self.pieces.visible().start as u64;
            let file = self.load.file;
            let target = match file.target(piece.stable_mut_ptr().addr(), bytes, offset) {
                Ok(target) => target,
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            };
            let read = ReadAt::new(file.fd.clone(), piece, offset, target, Until::FullOrEnd);
            self.batch.add(read.past_the_cache(), Part { from, bytes });
            self.batch.flush_chunk();
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            self.refill();
            match self.batch.poll_next(context) {
                Poll::Ready(Some((part, op, res))) => match op.complete(res) {
                    Ok((bytes, _)) => self.note(part, bytes),
                    Err(error) => self.error = Some(error.into()),
                },
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {
                    let Some(errno) = self.batch.failed() else {
                        return Poll::Pending;
                    };
                    self.batch.abandon(errno);
                    self.error = Some(error_of(errno));
                }
            }
        }
    }

    /// Records a read that completed with `bytes`.
    fn note(&mut self, part: Part, bytes: usize) {
        let visible = self.pieces.visible();
        let end = (part.from + part.bytes).min(visible.end);
        let loaded_end = (part.from + bytes).min(end);
        if loaded_end < end {
            let ended = loaded_end.saturating_sub(visible.start);
            self.ended = Some(self.ended.map_or(ended, |before| before.min(ended)));
        }
        self.loaded += loaded_end.saturating_sub(part.from.max(visible.start)) as u64;
        if let Some(progress) = &mut self.load.progress {
            progress(self.loaded);
        }
    }

    fn finish(self) -> WholeResult<Region> {
        let Run {
            batch,
            pieces,
            ended: end,
            error,
            ..
        } = self;
        // Drops the last pieces too, if the ring failed during the load.
        drop(batch);
        match (pieces.join(), error, end) {
            (Some(region), None, None) => Ok(region),
            (Some(region), None, Some(bytes)) => {
                let want = region.len();
                Err(ended(bytes, want, region))
            }
            (region, error, _) => {
                let lost = || io::Error::other("the kernel still uses a part of the memory");
                Err(BufError::new(error.unwrap_or_else(lost), region))
            }
        }
    }
}

impl<'a> IntoFuture for Load<'a> {
    type Output = WholeResult<Region>;
    type IntoFuture = Pin<Box<dyn Future<Output = WholeResult<Region>> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl fmt::Debug for Load<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load")
            .field("offset", &self.offset)
            .field("chunk_bytes", &self.chunk_bytes)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
