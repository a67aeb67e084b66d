//! A cursor over a file: one position for reads and writes, behind the traits of Tokio and futures-io. It reads ahead
//! and writes behind.
//!
//! Each operation owns a handle of the file. So the cursor borrows nothing, and written data outlives it.

mod seek;

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use super::File;
use super::merge::same_error;
use crate::buf::{AlignedBuf, IoBuf};
use crate::byte_stream::{ByteStream, byte_stream_traits};
use crate::driver::coop_budget;
use crate::error::BufResult;
use crate::narrow::to_usize;
use crate::op::FAST_PATH_BYTES_MAX;

/// Size of the first read at a new position, bytes. Each following one is twice as long, because a program that reads
/// on is likely to go on.
const FIRST_BYTES: usize = 16 << 10;
/// Largest read of cached data, which is copied on the calling thread, bytes.
const CACHED_BYTES: usize = FAST_PATH_BYTES_MAX;
/// Default size up to which reads of other data grow, bytes.
const READ_AHEAD_BYTES: usize = 1 << 20;
/// Written bytes that wait for a write in progress.
const GATHERED_BYTES: usize = 256 << 10;
/// Blocks end at multiples of this, so that direct reads are aligned, bytes. A power of two.
const BLOCK_BYTES: usize = 4 << 10;

/// A position in a file, for code that reads and writes streams. Made by [`File::cursor`].
///
/// Implements `AsyncRead`, `AsyncBufRead`, `AsyncSeek` and `AsyncWrite`: those of Tokio (feature `tokio` or `tokio-io`)
/// and those of futures-io (feature `futures`). Reads and writes share the position. Several cursors over one file have
/// a position each.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("log");
/// use std::io::SeekFrom;
/// use tokio::io::{AsyncBufReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// let engine = annulus::Engine::new()?;
/// let file = engine.open_with(annulus::OpenOptions::new().read(true).write(true).create(true), &path).await?;
/// let mut log = file.cursor();
/// log.write_all(b"one line\nand another\n").await?;
/// log.seek(SeekFrom::Start(4)).await?;
/// let mut lines = log.lines();
/// assert_eq!(lines.next_line().await?.as_deref(), Some("line"));
/// assert_eq!(lines.next_line().await?.as_deref(), Some("and another"));
/// assert_eq!(lines.next_line().await?, None);
/// # Ok(()) }) }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
///
/// # Reads
///
/// A read fills a block, from which following reads are served. The first block at a new position has 16 KiB, and each
/// further one is twice as long as the one before. Blocks of data in the page cache are copied on the calling thread,
/// and have at most 128 KiB. Blocks of other data grow up to [`with_read_ahead`](FileCursor::with_read_ahead), 1 MiB by
/// default, and while one is used, the next one is read.
///
/// A block shows the file as it was when the block was read. A write or a seek discards what was read ahead; only a
/// relative seek (`SeekFrom::Current`) within the block keeps it.
///
/// # Writes
///
/// A write copies its bytes and returns; the first one is started immediately. Bytes that are written meanwhile, up to
/// 256 KiB, follow with the next call. Writes are made one after another, in order. Reads and seeks wait until all of
/// them are complete.
///
/// If a write fails, the position moves back behind the last byte that was written, and later bytes are discarded.
/// Every following read, write and flush returns the error, up to a seek, which returns it as well, and does nothing
/// else. A program that ignores an error can so not take lost bytes for written ones. A flush or shutdown returns when
/// all bytes are with the kernel, or with the error. It does not make them durable; see [`File::sync_data`].
///
/// Dropping a future loses no bytes. Dropping the cursor completes its writes, without reporting errors; the end of the
/// program does not wait for that.
///
/// On a file that is opened for appending, the position after a write is the end of the file. A file opened with
/// [`direct`](crate::OpenOptions::direct) can be read through a cursor, but writes to it fail unless they happen to be
/// aligned.
pub struct FileCursor {
    file: File,
    /// The offset of the next byte that is read or written.
    position: u64,
    /// The block, with unread bytes from `at` to `end`. The byte at `at` has the offset `position`.
    block: AlignedBuf,
    at: usize,
    end: usize,
    /// The next block, which starts where this one ends.
    next: Option<BlockRead>,
    /// Size of the block after that, bytes.
    block_bytes: usize,
    read_ahead_bytes: usize,
    /// Memory for a block.
    spare: Option<AlignedBuf>,
    /// The write in progress.
    write: Option<OwnFuture<Written>>,
    /// Bytes that follow it, up to `position`.
    gathered: Vec<u8>,
    /// Memory to gather into.
    spare_gathered: Vec<u8>,
    /// The error of a write whose bytes are lost, until a seek has reported it.
    failed: Option<io::Error>,
    /// A seek that has begun.
    seek: Option<SeekFrom>,
    /// The query for the size of the file, for a seek from the end.
    size: Option<OwnFuture<io::Result<u64>>>,
}

/// The future of an operation that owns its file.
type OwnFuture<T> = Pin<Box<dyn Future<Output = T> + Send + Sync>>;

/// The read of a block.
struct BlockRead {
    future: OwnFuture<BufResult<usize, AlignedBuf>>,
    /// The result, if it was read ahead and is complete.
    done: Option<BufResult<usize, AlignedBuf>>,
    /// The number of bytes requested.
    bytes: usize,
    /// The read went to a driver.
    missed: bool,
    /// The read was started to confirm the end of the file.
    confirms: bool,
}

/// The result of a write.
struct Written {
    /// The buffer, cleared; a new one after an error.
    buf: Vec<u8>,
    /// The offset behind the last byte that was written.
    end: u64,
    result: io::Result<()>,
}

impl File {
    /// Returns a new cursor at the start of the file.
    ///
    /// Two cursors read different parts of one file:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// # #[cfg(feature = "tokio")] {
    /// use std::io::SeekFrom;
    /// use tokio::io::{AsyncReadExt, AsyncSeekExt};
    ///
    /// let file = engine.open(&path).await?;
    /// let (mut one, mut other) = (file.cursor(), file.cursor());
    /// other.seek(SeekFrom::End(-2)).await?;
    /// assert_eq!((one.read_u8().await?, other.read_u8().await?), (b'0', b'8'));
    /// assert_eq!((one.position(), other.position()), (1, 9));
    /// # }
    /// # Ok(()) }) }
    /// ```
    pub fn cursor(&self) -> FileCursor {
        FileCursor {
            file: self.clone(),
            position: 0,
            block: AlignedBuf::with_len(0, 1),
            at: 0,
            end: 0,
            next: None,
            block_bytes: FIRST_BYTES,
            read_ahead_bytes: READ_AHEAD_BYTES,
            spare: None,
            write: None,
            gathered: Vec::new(),
            spare_gathered: Vec::new(),
            failed: None,
            seek: None,
            size: None,
        }
    }
}

impl FileCursor {
    /// Sets the size up to which blocks of data outside the page cache grow; 1 MiB by default. The cursor has memory
    /// for two of them. 0 turns the reading ahead off, and limits blocks to 128 KiB.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "one\ntwo\n")?;
    /// # #[cfg(feature = "tokio")] {
    /// use tokio::io::AsyncBufReadExt;
    ///
    /// // Thousands of open cursors: without reading ahead, each has a smaller block.
    /// let mut cursor = engine.open(&path).await?.cursor().with_read_ahead(0);
    /// let mut line = String::new();
    /// cursor.read_line(&mut line).await?;
    /// assert_eq!(line, "one\n");
    /// # }
    /// # Ok(()) }) }
    /// ```
    #[must_use]
    pub fn with_read_ahead(mut self, bytes: usize) -> FileCursor {
        self.read_ahead_bytes = bytes;
        self
    }

    /// Returns the file.
    ///
    /// Positional reads beside the stream do not move the cursor:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// # #[cfg(feature = "tokio")] {
    /// use tokio::io::AsyncReadExt;
    ///
    /// let mut cursor = engine.open(&path).await?.cursor();
    /// assert_eq!(cursor.read_u8().await?, b'0');
    /// let last = cursor.get_ref().read_exact_at(vec![0; 1], 9).await?;
    /// assert_eq!(last, b"9");
    /// assert_eq!(cursor.read_u8().await?, b'1');
    /// # }
    /// # Ok(()) }) }
    /// ```
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Returns the offset of the next byte that is read or written. It is exact after a flush, because a failed write
    /// moves it back.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # #[cfg(feature = "tokio")] {
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let mut cursor = engine.create(dir.path().join("data")).await?.cursor();
    /// cursor.write_all(b"hello").await?; // copied, and being written
    /// cursor.flush().await?; // an error of the write would show here
    /// assert_eq!(cursor.position(), 5);
    /// cursor.get_ref().sync_data().await?; // a flush does not make it durable
    /// # }
    /// # Ok(()) }) }
    /// ```
    pub fn position(&self) -> u64 {
        self.position
    }

    #[inline]
    fn unread(&self) -> &[u8] {
        self.block.get(self.at..self.end).unwrap_or_default()
    }

    /// Discards what was read.
    fn discard_block(&mut self) {
        (self.at, self.end) = (0, 0);
        self.next = None;
        self.block_bytes = FIRST_BYTES;
    }

    /// Creates the read of a block at `offset`; `None` at the largest offset of all. Fails with `OutOfMemory` if memory
    /// for the block is short.
    fn read_block(&mut self, offset: u64, confirms: bool) -> io::Result<Option<BlockRead>> {
        let to_boundary = self.block_bytes - to_usize(offset % BLOCK_BYTES as u64);
        let bytes = to_boundary.min(to_usize(i64::MAX as u64 - offset));
        if bytes == 0 {
            return Ok(None);
        }
        let buf = match self.spare.take() {
            Some(mut buf) if buf.capacity() >= bytes => {
                buf.set_len(bytes);
                buf
            }
            _ => {
                let alignment = self.file.direct_alignment();
                let align_bytes = alignment.map_or(1, |alignment| alignment.memory_bytes);
                match AlignedBuf::try_with_len(bytes, align_bytes) {
                    Ok(buf) => buf,
                    Err(_) if self.block_bytes > FIRST_BYTES => {
                        self.block_bytes = FIRST_BYTES;
                        return self.read_block(offset, confirms);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let file = self.file.clone();
        Ok(Some(BlockRead {
            future: Box::pin(async move { file.read_at(buf, offset).await }),
            done: None,
            bytes,
            missed: false,
            confirms,
        }))
    }

    /// Reads the next block. It is empty at the end of the file.
    fn poll_block(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut confirms = false;
        loop {
            let (mut read, is_recent) = match self.next.take() {
                Some(read) => {
                    let confirms = read.confirms;
                    (read, confirms)
                }
                None => {
                    if !coop_budget::may_go_on() {
                        coop_budget::reset();
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    match self.read_block(self.position, confirms)? {
                        Some(read) => (read, true),
                        None => return Poll::Ready(Ok(())),
                    }
                }
            };
            let polled = match read.done.take() {
                Some(done) => Poll::Ready(done),
                None => read.future.as_mut().poll(context),
            };
            let Poll::Ready(result) = polled else {
                read.missed = true;
                self.next = Some(read);
                return Poll::Pending;
            };
            let (bytes, block) = result?;
            if bytes == 0 && !is_recent {
                // The file may have grown since this read was submitted.
                self.spare = Some(block);
                confirms = true;
                continue;
            }
            self.spare = Some(std::mem::replace(&mut self.block, block));
            (self.at, self.end) = (0, bytes);
            self.adapt(read.missed, bytes == read.bytes);
            return Poll::Ready(Ok(()));
        }
    }

    /// Chooses the size of the next block, and reads it ahead unless data is in the page cache. `missed` and `is_whole`
    /// describe the last read.
    fn adapt(&mut self, missed: bool, is_whole: bool) {
        let is_first = self.block_bytes == FIRST_BYTES;
        let bytes_max = if missed {
            self.read_ahead_bytes.max(CACHED_BYTES)
        } else {
            CACHED_BYTES
        };
        self.block_bytes = self.block_bytes.saturating_mul(2).min(bytes_max);
        if !missed || !is_whole || is_first || self.read_ahead_bytes == 0 {
            return;
        }
        let offset = self.position + self.end as u64;
        // If memory is short, the next call reports it.
        self.next = self.read_block(offset, false).unwrap_or(None);
        if let Some(read) = &mut self.next {
            // Submits the read. Its completion wakes no task; the call that needs the block polls again.
            match (read.future.as_mut()).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(done) => read.done = Some(done),
                Poll::Pending => read.missed = true,
            }
        }
    }

    /// Returns the error of a write that failed since the last seek.
    fn check_written(&self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(same_error(error)),
            None => Ok(()),
        }
    }

    /// Starts to write the gathered bytes.
    fn start_write(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let spare = std::mem::take(&mut self.spare_gathered);
        let buf = std::mem::replace(&mut self.gathered, spare);
        let offset = self.position - buf.len() as u64;
        self.write = Some(Box::pin(write_all(self.file.clone(), buf, offset)));
        // Submits the write. Its completion wakes no task; the call that needs its result polls again.
        let _ = self.poll_write_in_progress(&mut Context::from_waker(Waker::noop()));
    }

    fn poll_write_in_progress(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(write) = &mut self.write else {
            return Poll::Ready(());
        };
        let Written { buf, end, result } = ready!(write.as_mut().poll(context));
        self.write = None;
        self.spare_gathered = buf;
        if result.is_err() {
            self.gathered.clear();
        }
        self.failed = result.err();
        if self.failed.is_some() || self.file.fd.appends() {
            self.position = end + self.gathered.len() as u64;
        }
        Poll::Ready(())
    }

    /// Waits until all written bytes are with the kernel.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_write_in_progress(context));
            self.check_written()?;
            if self.gathered.is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.start_write();
        }
    }
}

/// Writes all of `buf` at `offset`, and counts the bytes, which a failed `write_all_at` does not.
async fn write_all(file: File, mut buf: Vec<u8>, offset: u64) -> Written {
    let mut end = offset;
    let mut written = 0;
    let mut result = Ok(());
    while written < buf.len() && result.is_ok() {
        match file.write_at(buf.subslice(written..), end).await {
            Ok((0, part)) => {
                buf = part.into_inner();
                result = Err(io::ErrorKind::WriteZero.into());
            }
            Ok((bytes, part)) => {
                buf = part.into_inner();
                written += bytes;
                end = offset + written as u64;
            }
            Err(error) => {
                buf = Vec::new();
                result = Err(error.into());
            }
        }
    }
    if file.fd.appends() {
        match file.metadata().await {
            Ok(metadata) => end = metadata.len(),
            Err(error) => result = result.and(Err(error)),
        }
    }
    buf.clear();
    Written { buf, end, result }
}

impl ByteStream for FileCursor {
    #[inline]
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.unread().is_empty() || self.seek.is_some() {
            ready!(self.poll_settled(context))?;
            if self.unread().is_empty() {
                ready!(self.poll_block(context))?;
            }
        }
        Poll::Ready(Ok(self.unread()))
    }

    #[inline]
    fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.end - self.at);
        self.at += bytes;
        self.position += bytes as u64;
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.seek.is_some() {
            ready!(self.poll_settled(context))?;
        }
        self.discard_block();
        if self.poll_write_in_progress(context).is_ready() {
            if self.failed.is_none() {
                self.start_write();
            }
            self.check_written()?;
        }
        let mut space = GATHERED_BYTES.saturating_sub(self.gathered.len());
        if space == 0 {
            return Poll::Pending;
        }
        let mut written = 0;
        for piece in pieces {
            let taken = &piece[..piece.len().min(space)];
            self.gathered.extend_from_slice(taken);
            space -= taken.len();
            written += taken.len();
        }
        self.position += written as u64;
        if self.write.is_none() {
            self.start_write();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }
}

byte_stream_traits!([] FileCursor);

/// Completes the writes.
impl Drop for FileCursor {
    fn drop(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        let write = self.write.take();
        if write.is_none() && gathered.is_empty() {
            return;
        }
        let offset = self.position - gathered.len() as u64;
        let file = self.file.clone();
        let rest = async move {
            if let Some(write) = write
                && write.await.result.is_err()
            {
                return;
            }
            write_all(file, gathered, offset).await;
        };
        // No executor runs this task: the thread that completes a write also starts the next.
        let run = |runnable: async_task::Runnable| _ = runnable.run();
        let (runnable, task) = async_task::spawn(rest, run);
        task.detach();
        runnable.schedule();
    }
}

impl fmt::Debug for FileCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCursor")
            .field("file", &self.file)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
