//! Files: reads and writes at offsets, and other operations on open files.

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
#[path = "../fs/cursor/mod.rs"]
mod cursor;
mod dir;
mod many;
mod options;
mod os;
#[path = "../fs/range.rs"]
mod range;
mod transfer;

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub use cursor::FileCursor;
pub use dir::{DirEntry, FileKind, Metadata, ReadDir};
pub use many::{Completed, ReadMany};
pub use options::{OpPath, OpenOptions, Opening};
pub use std::fs::FileTimes;

pub(crate) use os::{is_same_file, open_for_times};

use std::fs::Permissions;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::buf::{IoBuf, IoBufMut};
use crate::driver::{Operation, Pool};
use crate::error::{BufResult, WholeResult};
use crate::op::{Close, Fsync, ReadAt, SetPermissions, SetTimes, StatAt, Truncate, WriteAt};
use transfer::{Extent, read, whole, write};

/// An open file. Cheap to clone: clones share the handle, and dropping the last one closes it.
#[derive(Clone, Debug)]
pub struct File {
    file: Arc<std::fs::File>,
    pool: Arc<Pool>,
    /// Writes go to the end of the file, whatever their offset.
    appends: bool,
}

impl File {
    pub(crate) fn new(file: std::fs::File, pool: &Arc<Pool>, appends: bool) -> File {
        File {
            file: Arc::new(file),
            pool: Arc::clone(pool),
            appends,
        }
    }

    /// Returns an operation that calls std.
    fn op<T, R: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<R> + Send + 'static,
    ) -> Operation<'_, T, io::Result<R>> {
        let file = Arc::clone(&self.file);
        self.pool.op(move || call(&file))
    }

    /// Reads into `buf`, starting at `offset`, in one transfer. Returns the number of bytes and the buffer.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system, and with `InvalidInput` for a buffer without capacity.
    pub fn read_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, BufResult<usize, B>> {
        Operation::new(&self.pool, read(self, buf, Some(offset), Extent::Once))
    }

    /// Reads until `buf` is full.
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends first, and otherwise like [`read_at`](File::read_at).
    pub fn read_exact_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        Operation::new(
            &self.pool,
            whole(read(self, buf, Some(offset), Extent::Whole)),
        )
    }

    /// Reads into a borrowed slice, starting at `offset`, in one transfer. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Fails like [`read_at`](File::read_at).
    pub fn read_into<'a>(&'a self, into: &'a mut [u8], offset: u64) -> ReadInto<'a> {
        ReadInto {
            read: self.read_at(vec![0; into.len()], offset),
            into,
        }
    }

    /// Starts a batch of reads, given as buffers with offsets.
    pub fn read_many_at<B, I>(&self, reads: I) -> ReadMany<'_, B, I::IntoIter>
    where
        B: IoBufMut,
        I: IntoIterator<Item = (B, u64)>,
    {
        ReadMany::new(self, reads.into_iter())
    }

    /// Writes the initialised bytes of `buf` at `offset`, in one transfer. Returns the number of bytes and the buffer.
    /// On a file that was opened with [`append`](OpenOptions::append), the bytes go to its end.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn write_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, BufResult<usize, B>> {
        Operation::new(&self.pool, write(self, buf, Some(offset), Extent::Once))
    }

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    ///
    /// Fails like [`write_at`](File::write_at), and with `WriteZero` if the file accepts no more bytes.
    pub fn write_all_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        Operation::new(
            &self.pool,
            whole(write(self, buf, Some(offset), Extent::Whole)),
        )
    }

    /// Writes all of `buf` at `offset`, and waits until it is durable.
    ///
    /// # Errors
    ///
    /// Fails like [`write_all_at`](File::write_all_at) and [`sync_data`](File::sync_data).
    pub fn write_all_durable_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        Operation::new(
            &self.pool,
            whole(write(self, buf, Some(offset), Extent::Durable)),
        )
    }

    /// Waits until the contents and the metadata are durable.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn sync_all(&self) -> Operation<'_, Fsync, io::Result<()>> {
        self.op(|file| file.sync_all())
    }

    /// Waits until the contents are durable.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn sync_data(&self) -> Operation<'_, Fsync, io::Result<()>> {
        self.op(|file| file.sync_data())
    }

    /// Sets the length of the file.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn set_len(&self, bytes: u64) -> Operation<'_, Truncate, io::Result<()>> {
        self.op(move |file| file.set_len(bytes))
    }

    /// Sets the permissions of the file.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn set_permissions(
        &self,
        permissions: Permissions,
    ) -> Operation<'_, SetPermissions, io::Result<()>> {
        self.op(move |file| file.set_permissions(permissions))
    }

    /// Sets the times of the file.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn set_times(&self, times: FileTimes) -> Operation<'_, SetTimes, io::Result<()>> {
        self.op(move |file| file.set_times(times))
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    ///
    /// Fails with any error of the system.
    pub fn metadata(&self) -> Operation<'_, StatAt, io::Result<Metadata>> {
        self.op(|file| file.metadata().map(Metadata))
    }

    /// Closes the file, unless other handles of it exist: then the last one does.
    ///
    /// # Errors
    ///
    /// Fails if the engine has ended; the file is closed all the same.
    pub async fn close(self) -> io::Result<Closed> {
        let File { file, pool, .. } = self;
        match Arc::try_unwrap(file) {
            Ok(file) => {
                let close = pool.op::<Close, _>(move || {
                    drop(file);
                    Ok(())
                });
                close.await.map(|()| Closed::Now)
            }
            Err(_shared) => Ok(Closed::Deferred),
        }
    }
}

/// Functions for a cursor.
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
impl File {
    fn appends(&self) -> bool {
        self.appends
    }

    /// Returns the alignment of memory that avoids a copy: any.
    fn memory_align_bytes(&self) -> usize {
        1
    }

    /// Returns whether the file has offsets, unlike a pipe.
    fn has_offsets(&self) -> bool {
        io::Seek::stream_position(&mut &*self.file).is_ok()
    }

    fn is_stream(&self) -> bool {
        !self.has_offsets()
    }

    /// Reads the next bytes of a file without offsets.
    fn read_stream<B: IoBufMut>(&self, buf: B) -> Operation<'_, ReadAt<B>, BufResult<usize, B>> {
        Operation::new(&self.pool, read(self, buf, None, Extent::Once))
    }

    /// Writes a part of `buf` at `offset`; to a file without offsets, as its next bytes.
    async fn write_next<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let offset = self.has_offsets().then_some(offset);
        Operation::<WriteAt<B>, _>::new(&self.pool, write(self, buf, offset, Extent::Once)).await
    }
}

/// The file of std, for `tokio::fs`.
#[cfg(feature = "tokio")]
impl File {
    /// Returns the file of std, if this is the only handle.
    pub(crate) fn into_std(self) -> Result<std::fs::File, File> {
        let File {
            file,
            pool,
            appends,
        } = self;
        Arc::try_unwrap(file).map_err(|file| File {
            file,
            pool,
            appends,
        })
    }

    pub(crate) fn clone_std(&self) -> io::Result<std::fs::File> {
        self.file.try_clone()
    }

    pub(crate) fn seek_descriptor(&self, position: u64) -> io::Result<()> {
        io::Seek::seek(&mut &*self.file, io::SeekFrom::Start(position)).map(drop)
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?}", self.file)
    }

    pub(crate) fn std_metadata(&self) -> Operation<'_, StatAt, io::Result<std::fs::Metadata>> {
        self.op(|file| file.metadata())
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for File {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(windows)]
impl std::os::windows::io::AsHandle for File {
    fn as_handle(&self) -> std::os::windows::io::BorrowedHandle<'_> {
        self.file.as_handle()
    }
}

/// The result of [`File::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The file is closed.
    Now,
    /// Other handles exist; the last one closes the file.
    Deferred,
}

/// The future of [`File::read_into`]. Returns the number of bytes.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is awaited"]
pub struct ReadInto<'a> {
    read: Operation<'a, ReadAt<Vec<u8>>, BufResult<usize, Vec<u8>>>,
    into: &'a mut [u8],
}

impl ReadInto<'_> {
    /// Limits the read to `timeout` from its first poll on; see [`Operation::timeout`](crate::Operation::timeout).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.read = self.read.timeout(timeout);
        self
    }
}

impl Future for ReadInto<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let (bytes, read) = ready!(Pin::new(&mut self.read).poll(context))?;
        let both = self.into.get_mut(..bytes).zip(read.get(..bytes));
        both.into_iter()
            .for_each(|(into, read)| into.copy_from_slice(read));
        Poll::Ready(Ok(bytes))
    }
}
