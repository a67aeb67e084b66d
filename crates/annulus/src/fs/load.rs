//! Loading: a large range of a file into memory of its own, by many reads side by side. On a direct
//! file the device writes every byte where it stays: nothing is copied, whatever the offset.

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

/// Bytes of one read: large enough to be cheap, small enough that several keep a device busy.
const CHUNK_BYTES: usize = 1 << 20;
/// The most bytes of one read; the kernel's own bound is 2 GiB less a page.
const CHUNK_BYTES_MAX: usize = 1 << 30;
/// Reads in flight: what the queue of a fast device takes.
const IN_FLIGHT: usize = 32;

/// A range of a file on its way into memory; made by [`File::load`] and [`File::load_into`], and
/// begun when it is awaited. If it is dropped, what is in flight is the engine's, soundly.
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
    /// Loads exactly `bytes` bytes, from `offset` on, into new memory: model weights, an index, a
    /// range of any size. `bytes` of a whole file are in its [`metadata`](File::metadata).
    ///
    /// Meant for files opened with `O_DIRECT`: the device then fills the memory, with many reads in
    /// flight. The offset need not be aligned: the first byte comes to lie as far off its page in
    /// memory as it is in the file. On other files each read is a copy out of the page cache.
    ///
    /// Answers with a [`Region`]. `?` turns its error into an `io::Error`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file ends before; the kernel's, errno kept; `OutOfMemory` or `ENOMEM`
    /// if there can be no such range of memory.
    pub fn load(&self, offset: u64, bytes: usize) -> Load<'_> {
        let pages = HugePages::default();
        Load::new(self, offset, Into::New { bytes, pages })
    }

    /// The same into memory that there is: fills all of `region`. Without a copy if the region begins
    /// as far off a multiple of 4,096 as `offset` does: a new one at offset 0, or one that was loaded
    /// from such an offset before.
    ///
    /// # Errors
    ///
    /// As [`load`](File::load). The region comes back with the error, with a part of its bytes
    /// replaced, unless the engine's ring failed under it.
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

    /// Bytes of one read; 1 MiB by default, at most 1 GiB, rounded up to what the file needs.
    pub fn chunk_bytes(mut self, bytes: usize) -> Self {
        self.chunk_bytes = bytes.clamp(1, CHUNK_BYTES_MAX);
        self
    }

    /// Reads in flight; 32 by default, at least 1. The engine's own limits hold besides.
    pub fn in_flight(mut self, reads: usize) -> Self {
        self.in_flight = reads.max(1);
        self
    }

    /// Which pages new memory is to be made of; transparent huge pages by default.
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

/// A load under way.
struct Run<'a> {
    load: Load<'a>,
    batch: Batch<'a, ReadAt<Piece>, Part>,
    pieces: Pieces,
    /// The next read begins here, and the last one ends here: offsets in the memory.
    next: usize,
    to: usize,
    chunk_bytes: usize,
    loaded: u64,
    /// The file ended here: bytes of the region.
    ended: Option<usize>,
    error: Option<io::Error>,
}

/// One read: where in the memory.
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
                // Rounded out to what the file needs: there is memory around the region, as a rule.
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
            let target = file.target(piece.stable_mut_ptr().addr(), bytes, offset);
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

    /// A read has completed with `bytes`.
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
        // Takes the last pieces along, if the ring failed under them.
        drop(batch);
        match (pieces.join(), error, end) {
            (Some(region), None, None) => Ok(region),
            (Some(region), None, Some(bytes)) => {
                let want = region.len();
                Err(ended(bytes, want, region))
            }
            (region, error, _) => {
                let lost = || io::Error::other("a part of the memory is still with the kernel");
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
