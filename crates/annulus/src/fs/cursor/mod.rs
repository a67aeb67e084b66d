//! A cursor over a file: one position for reads and writes, behind the traits of Tokio and futures-io. It reads ahead
//! and writes behind.
//!
//! Each operation owns a handle of the file. So the cursor borrows nothing, and written data outlives it.

mod seek;
mod write_behind;

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::File;
use crate::buf::AlignedBuf;
use crate::byte_stream::{ByteStream, byte_stream_traits};
use crate::driver::coop_budget::Yields;
use crate::error::BufResult;
use crate::narrow::to_usize;
use crate::op::FAST_PATH_BYTES_MAX;
use write_behind::WriteBehind;

/// Size of the first read at a new position, bytes. Each following one is twice as long, because a program that reads
/// on is likely to go on.
const FIRST_BYTES: usize = 16 << 10;
/// Largest read of cached data, which is copied on the calling thread, bytes.
const CACHED_BYTES: usize = FAST_PATH_BYTES_MAX;
/// Default size up to which reads of other data grow, bytes.
const READ_AHEAD_BYTES: usize = 1 << 20;
/// Written bytes that wait for a write in progress, at most.
const GATHERED_BYTES: usize = 256 << 10;
/// Bytes that calls take, ready each time, before the task yields to others of its thread.
const TAKEN_MAX: usize = 1 << 20;
/// The bytes that a call counts for in addition, because short ones take time, too. Those of a read count when its
/// block is read.
const CALL_BYTES: usize = 256;
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
/// After 4,096 calls that were ready, or 1 MiB of writes, a call yields once to other tasks of its thread.
///
/// # Writes
///
/// A write copies its bytes and returns; the first one is started immediately. Bytes that are written meanwhile, up to
/// 256 KiB, follow when it is complete, without a further call. Writes are made one after another, in order. Reads and
/// seeks wait until all of them are complete.
///
/// If a write fails, the position moves back behind the last byte that was written, and later bytes are discarded.
/// Every following read, write and flush returns the error, up to a seek, which returns it as well, and does nothing
/// else. A program that ignores an error can so not take lost bytes for written ones. A flush or shutdown returns when
/// all bytes are with the kernel, or with the error. It does not make them durable; see [`File::sync_data`].
///
/// Dropping a future loses no bytes. Dropping the cursor completes its writes, without reporting errors. The end of the
/// program (`exit(3)`, and the return of `main`) waits for them, at most ten seconds.
///
/// On a file that is opened for appending, the position after a write is the end of the file. A file opened with
/// [`direct`](crate::OpenOptions::direct) can be read through a cursor, but writes to it fail unless they happen to be
/// aligned. A pipe or a terminal is read and written in order, without a position and without reading ahead; seeks fail
/// with `ESPIPE`.
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
    /// Written bytes on their way; `None` before the first write.
    behind: Option<Arc<WriteBehind>>,
    /// Largest read, bytes; at least 1.
    read_max: usize,
    /// The number of bytes that the caller asks for, if that is known. A block at a new position has as many, and one
    /// that follows at least as many.
    wanted: Option<usize>,
    /// Written bytes that wait for a write in progress, at most; at least 1.
    gathered_max: usize,
    /// Bytes that calls have taken since the task last yielded or waited.
    taken: usize,
    yields: Yields,
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
    /// The read has no offset.
    is_stream: bool,
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
            behind: None,
            taken: 0,
            yields: Yields::default(),
            read_max: usize::MAX,
            wanted: None,
            gathered_max: GATHERED_BYTES,
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
        let moved = self.behind().and_then(|behind| behind.lock().position());
        moved.unwrap_or(self.position)
    }

    /// Returns the bytes on their way. In a forked child there are none: the parent writes them.
    fn behind(&self) -> Option<&Arc<WriteBehind>> {
        self.behind.as_ref().filter(|behind| !behind.is_elsewhere())
    }

    #[inline]
    fn unread(&self) -> &[u8] {
        self.block.get(self.at..self.end).unwrap_or_default()
    }

    /// Discards what was read.
    pub(crate) fn discard_block(&mut self) {
        (self.at, self.end) = (0, 0);
        self.next = None;
        self.block_bytes = FIRST_BYTES;
    }

    /// Creates the read of a block at `offset`; `None` at the largest offset of all. Fails with `OutOfMemory` if memory
    /// for the block is short.
    fn read_block(&mut self, offset: u64, confirms: bool) -> io::Result<Option<BlockRead>> {
        let into_page = to_usize(offset % BLOCK_BYTES as u64);
        let wanted = self.wanted.map(|bytes| {
            let end = into_page + bytes.clamp(1, CACHED_BYTES);
            end.next_multiple_of(BLOCK_BYTES).min(CACHED_BYTES)
        });
        let block_bytes = match wanted {
            Some(wanted) if self.block_bytes == FIRST_BYTES => wanted,
            wanted => self.block_bytes.max(wanted.unwrap_or(0)),
        };
        let bytes = (block_bytes - into_page).min(self.read_max);
        let bytes = bytes.min(to_usize(i64::MAX as u64 - offset));
        if bytes == 0 {
            return Ok(None);
        }
        let buf = match self.spare.take() {
            Some(mut buf) if buf.capacity() >= bytes => {
                buf.set_len(bytes);
                buf
            }
            _ => match AlignedBuf::try_with_len(bytes, self.file.memory_align_bytes()) {
                Ok(buf) => buf,
                Err(_) if self.block_bytes > FIRST_BYTES => {
                    self.block_bytes = FIRST_BYTES;
                    return self.read_block(offset, confirms);
                }
                Err(error) => return Err(error),
            },
        };
        let file = self.file.clone();
        let is_stream = file.is_stream();
        Ok(Some(BlockRead {
            future: Box::pin(async move {
                match is_stream {
                    false => file.read_at(buf, offset).await,
                    true => file.read_stream(buf).await,
                }
            }),
            is_stream,
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
                    ready!(self.yields.poll(context));
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
                self.taken = 0;
                return Poll::Pending;
            };
            if result.is_err() && !read.is_stream && self.file.is_stream() {
                // The file has no offsets, which is found out only now. The next read uses none.
                continue;
            }
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
        let reads_ahead = self.read_ahead_bytes > 0 && !self.file.is_stream();
        if !missed || !is_whole || is_first || !reads_ahead {
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

    /// Yields once if calls have been ready for too long.
    #[inline]
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.taken < TAKEN_MAX {
            return Poll::Ready(());
        }
        self.taken = 0;
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sets the position. All writes are complete.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_position(&mut self, position: u64) {
        self.discard_block();
        self.position = position;
    }

    /// Sets the size up to which reads and gathered writes grow, bytes; at least 1.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_bytes_max(&mut self, bytes: usize) {
        (self.read_max, self.gathered_max) = (bytes, bytes);
    }

    /// Tells how many bytes the next reads ask for.
    #[cfg(feature = "tokio")]
    pub(crate) fn set_wanted(&mut self, bytes: usize) {
        self.wanted = Some(bytes);
    }

    /// Waits until no operation is in flight. Keeps the block that was read ahead.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_at_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_idle(context));
        if let Some(read) = &mut self.next
            && read.done.is_none()
        {
            read.done = Some(ready!(read.future.as_mut().poll(context)));
        }
        Poll::Ready(())
    }

    /// Returns whether no call has returned the error of a failed write yet.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_failed(&self) -> bool {
        (self.behind()).is_some_and(|behind| behind.lock().check().is_err())
    }

    /// Returns whether the file has no offsets, as far as that is known.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_stream(&self) -> bool {
        self.file.is_stream()
    }

    /// Returns the file. An operation in flight keeps a handle of it.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Waits until all writes are complete. Does not report errors.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_idle(&self, context: &Context<'_>) -> Poll<()> {
        (self.behind()).map_or(Poll::Ready(()), |behind| behind.poll_idle(context))
    }

    /// Forgets the error of a write that failed, and returns it.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.behind().and_then(|behind| behind.take_error())
    }

    /// Waits until all written bytes are with the kernel.
    pub(crate) fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(behind) = self.behind() else {
            return Poll::Ready(Ok(()));
        };
        ready!(behind.poll_idle(context));
        let mut state = behind.lock();
        let (moved_to, checked) = (state.take_position(), state.check());
        drop(state);
        self.position = moved_to.unwrap_or(self.position);
        Poll::Ready(checked)
    }
}

impl ByteStream for FileCursor {
    #[inline]
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        ready!(self.poll_turn(context));
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
        self.taken += CALL_BYTES;
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context));
        if self.seek.is_some() {
            ready!(self.poll_settled(context))?;
        }
        self.discard_block();
        let behind = match self.behind() {
            Some(behind) => Arc::clone(behind),
            None => Arc::clone(self.behind.insert(WriteBehind::new())),
        };
        let mut state = behind.lock();
        self.position = state.take_position().unwrap_or(self.position);
        state.check()?;
        let mut space = self.gathered_max.saturating_sub(state.gathered.len());
        if space == 0 {
            self.taken = 0;
            state.wait(context);
            return Poll::Pending;
        }
        let offset = self.position;
        for piece in pieces {
            let taken = &piece[..piece.len().min(space)];
            state.gathered.extend_from_slice(taken);
            space -= taken.len();
            self.position += taken.len() as u64;
        }
        behind.start(state, &self.file, offset);
        let taken = to_usize(self.position - offset);
        self.taken += taken + CALL_BYTES;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }

    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }
}

byte_stream_traits!([] FileCursor);

impl fmt::Debug for FileCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCursor")
            .field("file", &self.file)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
