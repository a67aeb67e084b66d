//! Files: reads and writes at offsets, and other operations on open files.

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
#[path = "../fs/cursor/mod.rs"]
mod cursor;
mod dir;
#[path = "../fs/everywhere.rs"]
mod everywhere;
mod many;
mod options;
mod os;
pub(crate) mod paths;
#[path = "../fs/range.rs"]
mod range;
mod transfer;

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub use cursor::FileCursor;
pub use dir::{DirEntry, FileKind, Metadata, ReadDir};
pub use everywhere::Closed;
pub use many::{Completed, ReadMany};
pub use options::{OpPath, OpenOptions, Opening, PathIn};
pub use std::fs::FileTimes;

pub(crate) use paths as copy;
pub(crate) use paths as remove;
pub(crate) use paths as whole;

use std::fs::Permissions;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::buf::{IoBuf, IoBufMut};
use crate::driver::{Operation, Submitter};
use crate::error::{BufResult, WholeResult};
use crate::op::{Close, Fsync, ReadAt, SetPermissions, SetTimes, StatAt, Truncate, WriteAt};
use transfer::{Extent, read, whole, write};

/// An open file. Cheap to clone: clones share the handle, and dropping the last one closes it.
#[derive(Clone, Debug)]
pub struct File {
    file: Arc<std::fs::File>,
    submitter: Arc<Submitter>,
    /// Writes go to the end of the file, whatever their offset.
    appends: bool,
}

impl File {
    pub(crate) fn new(file: std::fs::File, submitter: &Arc<Submitter>, appends: bool) -> File {
        File {
            file: Arc::new(file),
            submitter: Arc::clone(submitter),
            appends,
        }
    }

    /// Returns an operation that calls std.
    fn op<T, R: Send + 'static>(
        &self,
        call: impl FnOnce(&std::fs::File) -> io::Result<R> + Send + 'static,
    ) -> Operation<'_, T, io::Result<R>> {
        let file = Arc::clone(&self.file);
        self.submitter.op(move || call(&file))
    }

    fn read_some<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, BufResult<usize, B>> {
        Operation::new(&self.submitter, read(self, buf, Some(offset), Extent::Once))
    }

    fn read_full<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        let read = read(self, buf, Some(offset), Extent::Whole);
        Operation::new(&self.submitter, whole(read))
    }

    fn write_some<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, BufResult<usize, B>> {
        Operation::new(
            &self.submitter,
            write(self, buf, Some(offset), Extent::Once),
        )
    }

    fn write_full<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
        durable: bool,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        let extent = if durable {
            Extent::Durable
        } else {
            Extent::Whole
        };
        Operation::new(
            &self.submitter,
            whole(write(self, buf, Some(offset), extent)),
        )
    }

    fn fsync(&self, data_only: bool) -> Operation<'_, Fsync, io::Result<()>> {
        self.op(move |file| match data_only {
            true => file.sync_data(),
            false => file.sync_all(),
        })
    }

    fn truncate(&self, bytes: u64) -> Operation<'_, Truncate, io::Result<()>> {
        self.op(move |file| file.set_len(bytes))
    }

    fn chmod(&self, permissions: Permissions) -> Operation<'_, SetPermissions, io::Result<()>> {
        self.op(move |file| file.set_permissions(permissions))
    }

    fn utimes(&self, times: FileTimes) -> Operation<'_, SetTimes, io::Result<()>> {
        self.op(move |file| file.set_times(times))
    }

    fn stat(&self) -> Operation<'_, StatAt, io::Result<Metadata>> {
        self.op(|file| file.metadata().map(Metadata))
    }

    /// Closes the file, unless other handles of it exist: then the last one does.
    ///
    /// # Errors
    ///
    /// Fails if the engine has ended; the file is closed all the same.
    pub async fn close(self) -> io::Result<Closed> {
        let File {
            file, submitter, ..
        } = self;
        match Arc::try_unwrap(file) {
            Ok(file) => {
                let close = submitter.op::<Close, _>(move || {
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
        Operation::new(&self.submitter, read(self, buf, None, Extent::Once))
    }

    /// Writes a part of `buf` at `offset`; to a file without offsets, as its next bytes.
    async fn write_next<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let offset = self.has_offsets().then_some(offset);
        Operation::<WriteAt<B>, _>::new(&self.submitter, write(self, buf, offset, Extent::Once))
            .await
    }
}

/// The file of std, for `tokio::fs`.
#[cfg(feature = "tokio")]
impl File {
    /// Returns the file of std, if this is the only handle.
    pub(crate) fn into_std(self) -> Result<std::fs::File, File> {
        let File {
            file,
            submitter,
            appends,
        } = self;
        Arc::try_unwrap(file).map_err(|file| File {
            file,
            submitter,
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

/// The future of [`File::read_into`]. Returns the number of bytes.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is awaited"]
pub struct ReadInto<'a> {
    read: Operation<'a, ReadAt<Vec<u8>>, BufResult<usize, Vec<u8>>>,
    into: &'a mut [u8],
}

impl<'a> ReadInto<'a> {
    fn new(file: &'a File, offset: u64, into: &'a mut [u8]) -> ReadInto<'a> {
        let read = file.read_at(vec![0; into.len()], offset);
        ReadInto { read, into }
    }

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
