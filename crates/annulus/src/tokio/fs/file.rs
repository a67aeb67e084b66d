//! An open file with a position.

use std::fmt;
use std::fs::{File as StdFile, Metadata, Permissions};
use std::future::poll_fn;
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::SystemTime;

use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use super::open_options::OpenOptions;
use super::process::of_process;
use super::shared_position::{Shared, Turn, lock};
use crate::buf::{IoBuf, IoBufMut};
use crate::byte_stream::{self, ByteStream};
use crate::driver::{Operation, coop_budget};
use crate::error::{BufResult, WholeResult};
use crate::fs::{self, FileCursor, FileTimes, ReadMany};
use crate::op::{ReadAt, WriteAt};

/// Default size up to which reads and writes grow, bytes; Tokio's.
const BUF_BYTES_MAX: usize = 2 << 20;
/// True if reads and writes at offsets move the position of the descriptor.
const OPERATIONS_MOVE_IT: bool = cfg!(windows);

/// An open file with a position. Implements `AsyncRead`, `AsyncWrite` and `AsyncSeek` of Tokio.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data");
/// use annulus::tokio::fs::File;
/// use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
///
/// let mut file = File::create(&path).await?;
/// file.write_all(b"one\ntwo\n").await?;
/// file.flush().await?; // the bytes are with the kernel; without it, an error would be lost
///
/// let mut lines = BufReader::new(File::open(&path).await?).lines();
/// assert_eq!(lines.next_line().await?.as_deref(), Some("one"));
/// # Ok(()) }
/// ```
///
/// # Reads and writes
///
/// They are those of a [`FileCursor`]: reads fill a block, from which further reads are served, and writes take their
/// bytes and return. [`set_max_buf_size`](File::set_max_buf_size) limits both.
///
/// The next call after a failed write returns its error: a write, flush, shutdown, read, seek,
/// [`sync_all`](File::sync_all), [`sync_data`](File::sync_data) or [`set_len`](File::set_len). Bytes that were taken
/// after those of the failed write are lost with them, and the position is behind the last byte that was written. The
/// file can be used further.
///
/// Dropping a future loses no bytes that a write has taken, and neither does dropping the file. Errors of writes are
/// lost if no call follows; so call `flush` before.
///
/// # Positional reads and writes
///
/// [`read_at`](File::read_at) and the like take their offset, and leave the position alone. They need no `&mut`, so
/// tasks can share a file in an `Arc`. They see bytes that the stream has written only after a flush.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16_384])?;
/// let file = annulus::tokio::fs::File::open(&path).await?;
/// let page = file.read_exact_at(vec![0; 4096], 8192).await?; // the buffer moves in and comes back
/// let pages = file.read_many_at((0..4).map(|page| (vec![0; 4096], page * 4096))).await;
/// # assert_eq!((page[0], pages.len()), (7, 4));
/// # Ok(()) }
/// ```
///
/// # The descriptor
///
/// The position is the file's, not that of the descriptor. [`into_std`](File::into_std), `as_fd` and `as_raw_fd` move
/// the descriptor to it, so that a program or child that goes on with the descriptor finds its place.
pub struct File {
    cursor: FileCursor,
    /// The position that clones share.
    shared: OnceLock<Arc<Mutex<Shared>>>,
    /// The number of changes that the cursor has seen.
    seen: u64,
    /// The last known position of the descriptor.
    descriptor_at: AtomicU64,
    /// A block that was read ahead may differ from the file.
    is_stale: AtomicBool,
    max_buf_size: usize,
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`ENOENT`).
    pub async fn open(path: impl AsRef<Path>) -> io::Result<File> {
        File::options().read(true).open(path).await
    }

    /// Opens a file for writing. Creates it if it does not exist, and truncates it if it does.
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged.
    pub async fn create(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        options.open(path).await
    }

    /// Creates a file for reading and writing, and fails if it exists.
    ///
    /// # Errors
    ///
    /// Fails with any error of `open(2)`, unchanged (`EEXIST`).
    pub async fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        options.open(path).await
    }

    /// Returns options with nothing set.
    #[must_use]
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes over a file of std, with its position.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// # let mut temporary = tempfile::tempfile()?;
    /// use std::io::{Seek, Write};
    /// use tokio::io::AsyncReadExt;
    ///
    /// temporary.write_all(b"head body")?;
    /// temporary.seek(std::io::SeekFrom::Start(5))?;
    /// let mut file = annulus::tokio::fs::File::from_std(temporary);
    /// let mut text = String::new();
    /// file.read_to_string(&mut text).await?;
    /// assert_eq!(text, "body");
    /// # Ok(()) }
    /// ```
    pub fn from_std(std: StdFile) -> File {
        // A pipe has none.
        let position = (&std).stream_position().unwrap_or(0);
        let file = of_process().adopt_anyway(std);
        File::at(file, position)
    }

    /// Takes over a file that has just been opened.
    pub(super) fn at_start(file: fs::File) -> File {
        File::at(file, 0)
    }

    fn at(file: fs::File, position: u64) -> File {
        let mut cursor = file.cursor();
        cursor.set_bytes_max(BUF_BYTES_MAX);
        cursor.set_position(position);
        File {
            cursor,
            shared: OnceLock::new(),
            seen: 0,
            descriptor_at: AtomicU64::new(position),
            is_stale: AtomicBool::new(false),
            max_buf_size: BUF_BYTES_MAX,
        }
    }

    pub(super) fn file(&self) -> &fs::File {
        self.cursor.get_ref()
    }

    /// Waits for all writes, and returns the error of one that failed.
    async fn written(&self) -> io::Result<()> {
        poll_fn(|context| self.cursor.poll_idle(context)).await;
        self.cursor.take_error().map_or(Ok(()), Err)
    }

    /// Makes data and metadata durable, with all bytes that have been written before.
    ///
    /// # Errors
    ///
    /// Fails with the error of a write that failed before, and with any error of `fsync(2)`, unchanged.
    pub async fn sync_all(&self) -> io::Result<()> {
        self.written().await?;
        self.file().sync_all().await
    }

    /// Makes data durable, and the metadata that is needed to read it.
    ///
    /// # Errors
    ///
    /// Fails like [`sync_all`](File::sync_all).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.written().await?;
        self.file().sync_data().await
    }

    /// Truncates or extends the file. The position stays, also behind the new end.
    ///
    /// # Errors
    ///
    /// Fails with the error of a write that failed before, and with any error of `ftruncate(2)`, unchanged (`EINVAL` if
    /// the file is not open for writing).
    pub async fn set_len(&self, size: u64) -> io::Result<()> {
        self.written().await?;
        self.note_change();
        self.file().set_len(size).await
    }

    /// Returns the metadata, with the bytes that have been written before.
    ///
    /// # Errors
    ///
    /// Fails with any error of `fstat(2)`, unchanged.
    pub async fn metadata(&self) -> io::Result<Metadata> {
        poll_fn(|context| self.cursor.poll_idle(context)).await;
        self.file().std_metadata().await
    }

    /// Returns another handle. It shares the position, and has another descriptor.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use tokio::io::AsyncReadExt;
    ///
    /// let mut file = annulus::tokio::fs::File::open(&path).await?;
    /// let mut clone = file.try_clone().await?;
    /// assert_eq!((file.read_u8().await?, clone.read_u8().await?), (b'0', b'1'));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `dup(2)`, unchanged (`EMFILE`).
    pub async fn try_clone(&self) -> io::Result<File> {
        poll_fn(|context| self.cursor.poll_idle(context)).await;
        let mut clone = File::from_std(self.clone_std()?);
        let shared = self.shared.get_or_init(|| {
            let position = self.cursor.position();
            let changes = self.seen;
            Arc::new(Mutex::new(Shared::new(position, changes)))
        });
        clone.shared = OnceLock::from(Arc::clone(shared));
        // Another number than that of the file, so that the first use takes the position.
        clone.seen = u64::MAX;
        clone.set_max_buf_size(self.max_buf_size);
        Ok(clone)
    }

    /// Waits for all operations, and returns the file of std, with the position of this file. The error of a write that
    /// failed is lost; so call `flush` before.
    pub async fn into_std(mut self) -> StdFile {
        loop {
            poll_fn(|context| self.cursor.poll_at_rest(context)).await;
            match self.try_into_idle_std() {
                Ok(std) => return std,
                // An operation whose future was dropped has the descriptor.
                Err(file) => self = file,
            }
            if let Ok(clone) = self.clone_std() {
                return clone;
            }
            coop_budget::yield_now().await;
        }
    }

    /// Returns the file of std, with the position of this file.
    ///
    /// # Errors
    ///
    /// Fails with the file if an operation is in flight, or if a write has failed and no call has returned the error
    /// yet.
    #[allow(clippy::result_large_err, reason = "as in Tokio")]
    pub fn try_into_std(mut self) -> Result<StdFile, File> {
        let at_rest = (self.cursor).poll_at_rest(&mut Context::from_waker(Waker::noop()));
        match at_rest.is_pending() || self.cursor.has_failed() {
            true => Err(self),
            false => self.try_into_idle_std(),
        }
    }

    /// Fails if an operation has a handle of the descriptor.
    #[allow(clippy::result_large_err, reason = "the file comes back")]
    fn try_into_idle_std(self) -> Result<StdFile, File> {
        self.move_descriptor();
        let File {
            cursor,
            shared,
            seen,
            descriptor_at,
            is_stale,
            max_buf_size,
        } = self;
        let position = cursor.position();
        let file = match cursor.into_file().into_std() {
            Ok(std) => return Ok(std),
            Err(file) => file,
        };
        let mut cursor = file.cursor();
        cursor.set_bytes_max(max_buf_size);
        cursor.set_position(position);
        Err(File {
            cursor,
            shared,
            seen,
            descriptor_at,
            is_stale,
            max_buf_size,
        })
    }

    /// Locks what clones share, if there are any.
    fn shared(&self) -> Option<MutexGuard<'_, Shared>> {
        self.shared.get().map(|shared| lock(shared))
    }

    /// Records that the file changes beside the cursor.
    fn note_change(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
        if let Some(mut shared) = self.shared() {
            shared.changes += 1;
        }
    }

    /// Returns another descriptor.
    fn clone_std(&self) -> io::Result<StdFile> {
        self.move_descriptor();
        self.file().clone_std()
    }

    /// Moves the descriptor to the position of the file.
    pub(super) fn move_descriptor(&self) {
        let shared = self.shared().map(|shared| shared.position);
        let position = shared.unwrap_or_else(|| self.cursor.position());
        let before = self.descriptor_at.swap(position, Ordering::Relaxed);
        // Descriptors of clones have one position, which each may have moved.
        if before != position || self.shared.get().is_some() || OPERATIONS_MOVE_IT {
            // A pipe has none.
            let _ = self.file().seek_descriptor(position);
        }
    }

    /// Sets the permissions of the file.
    ///
    /// # Errors
    ///
    /// Fails with any error of `fchmod(2)`, unchanged (`EPERM`).
    pub async fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        self.file().set_permissions(permissions).await
    }

    /// Sets the times of the last read and of the last change, after all writes.
    ///
    /// # Errors
    ///
    /// Fails with any error of `futimens(3)`, unchanged (`EPERM`).
    pub async fn set_times(&self, times: FileTimes) -> io::Result<()> {
        poll_fn(|context| self.cursor.poll_idle(context)).await;
        self.file().set_times(times).await
    }

    /// Sets the time of the last change.
    ///
    /// # Errors
    ///
    /// Fails like [`set_times`](File::set_times).
    pub async fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.set_times(FileTimes::new().set_modified(time)).await
    }

    /// Sets the number of bytes up to which a single read or write grows; 2 MiB by default. A file needs memory for two
    /// of each.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use tokio::io::AsyncReadExt;
    ///
    /// let mut file = annulus::tokio::fs::File::open(&path).await?;
    /// file.set_max_buf_size(2);
    /// assert_eq!(file.read(&mut [0; 4]).await?, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `max_buf_size` is 0, as in Tokio.
    #[track_caller]
    pub fn set_max_buf_size(&mut self, max_buf_size: usize) {
        assert!(max_buf_size > 0, "`max_buf_size` must be greater than 0");
        self.max_buf_size = max_buf_size;
        self.cursor.set_bytes_max(max_buf_size);
    }

    /// Returns the number of bytes up to which a single read or write grows.
    pub fn max_buf_size(&self) -> usize {
        self.max_buf_size
    }
}

/// Positional reads and writes, which Tokio lacks.
impl File {
    /// Reads into `buf` at `offset`; see [`annulus::File::read_at`](crate::File::read_at).
    ///
    /// # Errors
    ///
    /// Fails with any error of `pread(2)`, unchanged. The error contains the buffer.
    pub fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, BufResult<usize, B>> {
        self.file().read_at(buf, offset)
    }

    /// Reads at `offset` until `buf` is full; see [`annulus::File::read_exact_at`](crate::File::read_exact_at).
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends first, and otherwise like [`read_at`](File::read_at).
    pub fn read_exact_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        self.file().read_exact_at(buf, offset)
    }

    /// Reads at many offsets with one call; see [`annulus::File::read_many_at`](crate::File::read_many_at).
    pub fn read_many_at<B, I>(&self, reads: I) -> ReadMany<'_, B, I::IntoIter>
    where
        B: IoBufMut,
        I: IntoIterator<Item = (B, u64)>,
    {
        self.file().read_many_at(reads)
    }

    /// Writes at `offset`, perhaps only a part; see [`annulus::File::write_at`](crate::File::write_at).
    ///
    /// # Errors
    ///
    /// Fails with any error of `pwrite(2)`, unchanged. The error contains the buffer.
    pub fn write_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, BufResult<usize, B>> {
        self.note_change();
        self.file().write_at(buf, offset)
    }

    /// Writes all of `buf` at `offset`; see [`annulus::File::write_all_at`](crate::File::write_all_at).
    ///
    /// # Errors
    ///
    /// Fails like [`write_at`](File::write_at).
    pub fn write_all_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        self.note_change();
        self.file().write_all_at(buf, offset)
    }
}

impl File {
    /// Polls an operation of the cursor, at the position that clones share.
    fn poll_cursor<T>(
        &mut self,
        context: &mut Context<'_>,
        operation: impl FnOnce(&mut FileCursor, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if std::mem::take(self.is_stale.get_mut()) {
            self.cursor.discard_block();
        }
        let File {
            cursor,
            shared,
            seen,
            ..
        } = self;
        let turn = match shared.get() {
            Some(shared) => Some(ready!(Turn::begin(shared, context))),
            None => None,
        };
        if let Some(Turn(shared)) = &turn {
            let (position, changes) = {
                let shared = lock(shared);
                (shared.position, shared.changes)
            };
            if changes != *seen && !cursor.is_stream() {
                ready!(cursor.poll_written(context)).inspect_err(|_| drop(cursor.take_error()))?;
                cursor.set_position(position);
                *seen = changes;
            }
        }
        let done = ready!(operation(cursor, context));
        if let Some(Turn(shared)) = &turn {
            let mut shared = lock(shared);
            shared.position = cursor.position();
            shared.changes += 1;
            *seen = shared.changes;
        }
        // A reported error is forgotten: the next write is a new attempt.
        Poll::Ready(done.inspect_err(|_| drop(cursor.take_error())))
    }
}

impl AsyncRead for File {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let space = buf.remaining().min(self.max_buf_size);
        let this = self.get_mut();
        this.poll_cursor(context, |cursor, context| {
            cursor.set_wanted(space);
            let copy = |from: &[u8]| buf.put_slice(from);
            byte_stream::poll_read(cursor, context, space, copy).map_ok(drop)
        })
    }
}

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.get_mut().cursor).start_seek(to)
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        self.get_mut().poll_cursor(context, |cursor, context| {
            Pin::new(cursor).poll_complete(context)
        })
    }
}

impl AsyncWrite for File {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_cursor(context, |cursor, context| {
            ByteStream::poll_write(cursor, context, pieces)
        })
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.get_mut()).poll_cursor(context, |cursor, context| cursor.poll_written(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl From<StdFile> for File {
    fn from(std: StdFile) -> File {
        File::from_std(std)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let std = self.file().describe();
        // The path that programs call it by.
        f.debug_struct("tokio::fs::File")
            .field("std", &format_args!("{std}"))
            .finish()
    }
}
