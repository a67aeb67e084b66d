//! Files: reads and writes at offsets, and other operations on open files.
//!
//! An [`Engine`](crate::Engine) opens a [`File`], and the file keeps the engine's drivers alive. Every method returns a
//! future that submits nothing before its first poll. The future may be dropped at any time: the engine keeps the
//! buffer until the kernel has finished with it.

// One long file, because it has all methods of `File` that only Linux has, with their documentation, and the private
// ones that those of every platform call.

pub(crate) mod copy;
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
mod cursor;
mod dir;
mod direct;
mod everywhere;
mod load;
mod many;
mod merge;
mod metadata;
mod options;
mod path_in;
pub(crate) mod paths;
mod range;
mod read_into;
pub(crate) mod remove;
mod times;
pub(crate) mod whole;

#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
pub use cursor::FileCursor;
pub use dir::{DirEntry, FileKind, ReadDir};
pub use everywhere::Closed;
pub use load::Load;
pub use many::{Completed, ReadMany};
pub use merge::{Merge, ReadMerged};
pub use metadata::{DeviceNumber, Metadata};
pub use options::{OpenOptions, Opening};
pub use path_in::{Dir, OpPath, PathIn};
pub use read_into::ReadInto;
pub use times::FileTimes;

pub use crate::fd::{CachedReads, NotUncached};
pub use crate::op::{Advice, AllocateMode, SyncRangeMode};
pub use crate::sys::poll_queue::NotPolled;

pub(crate) use options::path_to_cstring;

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use crate::buf::{IoBuf, IoBufMut, ReadTarget, check_lent, no_capacity};
use crate::driver::{Operation, Submitter};
use crate::error::{BufError, BufResult, WholeResult};
use crate::fd::Fd;
use crate::narrow::to_usize;
#[cfg(feature = "tokio")]
use crate::op::StdMetadata;
use crate::op::{
    Advise, Allocate, At, Close, CopyRange, FAST_PATH_BYTES_MAX, Fsync, GetXattr, Link, ListXattrs,
    OpenedFd, ReadAt, ReadMemory, ReadVectoredAt, RemoveXattr, SetPermissions, SetTimes, SetXattr,
    StatAt, SyncRange, Truncate, Until, WriteAt, WriteVectoredAt,
};
#[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
use crate::sys::call;
use crate::sys::call::{AT_FDCWD, O_DIRECT, borrow_fd};
use crate::sys::mount::{self, Identity};
use crate::sys::poll_queue;
use crate::sys::sqe::RWF_DSYNC;
use direct::Direct;
use range::{check_range, check_read};

/// An open file. Cheap to clone: clones share the descriptor, and dropping the last one closes it.
///
/// Buffers move into an operation and return with its result. A `Vec<u8>` is read into up to its length; see
/// [`buf`](crate::buf) for other buffers.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("log");
/// let engine = annulus::Engine::new()?;
/// let file = engine.create(&path).await?;
/// let record = file.write_all_at(b"first record".to_vec(), 0).await?;   // returns the buffer
/// file.sync_data().await?;                                              // fdatasync(2)
/// file.close().await?;
///
/// let file = engine.open(&path).await?;
/// let (n, record) = file.read_at(record, 6).await?;                     // short at the end of the file
/// assert_eq!(&record[..n], b"record");
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct File {
    fd: Fd,
    submitter: Arc<Submitter>,
    /// Present if the file was opened with `O_DIRECT`.
    direct: Option<Direct>,
    /// The reason why the device is not polled. `None` if it is polled, or was until the kernel refused.
    not_polled: Option<Arc<NotPolled>>,
}

impl File {
    pub(crate) fn new(opened: OpenedFd, submitter: Arc<Submitter>) -> io::Result<File> {
        let OpenedFd { fd, flags, .. } = &opened;
        // On a known mount, only the alignment is left to query.
        let is_known = fd.is_simulated() || fd.is_local() && flags & O_DIRECT == 0;
        let identity = match is_known {
            true => None,
            false => Some(Identity::of(fd.raw_for_brief_call())?),
        };
        Ok(File::with_identity(opened, submitter, identity))
    }

    fn with_identity(
        opened: OpenedFd,
        submitter: Arc<Submitter>,
        identity: Option<Identity>,
    ) -> File {
        let OpenedFd {
            fd,
            flags,
            mut mount,
        } = opened;
        let mut direct = None;
        if let Some(identity) = identity {
            direct = Direct::of(flags, &identity);
            if identity.has_offsets() {
                fd.note_offsets();
            }
            fd.set_file_system(mount::learn(fd.raw_for_brief_call(), &identity));
            mount = identity.mount();
        }
        if let Some(mount) = mount {
            fd.cached().follow(&submitter.mount_hints, mount);
        }
        let closer = Arc::downgrade(&submitter);
        fd.close_later_by(closer);
        let polled = poll_support(&fd, &submitter, direct);
        fd.set_polled(polled.is_ok());
        File {
            fd,
            submitter,
            direct,
            not_polled: polled.err().map(Arc::new),
        }
    }

    /// Returns whether reads and writes of this file are polled, on an engine that was built with
    /// [`EngineBuilder::iopoll`](crate::EngineBuilder::iopoll). Determined when the file is opened, and updated when
    /// the kernel refuses a transfer. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// let file = engine.open(&path).await?;
    /// if let Err(reason) = file.poll_support() {
    ///     eprintln!("{reason}"); // here: the engine was built without `iopoll`
    /// }
    /// assert_eq!(file.read_exact_at(vec![0; 4], 0).await?, b"0123"); // works all the same
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with the reason why they are not polled; the message ends with a hint. The file still works, with
    /// interrupts.
    pub fn poll_support(&self) -> Result<(), NotPolled> {
        match &self.not_polled {
            Some(reason) => Err(NotPolled::clone(reason)),
            None if self.fd.is_polled() => Ok(()),
            None => Err(NotPolled::Refused),
        }
    }

    /// Returns the alignment that direct I/O on this file needs; `None` if the file was not opened with `O_DIRECT`.
    /// Taken from `statx(2)` since Linux 6.1, which has `STATX_DIOALIGN`; otherwise 4,096 bytes. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
    /// use annulus::{OpenOptions, buf::AlignedBuf};
    ///
    /// assert_eq!(engine.open(&path).await?.direct_alignment(), None); // any alignment is right
    /// # let direct = engine.open_with(OpenOptions::new().read(true).direct(true), &path).await;
    /// # let Ok(file) = direct else { return Ok(()) }; // a file system without direct I/O
    /// let alignment = file.direct_alignment().expect("`file` is open for direct I/O");
    /// let bytes = 5000_usize.next_multiple_of(alignment.offset_bytes);
    /// let buf = AlignedBuf::with_len(bytes, alignment.memory_bytes);
    /// let (read, _) = file.read_at(buf, 0).await?; // past the page cache, and without a copy
    /// # assert!(read >= 5000);
    /// # Ok(()) }) }
    /// ```
    pub fn direct_alignment(&self) -> Option<DirectAlignment> {
        self.direct.map(|direct| DirectAlignment {
            memory_bytes: direct.memory_bytes as usize,
            offset_bytes: direct.offset_bytes as usize,
        })
    }

    /// Sets how reads of this file use the page cache before they go to a driver; [`CachedReads::Learn`] by default.
    /// See [`CachedReads`] for the costs. Clones share the setting; other files, and the same file opened again, do
    /// not. Linux only.
    ///
    /// Applies to [`read_at`](File::read_at), [`read_exact_at`](File::read_exact_at), [`read_into`](File::read_into)
    /// and [`read_many_at`](File::read_many_at), for reads of at most 128 KiB. Has no effect on files opened with
    /// `O_DIRECT`.
    pub fn set_cached_reads(&self, policy: CachedReads) {
        self.fd.cached().set(policy);
    }

    /// Returns whether the reads and writes of a file that was opened with
    /// [`OpenOptions::uncached`](crate::OpenOptions::uncached) leave the page cache as it was. Known after the first
    /// transfer; until then a requested file returns `Ok`. Clones share the result. Linux only.
    ///
    /// # Errors
    ///
    /// Fails with the reason why they do not; the message ends with a hint. The file still works, with ordinary reads
    /// and writes.
    pub fn uncached_support(&self) -> Result<(), NotUncached> {
        self.fd.uncached_support()
    }

    /// Returns the descriptor alone.
    pub(crate) fn into_fd(self) -> Fd {
        self.fd
    }

    /// Returns the file of std, if this is the only handle.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_std(self) -> Result<std::fs::File, File> {
        let File {
            fd,
            submitter,
            direct,
            not_polled,
        } = self;
        fd.into_std().map_err(|fd| File {
            fd,
            submitter,
            direct,
            not_polled,
        })
    }

    /// Returns the `Debug` of the file of std.
    #[cfg(feature = "tokio")]
    pub(crate) fn describe(&self) -> String {
        format!("File {{ fd: {:?} }}", self.as_fd())
    }

    /// Returns a file of std with another descriptor.
    #[cfg(feature = "tokio")]
    pub(crate) fn clone_std(&self) -> io::Result<std::fs::File> {
        Ok(self.as_fd().try_clone_to_owned()?.into())
    }

    /// Moves the position of the descriptor, which the operations of this type do not use.
    #[cfg(feature = "tokio")]
    pub(crate) fn seek_descriptor(&self, position: u64) -> io::Result<()> {
        call::seek_to(self.fd.raw(), position)
    }

    /// Returns the metadata as the type of std.
    #[cfg(feature = "tokio")]
    pub(crate) fn std_metadata(&self) -> Operation<'_, StdMetadata> {
        self.op(StdMetadata::file(self.fd.clone(), self.calls_here()))
    }

    /// Returns whether writes go to the end of the file, whatever their offset.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn appends(&self) -> bool {
        self.fd.appends()
    }

    /// Returns the alignment of memory that a read can fill without a copy.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn memory_align_bytes(&self) -> usize {
        self.direct.map_or(1, |direct| direct.memory_bytes as usize)
    }

    /// Returns whether the file has offsets.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn has_offsets(&self) -> bool {
        self.fd.has_offsets()
    }

    /// Returns whether the file has no offsets, as far as that is known.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn is_stream(&self) -> bool {
        self.fd.is_stream()
    }

    /// Reads the next bytes of a file without offsets.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn read_stream<B: IoBufMut>(&self, buf: B) -> Operation<'_, ReadAt<B>> {
        self.op(ReadAt::stream(self.fd.clone(), buf))
    }

    /// Writes a part of `buf` at `offset`; to a file without offsets, as its next bytes.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    async fn write_next<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        let write = match self.fd.has_offsets() {
            true if self.ends_before(offset.saturating_add(buf.init_bytes() as u64)) => {
                let write = WriteAt::new(self.fd.clone(), buf, offset, 0, false);
                write.by_thread(true)
            }
            true => return self.write_at(buf, offset).await,
            false => WriteAt::stream(self.fd.clone(), buf),
        };
        self.op(write).await
    }

    /// Returns whether a write up to `end` makes the file longer, as far as that is known without blocking. A ring
    /// gives a buffered write of this kind to a worker of the kernel; a thread of the engine takes half the time.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    fn ends_before(&self, end: u64) -> bool {
        let is_buffered = self.direct.is_none() && !self.fd.is_simulated();
        let bytes = || call::file_bytes(self.fd.raw_for_brief_call());
        is_buffered
            && i64::try_from(end).is_ok()
            && self.calls_here()
            && bytes().is_some_and(|bytes| bytes < end)
    }

    /// Returns whether brief calls on this file may be made on the caller's thread.
    fn calls_here(&self) -> bool {
        self.fd.is_local() && self.submitter.serves()
    }

    fn op<T: crate::op::FileOp>(&self, op: T) -> Operation<'_, T> {
        Operation::new(&self.submitter, op)
    }

    #[inline]
    fn read_some<B: IoBufMut>(&self, buf: B, offset: u64) -> Operation<'_, ReadAt<B>> {
        self.read(buf, offset, Until::Once)
    }

    #[inline]
    fn read_full<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        self.read(buf, offset, Until::Full)
            .map(|result, _| result.map(|(_, buf)| buf))
    }

    #[inline]
    fn read<B: IoBufMut>(&self, mut buf: B, offset: u64, until: Until) -> Operation<'_, ReadAt<B>> {
        let checked = check_read(&mut buf, offset)
            .and_then(|bytes| self.target(buf.fill_ptr().addr(), bytes, offset));
        match checked {
            Ok(target) => self.op(ReadAt::new(self.fd.clone(), buf, offset, target, until)),
            Err(error) => Operation::ready(&self.submitter, Err(BufError::new(error, Some(buf)))),
        }
    }

    /// Returns whether a read of `bytes` may be tried on the page cache.
    fn may_be_cached(&self, bytes: usize) -> bool {
        self.direct.is_none() && bytes <= FAST_PATH_BYTES_MAX && !self.fd.is_simulated()
    }

    /// Returns where the kernel puts the bytes of a read into memory at `address`.
    #[inline]
    fn target(&self, address: usize, bytes: usize, offset: u64) -> io::Result<ReadMemory> {
        match self.direct {
            None => Ok(ReadMemory::Buf { align_bytes: 1 }),
            Some(direct) => direct.target(address, bytes, offset, &self.submitter.bounces),
        }
    }

    /// Reads into several buffers in order, starting at `offset`, in one transfer. Takes at most 1,024 buffers.
    /// Linux only.
    ///
    /// A header and a body into two buffers, with one request:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "headbody")?;
    /// let file = engine.open(&path).await?;
    /// let (bytes, bufs) = file.read_vectored_at(vec![vec![0; 4], vec![0; 100]], 0).await?;
    /// assert_eq!(bytes, 8); // the sum; the second buffer is not full
    /// assert_eq!((&bufs[0][..], &bufs[1][..4]), (&b"head"[..], &b"body"[..]));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`read_at`](File::read_at), except that one buffer with capacity is enough. On a file opened with
    /// `O_DIRECT`, fails with `InvalidInput` if any part is not aligned.
    pub fn read_vectored_at<B: IoBufMut>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, ReadVectoredAt<B>, BufResult<usize, Vec<B>>> {
        self.read_vectored(bufs, offset, false)
    }

    /// Reads until all of `bufs` are full, and continues after short transfers. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "headbody")?;
    /// let file = engine.open(&path).await?;
    /// let bufs = file.read_vectored_exact_at(vec![vec![0; 4], vec![0; 4]], 0).await?;
    /// assert_eq!(bufs, [b"head", b"body"]);
    /// let error = file.read_vectored_exact_at(bufs, 4).await.unwrap_err();
    /// assert_eq!(error.into_buf().map(|bufs| bufs.len()), Some(2)); // all buffers come back
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `UnexpectedEof` if the file ends first, and otherwise like
    /// [`read_vectored_at`](File::read_vectored_at).
    pub fn read_vectored_exact_at<B: IoBufMut>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, ReadVectoredAt<B>, WholeResult<Vec<B>>> {
        self.read_vectored(bufs, offset, true)
            .map(|result, _| result.map(|(_, bufs)| bufs))
    }

    fn read_vectored<B: IoBufMut>(
        &self,
        mut bufs: Vec<B>,
        offset: u64,
        exact: bool,
    ) -> Operation<'_, ReadVectoredAt<B>> {
        let checked = self.check_vectors(
            bufs.iter_mut()
                .map(|buf| Ok((buf.fill_ptr().addr(), check_lent(buf)?))),
            offset,
            "read",
        );
        match checked {
            Ok(_) if bufs.iter().all(|buf| buf.fill_bytes() == 0) => Operation::ready(
                &self.submitter,
                Err(BufError::new(no_capacity(), Some(bufs))),
            ),
            Ok(()) => self.op(ReadVectoredAt::new(self.fd.clone(), bufs, offset, exact)),
            Err(error) => Operation::ready(&self.submitter, Err(BufError::new(error, Some(bufs)))),
        }
    }

    fn check_vectors(
        &self,
        parts: impl Iterator<Item = io::Result<(usize, usize)>>,
        offset: u64,
        verb: &str,
    ) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            let (address, bytes) = part?;
            check_range(at, bytes)?;
            if let Some(direct) = self.direct {
                direct.check(address, bytes, at, verb)?;
            }
            at += bytes as u64;
        }
        check_range(offset, 0)
    }

    /// Writes all of `buf`: at `offset`, or to a pipe, terminal or the like, which has no offsets.
    async fn write_whole<B: IoBuf>(&self, buf: B, offset: u64) -> WholeResult<B> {
        if self.fd.has_offsets() {
            return self.write_all_at(buf, offset).await;
        }
        let (_, buf) = self.op(WriteAt::stream(self.fd.clone(), buf)).await?;
        Ok(buf)
    }

    fn write_some<B: IoBuf>(&self, buf: B, offset: u64) -> Operation<'_, WriteAt<B>> {
        self.write(buf, offset, 0, false)
    }

    fn write_full<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
        durable: bool,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        let flags = if durable { RWF_DSYNC } else { 0 };
        self.write(buf, offset, flags, true)
            .map(|result, _| result.map(|(_, buf)| buf))
    }

    fn write<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
        flags: u32,
        all: bool,
    ) -> Operation<'_, WriteAt<B>> {
        let checked = check_range(offset, buf.init_bytes()).and_then(|()| match self.direct {
            Some(direct) => {
                direct.check(buf.stable_ptr().addr(), buf.init_bytes(), offset, "write")
            }
            None => Ok(()),
        });
        match checked {
            Err(error) => Operation::ready(&self.submitter, Err(BufError::new(error, Some(buf)))),
            Ok(()) if buf.init_bytes() == 0 => Operation::ready(&self.submitter, Ok((0, buf))),
            Ok(()) => {
                let write = WriteAt::new(self.fd.clone(), buf, offset, flags, all);
                let durable = flags & RWF_DSYNC != 0;
                let buffered = self.direct.is_none() && !self.fd.is_simulated();
                self.op(write.by_thread(durable && buffered))
            }
        }
    }

    /// Writes several buffers in order, starting at `offset`, in one transfer. Takes at most 1,024 buffers.
    /// Linux only.
    ///
    /// A short write may end within any of the buffers:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let (bytes, bufs) = file.write_vectored_at(vec![b"head".to_vec(), b"body".to_vec()], 0).await?;
    /// let whole: usize = bufs.iter().map(Vec::len).sum();
    /// assert!(bytes <= whole); // `write_vectored_all_at` continues
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`write_at`](File::write_at).
    pub fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, WriteVectoredAt<B>, BufResult<usize, Vec<B>>> {
        self.write_vectored(bufs, offset, false)
    }

    /// Writes all of several buffers, and continues after short transfers. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let record = vec![b"head".to_vec(), b"body".to_vec()];
    /// let record = file.write_vectored_all_at(record, 0).await?; // without joining them first
    /// assert_eq!((record.len(), file.metadata().await?.len()), (2, 8));
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails like [`write_all_at`](File::write_all_at).
    pub fn write_vectored_all_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, WriteVectoredAt<B>, WholeResult<Vec<B>>> {
        self.write_vectored(bufs, offset, true)
            .map(|result, _| result.map(|(_, bufs)| bufs))
    }

    fn write_vectored<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
        all: bool,
    ) -> Operation<'_, WriteVectoredAt<B>> {
        let parts = bufs
            .iter()
            .map(|buf| Ok((buf.stable_ptr().addr(), buf.init_bytes())));
        match self.check_vectors(parts, offset, "write") {
            Ok(()) => self.op(WriteVectoredAt::new(self.fd.clone(), bufs, offset, 0, all)),
            Err(error) => Operation::ready(&self.submitter, Err(BufError::new(error, Some(bufs)))),
        }
    }

    /// Starts to write the changed pages of a range back to the device, or waits for them: `sync_file_range(2)`. 0
    /// bytes, and 16 TiB or more, mean up to the end of the file. Linux only.
    ///
    /// Spreads the work of a later [`sync_data`](File::sync_data), and never replaces it: neither the metadata nor the
    /// device's cache is written, so the data may be lost in a crash.
    ///
    /// # Errors
    ///
    /// Fails with any error of `sync_file_range(2)`, unchanged (`EIO`, `ENOSPC`; `ESPIPE` for a pipe). Fails with
    /// `InvalidInput` if the range ends beyond `i64::MAX`.
    pub fn sync_range(
        &self,
        offset: u64,
        bytes: u64,
        mode: SyncRangeMode,
    ) -> Operation<'_, SyncRange, io::Result<()>> {
        match check_range(offset, to_usize(bytes)) {
            Ok(()) => self.op(SyncRange::new(self.fd.clone(), mode, offset, bytes)),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Copies `bytes` bytes, starting at `offset`, to the file `into`, starting at `into_offset`: `copy_file_range(2)`,
    /// on a blocking thread. The bytes do not pass through memory of the process. Some file systems share the blocks
    /// instead (XFS, Btrfs), or copy on the server (NFS). Linux only.
    ///
    /// Returns the number of bytes. It is less than `bytes` only at the end of the file, or before an error, which the
    /// next call returns. If the future is dropped, a part may be copied.
    ///
    /// Files of `/proc` and `/sys` report a length of 0, so nothing is copied from them; use
    /// [`Engine::copy`](crate::Engine::copy).
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # std::fs::write(dir.path().join("from"), "0123456789")?;
    /// let from = engine.open(dir.path().join("from")).await?;
    /// let into = engine.create(dir.path().join("into")).await?;
    /// let copied = from.copy_range_to(6, &into, 0, 100).await?;
    /// assert_eq!(copied, 4); // the file ends
    /// assert_eq!(engine.read(dir.path().join("into")).await?, b"6789");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `copy_file_range(2)`, unchanged: `EXDEV` across most file systems, `EINVAL` if the
    /// ranges overlap in one file, `EBADF` if `into` was opened for appending. Fails with `InvalidInput` if a range
    /// ends beyond `i64::MAX`.
    pub fn copy_range_to(
        &self,
        offset: u64,
        into: &File,
        into_offset: u64,
        bytes: u64,
    ) -> Operation<'_, CopyRange, io::Result<u64>> {
        let length = to_usize(bytes);
        match check_range(offset, length).and_then(|()| check_range(into_offset, length)) {
            Ok(()) => {
                let (from, into) = ((self.fd.clone(), offset), (into.fd.clone(), into_offset));
                self.op(CopyRange::new(from, into, bytes))
            }
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Reserves, zeroes or releases a range of `bytes` bytes, starting at `offset`: `fallocate(2)`. Linux only.
    ///
    /// Reserves the space in advance, so that a later write does not find the disk full:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use annulus::op::AllocateMode;
    ///
    /// let file = engine.create(dir.path().join("log")).await?;
    /// match file.allocate(0, 1 << 20, AllocateMode::KeepLength).await {
    ///     Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(()),
    ///     allocated => allocated?, // `StorageFull` if there is no space
    /// }
    /// assert_eq!(file.metadata().await?.len(), 0); // reserved, and not part of the file yet
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `fallocate(2)`, unchanged (`ENOSPC`; `EOPNOTSUPP` if the file system does not support
    /// the mode).
    pub fn allocate(
        &self,
        offset: u64,
        bytes: u64,
        mode: AllocateMode,
    ) -> Operation<'_, Allocate, io::Result<()>> {
        self.op(Allocate::new(self.fd.clone(), mode, offset, bytes))
    }

    /// Advises the kernel how a range of `bytes` bytes, starting at `offset`, will be used: `posix_fadvise(2)`. 0
    /// bytes, and 16 TiB or more, mean up to the end of the file. Linux only.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 65_536])?;
    /// use annulus::op::Advice;
    ///
    /// let file = engine.open(&path).await?;
    /// file.advise(0, 65_536, Advice::WillNeed).await?; // the kernel begins to read; this does not wait
    /// // … other work …
    /// assert_eq!(file.read_exact_at(vec![0; 4096], 0).await?[0], 7);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `posix_fadvise(2)`, unchanged (`ESPIPE`). Fails with `InvalidInput` if `offset` is
    /// beyond `i64::MAX`.
    pub fn advise(
        &self,
        offset: u64,
        bytes: u64,
        advice: Advice,
    ) -> Operation<'_, Advise, io::Result<()>> {
        match check_range(offset, 0) {
            Ok(()) => self.op(Advise::new(self.fd.clone(), offset, bytes, advice)),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Gives the file the name `path`, on the same file system. A file that was created without a name
    /// ([`Engine::create_unnamed`](crate::Engine::create_unnamed)) thus appears whole, and only if all went well.
    /// Linux only.
    ///
    /// Uses the ring from Linux 5.15 on; before that, a blocking thread. Needs `/proc`.
    ///
    /// A file that other processes see only when it is complete:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # if let Err(error) = engine.create_unnamed(dir.path()).await { // some file systems have no `O_TMPFILE`
    /// #     assert_eq!(error.kind(), std::io::ErrorKind::Unsupported); return Ok(());
    /// # }
    /// let file = engine.create_unnamed(dir.path()).await?;
    /// file.write_all_at("complete", 0).await?;
    /// file.sync_all().await?;
    /// file.link_to(dir.path().join("name")).await?;
    /// assert_eq!(engine.read(dir.path().join("name")).await?, b"complete");
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `linkat(2)`, unchanged (`EEXIST`; `ENOENT` if the file has lost its last name).
    pub fn link_to(&self, path: impl OpPath) -> Operation<'_, Link, io::Result<()>> {
        match path.path_in().target() {
            Ok(name) => self.op(Link::open_file(self.fd.clone(), name)),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    fn fsync(&self, data_only: bool) -> Operation<'_, Fsync> {
        self.op(Fsync::new(self.fd.clone(), data_only))
    }

    fn truncate(&self, bytes: u64) -> Operation<'_, Truncate> {
        self.op(Truncate::new(self.fd.clone(), bytes))
    }

    fn chmod(&self, permissions: Permissions) -> Operation<'_, SetPermissions> {
        self.op(SetPermissions::new(self.at(), permissions.mode()))
    }

    fn utimes(&self, times: FileTimes) -> Operation<'_, SetTimes> {
        self.op(SetTimes::new(self.at(), times.timespecs()))
    }

    fn stat(&self) -> Operation<'_, StatAt, io::Result<Metadata>> {
        self.op(StatAt::file(self.fd.clone(), self.calls_here()))
            .map(|result, _| result.map(Metadata::new))
    }

    /// Returns this file as the target of an operation.
    fn at(&self) -> At {
        At::File(self.fd.clone())
    }

    /// Returns the value of the extended attribute `name`, for example `user.comment`: `fgetxattr(2)`. Linux only.
    ///
    /// Uses the ring from Linux 5.19 on; before that, a blocking thread.
    ///
    /// # Errors
    ///
    /// Fails with any error of `fgetxattr(2)`, unchanged (`ENODATA` if the file does not have it; `EOPNOTSUPP` if the
    /// file system does not support it).
    pub fn get_xattr(
        &self,
        name: impl AsRef<OsStr>,
    ) -> Operation<'_, GetXattr, io::Result<Vec<u8>>> {
        match path_to_cstring(name.as_ref().as_ref()) {
            Ok(name) => self.op(GetXattr::new(self.at(), name)),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Sets the extended attribute `name` to `value`, which has at most 64 KiB: `fsetxattr(2)`. Linux only.
    ///
    /// Uses the ring from Linux 5.19 on; before that, a blocking thread.
    ///
    /// Names of users start with `user.`. Not every file system has attributes:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// let file = engine.create(dir.path().join("data")).await?;
    /// match file.set_xattr("user.comment", "first").await {
    ///     Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(()),
    ///     set => set?,
    /// }
    /// assert_eq!(file.get_xattr("user.comment").await?, b"first");
    /// assert!(file.list_xattrs().await?.contains(&"user.comment".into()));
    /// file.remove_xattr("user.comment").await?;
    /// let error = file.get_xattr("user.comment").await.unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(61)); // `ENODATA`
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `fsetxattr(2)`, unchanged (`E2BIG`; `ENOSPC`, for example on ext4 beyond a block;
    /// `EOPNOTSUPP` if the file system does not support it).
    pub fn set_xattr(
        &self,
        name: impl AsRef<OsStr>,
        value: impl Into<Vec<u8>>,
    ) -> Operation<'_, SetXattr, io::Result<()>> {
        match path_to_cstring(name.as_ref().as_ref()) {
            Ok(name) => self.op(SetXattr::new(self.at(), name, value.into())),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Returns the names of the extended attributes: `flistxattr(2)`, on a blocking thread. Linux only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `flistxattr(2)`, unchanged.
    pub fn list_xattrs(&self) -> Operation<'_, ListXattrs, io::Result<Vec<OsString>>> {
        self.op(ListXattrs::new(self.at()))
    }

    /// Removes the extended attribute `name`: `fremovexattr(2)`, on a blocking thread. Linux only.
    ///
    /// # Errors
    ///
    /// Fails with any error of `fremovexattr(2)`, unchanged (`ENODATA` if the file does not have it).
    pub fn remove_xattr(
        &self,
        name: impl AsRef<OsStr>,
    ) -> Operation<'_, RemoveXattr, io::Result<()>> {
        match path_to_cstring(name.as_ref().as_ref()) {
            Ok(name) => self.op(RemoveXattr::new(self.at(), name)),
            Err(error) => Operation::ready(&self.submitter, Err(error)),
        }
    }

    /// Closes the file and returns the result of `close(2)`. Dropping a file also closes it, but discards the result.
    /// The dropping thread then makes the call, except for a file on a local file system that has no name any more, and
    /// for a file on FUSE that was only read.
    ///
    /// Closing shows errors that a drop hides. It waits for no other handle:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// use annulus::fs::Closed;
    ///
    /// let file = engine.create(dir.path().join("data")).await?;
    /// let clone = file.clone();
    /// assert_eq!(file.close().await?, Closed::Deferred); // `clone` has the descriptor
    /// assert_eq!(clone.close().await?, Closed::Now);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any error of `close(2)`, unchanged (`EIO` or `EDQUOT` on network file systems). The file is closed
    /// nevertheless.
    pub async fn close(self) -> io::Result<Closed> {
        let calls_here = self.calls_here();
        let (only_reads, brief) = (self.fd.only_reads(), self.fd.closes_briefly());
        let File { fd, submitter, .. } = self;
        match fd.into_raw() {
            Ok(raw) => {
                let mut close = Close::new(raw, submitter.closer.clone());
                if calls_here {
                    close = close.local(only_reads, brief);
                }
                Operation::new(&submitter, close)
                    .await
                    .map(|()| Closed::Now)
            }
            Err(_shared) => Ok(Closed::Deferred),
        }
    }
}

/// The descriptor, for calls outside the engine such as `fstat` and `flock`. Do not change its flags. For a file of a
/// simulated kernel, every call on it fails with `EBADF`.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // On the working directory, which is no descriptor, each call of a descriptor fails.
        borrow_fd(match self.fd.is_simulated() {
            true => AT_FDCWD,
            false => self.fd.raw(),
        })
    }
}

/// The alignment that direct I/O needs, in bytes. Each value is a power of two.
///
/// A range rounded to what a file needs:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16_384])?;
/// use annulus::fs::DirectAlignment;
///
/// let (offset, bytes) = (5000_u64, 3000_u64);
/// let unit = match engine.metadata(&path).await?.direct_alignment() {
///     Some(DirectAlignment { offset_bytes, .. }) => offset_bytes as u64,
///     None => 4096, // not known before Linux 6.1; every device takes it
/// };
/// let start = offset - offset % unit;
/// let end = (offset + bytes).next_multiple_of(unit);
/// assert!(start <= offset && end >= 8000 && (end - start) % unit == 0);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectAlignment {
    /// The alignment of the buffer's address.
    pub memory_bytes: usize,
    /// The alignment of the offset in the file, and of the length.
    pub offset_bytes: usize,
}

fn poll_support(fd: &Fd, submitter: &Submitter, direct: Option<Direct>) -> Result<(), NotPolled> {
    match direct {
        _ if !submitter.has_polled() => Err(NotPolled::NoRing),
        None => Err(NotPolled::Buffered),
        Some(_) => poll_queue::of_file(fd.raw()),
    }
}
