//! The methods of [`File`] that every platform has. The private ones that they call differ.

use std::fs::Permissions;
use std::io;

use super::{File, FileTimes, Metadata, ReadInto, ReadMany};
use crate::buf::{IoBuf, IoBufMut};
use crate::driver::Operation;
use crate::error::{BufResult, WholeResult};
use crate::op::{Fsync, ReadAt, SetPermissions, SetTimes, StatAt, Truncate, WriteAt};

impl File {
    /// Reads into `buf`, starting at `offset`, in one transfer. Returns the number of bytes and the buffer.
    ///
    /// The number may be less than the buffer's capacity; 0 means the end of the file. Data in the page cache is copied
    /// on the calling thread at the first poll, without a driver. If the future is dropped, the engine keeps the buffer
    /// and frees it.
    ///
    /// An unaligned read of a file opened with `O_DIRECT` uses aligned memory of the engine: it reads the enclosing
    /// aligned range and copies the requested part.
    ///
    /// The end of the file is a short read, and then one of 0 bytes:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// let file = engine.open(&path).await?;
    /// let (bytes, buf) = file.read_at(vec![0; 8], 6).await?;
    /// assert_eq!(&buf[..bytes], b"6789"); // the rest of `buf` is not from the file
    /// let (bytes, _) = file.read_at(buf, 10).await?;
    /// assert_eq!(bytes, 0);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `pread(2)`, unchanged. Fails with `InvalidInput` if the range ends beyond `i64::MAX`, or
    /// if the buffer has no capacity, because a result of 0 would look like the end of the file. The error contains the
    /// buffer.
    pub fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, BufResult<usize, B>> {
        self.read_some(buf, offset)
    }

    /// Reads until `buf` is full, and continues after short transfers. If the future is dropped, the engine frees the
    /// buffer.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// use std::io::ErrorKind;
    ///
    /// let file = engine.open(&path).await?;
    /// let record = file.read_exact_at(vec![0; 4], 2).await?; // the buffer alone: it is full
    /// assert_eq!(record, b"2345");
    /// let error = file.read_exact_at(record, 8).await.unwrap_err();
    /// assert_eq!(error.error().kind(), ErrorKind::UnexpectedEof);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends first, and otherwise like [`read_at`](File::read_at).
    pub fn read_exact_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        self.read_full(buf, offset)
    }

    /// Reads into a borrowed slice, starting at `offset`, in one transfer. Returns the number of bytes.
    ///
    /// Cached data is read directly into the slice. Other data is read into memory of the engine and copied when the
    /// result is taken, so dropping the future at any time is sound.
    ///
    /// The result is short at the end of the file. The rest of the slice is not changed:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
    /// let file = engine.open(&path).await?;
    /// let mut table = [0; 8];
    /// let bytes = file.read_into(&mut table, 6).await?;
    /// assert_eq!(&table[..bytes], b"6789");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`read_at`](File::read_at).
    pub fn read_into<'a>(&'a self, into: &'a mut [u8], offset: u64) -> ReadInto<'a> {
        ReadInto::new(self, offset, into)
    }

    /// Reads many ranges, submitted together. Each item of `reads` is a buffer and an offset.
    ///
    /// [`ReadMany::next`] returns results in order of completion. Awaiting the `ReadMany` itself returns all results in
    /// order of the requests.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 65_536])?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.open(&path).await?;
    /// let reads = [0, 8192, 16_384].map(|offset| (vec![0; 4096], offset));
    ///
    /// // All results, in order of the requests:
    /// for result in file.read_many_at(reads.clone()).await {
    ///     let (n, page) = result?;
    ///     assert_eq!((n, page[0]), (4096, 7));
    /// }
    ///
    /// // Each result as soon as it is complete:
    /// let mut batch = file.read_many_at(reads);
    /// while let Some(completed) = batch.next().await {
    ///     let (n, page) = completed.result?;
    ///     println!("read {}: {n} bytes at {}, first {}", completed.index, completed.offset, page[0]);
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn read_many_at<B, I>(&self, reads: I) -> ReadMany<'_, B, I::IntoIter>
    where
        B: IoBufMut,
        I: IntoIterator<Item = (B, u64)>,
    {
        ReadMany::new(self, reads.into_iter())
    }

    /// Writes `buf` at `offset`, in one transfer. Returns the number of bytes, which may be less than the length, and
    /// the buffer. A dropped write may still reach the file.
    ///
    /// A write may be short, for example on a full disk. [`write_all_at`](File::write_all_at) continues:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let (bytes, buf) = file.write_at(b"record".to_vec(), 4).await?;
    /// assert!(bytes <= buf.len());
    /// // The bytes before the offset are a hole, which reads as zeros.
    /// assert_eq!(engine.read(dir.path().join("data")).await?, b"\0\0\0\0record");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `pwrite(2)`, unchanged (`ENOSPC`, `EFBIG`, …). Fails with `InvalidInput` if the range
    /// ends beyond `i64::MAX`. Also fails with `InvalidInput` if the file was opened with `O_DIRECT` and the write is
    /// not aligned: the engine would have to read and rewrite the neighbouring bytes.
    pub fn write_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, BufResult<usize, B>> {
        self.write_some(buf, offset)
    }

    /// Writes all of `buf`, and continues after short transfers. If the future is dropped, all, a part or none of it
    /// may be written.
    ///
    /// Writes in flight together have no order. Await one before the next where they overlap:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let (one, two) = (file.write_all_at("left ", 0), file.write_all_at("right", 5));
    /// let (one, two) = futures_lite::future::zip(one, two).await; // both at a time
    /// one?;
    /// two?;
    /// assert_eq!(engine.read(dir.path().join("data")).await?, b"left right");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `WriteZero` if the file accepts no more bytes, and otherwise like [`write_at`](File::write_at).
    pub fn write_all_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        self.write_full(buf, offset, false)
    }

    /// Writes all of `buf` durably (`RWF_DSYNC`). On success, the bytes and the metadata needed to read them are on
    /// stable storage.
    ///
    /// On a file that was not opened with `O_DIRECT`, this is a system call on a blocking thread with every backend,
    /// because a ring executes such writes to one file one after another. Up to
    /// [`blocking_threads`](crate::EngineBuilder::blocking_threads) of them run in parallel.
    ///
    /// One call instead of a write and a sync, for the entries of a log:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let log = engine.create(dir.path().join("log")).await?;
    /// let entry = log.write_all_durable_at(b"entry".to_vec(), 0).await?;
    /// // It is on stable storage now. The file's name is, once its directory was synced:
    /// engine.open_dir(dir.path()).await?.file().sync_all().await?;
    /// # assert_eq!(entry, b"entry");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`write_all_at`](File::write_all_at).
    pub fn write_all_durable_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        self.write_full(buf, offset, true)
    }

    /// Makes data and metadata durable: `fsync(2)`.
    ///
    /// Covers the writes that completed before this future was first polled, and no others. The kernel may report an
    /// error only once, so a later success does not mean that the data is safe. A sync whose future is dropped may lose
    /// such an error.
    ///
    /// A sync that runs beside a write need not cover it:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let write = file.write_all_at("hello", 0);
    /// write.await?; // first the write,
    /// file.sync_all().await?; // then the sync
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `fsync(2)`, unchanged (`EIO`, `ENOSPC`, `EDQUOT`).
    pub fn sync_all(&self) -> Operation<'_, Fsync, io::Result<()>> {
        self.fsync(false)
    }

    /// Makes data durable, and the metadata needed to read it: `fdatasync(2)`.
    ///
    /// It leaves out metadata that is not needed to read the data, such as the times. A new length is written:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("log")).await?;
    /// file.write_all_at("entry", 0).await?;
    /// if let Err(error) = file.sync_data().await {
    ///     // Do not repeat the sync: the kernel may have dropped the data. Write it again.
    ///     return Err(error);
    /// }
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`sync_all`](File::sync_all).
    pub fn sync_data(&self) -> Operation<'_, Fsync, io::Result<()>> {
        self.fsync(true)
    }

    /// Truncates the file to `bytes` bytes, or extends it with a hole: `ftruncate(2)`.
    ///
    /// Uses the ring from Linux 6.9 on; before that, a blocking thread.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// file.write_all_at("0123456789", 0).await?;
    /// file.set_len(4).await?;
    /// file.set_len(6).await?; // the bytes that were cut off do not come back
    /// assert_eq!(engine.read(dir.path().join("data")).await?, b"0123\0\0");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `ftruncate(2)`, unchanged (`EFBIG`; `EINVAL` if the file is not open for writing).
    pub fn set_len(&self, bytes: u64) -> Operation<'_, Truncate, io::Result<()>> {
        self.truncate(bytes)
    }

    /// Sets the permissions of the file: `fchmod(2)`, on a blocking thread.
    ///
    /// Unlike the [mode](crate::OpenOptions::mode) of an open, this is not reduced by the umask:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use std::{fs::Permissions, os::unix::fs::PermissionsExt};
    ///
    /// let file = engine.create(dir.path().join("shared")).await?;
    /// file.set_permissions(Permissions::from_mode(0o666)).await?;
    /// assert_eq!(file.metadata().await?.mode(), 0o666);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `fchmod(2)`, unchanged (`EPERM`).
    pub fn set_permissions(
        &self,
        permissions: Permissions,
    ) -> Operation<'_, SetPermissions, io::Result<()>> {
        self.chmod(permissions)
    }

    /// Sets the times of the last read and of the last change: `futimens(3)`, on a blocking thread.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use annulus::fs::FileTimes;
    ///
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    /// file.set_times(FileTimes::new().set_modified(time)).await?;
    /// assert_eq!(file.metadata().await?.modified(), time);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `utimensat(2)`, unchanged (`EPERM`).
    pub fn set_times(&self, times: FileTimes) -> Operation<'_, SetTimes, io::Result<()>> {
        self.utimes(times)
    }

    /// Returns the metadata of the file: `statx(2)`. On a local file system the calling thread makes the call.
    ///
    /// It is that of the open file, whatever its name is meanwhile:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// let file = engine.open(&path).await?;
    /// engine.remove_file(&path).await?;
    /// let metadata = file.metadata().await?;
    /// assert_eq!((metadata.len(), metadata.links()), (4, 0)); // no name is left
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `statx(2)`, unchanged.
    pub fn metadata(&self) -> Operation<'_, StatAt, io::Result<Metadata>> {
        self.stat()
    }
}

/// The result of [`File::close`].
///
/// A write that was dropped holds the descriptor, too, until it has completed:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// use annulus::fs::Closed;
///
/// let file = engine.create(dir.path().join("data")).await?;
/// let write = futures_lite::future::poll_once(file.write_all_at(vec![7; 1 << 20], 0)).await;
/// drop(write);
/// match file.close().await? {
///     Closed::Now => {} // the write had completed
///     Closed::Deferred => {} // an error of the close will not be reported
///     other => unreachable!("{other:?}"),
/// }
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The descriptor is closed.
    Now,
    /// Clones of the file, or operations that were dropped before they completed, still hold the descriptor. The last
    /// of them closes it.
    Deferred,
}
