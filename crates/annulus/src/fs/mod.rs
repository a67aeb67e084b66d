//! Files: positional reads and writes, and what is done to files by descriptor.
//!
//! A [`File`] is opened by an [`Engine`](crate::Engine) and keeps that engine's drivers alive. Every
//! method returns a future that asks nothing of the kernel until it is polled, and that may be
//! dropped at any point.

mod dir;
mod direct;
mod load;
mod many;
mod merge;
mod metadata;
mod options;
pub(crate) mod paths;
mod read_into;

pub use dir::DirEntry;
pub use load::Load;
pub use many::{Completed, ReadMany};
pub use merge::{Merge, ReadMerged};
pub use metadata::{DeviceNumber, FileKind, Metadata};
pub use options::{OpenOptions, Opening};
pub use read_into::ReadInto;

pub use crate::fd::CachedReads;
pub use crate::op::{Advice, AllocateMode};
pub use crate::sys::poll_queue::NotPolled;

pub(crate) use options::path_to_cstring;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buf::{IoBuf, IoBufMut, ReadTarget, check_capacity, check_lent, no_capacity};
use crate::driver::{Operation, Submitter};
use crate::error::{BufError, WholeResult};
use crate::fd::Fd;
use crate::op::{
    Advise, Allocate, Close, FAST_PATH_BYTES_MAX, Fsync, ReadAt, ReadVectoredAt, StatAt, Target,
    Truncate, Until, WriteAt, WriteVectoredAt,
};
use crate::sys::call;
use crate::sys::call::borrow_fd;
use crate::sys::poll_queue;
use crate::sys::sqe::RWF_DSYNC;
use direct::Direct;

/// An open file. Cheap to clone; clones share the descriptor, which the last of them closes.
#[derive(Clone, Debug)]
pub struct File {
    fd: Fd,
    submitter: Arc<Submitter>,
    /// Present if the file was opened with `O_DIRECT`.
    direct: Option<Direct>,
    /// Why its device is not polled; `None` where it is, or was until the kernel refused.
    not_polled: Option<Arc<NotPolled>>,
}

impl File {
    pub(crate) fn new(fd: Fd, submitter: Arc<Submitter>) -> io::Result<File> {
        if !fd.is_simulated() && !call::is_seekable(fd.raw()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a pipe, a socket or a terminal has no offsets to read or write at",
            ));
        }
        let direct = if fd.is_simulated() {
            None
        } else {
            Direct::of(&fd)?
        };
        if !fd.is_simulated() && call::is_fuse(fd.raw()) {
            // Of a short transfer past the page cache a ring's kernel (seen on 6.18) asks the rest at the offset
            // of the first part: the end of a file reads as whole.
            fd.keep_from_rings();
        }
        let polled = poll_support(&fd, &submitter, direct);
        fd.set_polled(polled.is_ok());
        Ok(File {
            fd,
            submitter,
            direct,
            not_polled: polled.err().map(Arc::new),
        })
    }

    /// Whether reads and writes of this file are polled for, on an engine that was built with
    /// [`EngineBuilder::iopoll`](crate::EngineBuilder::iopoll). Found out when the file was opened, and
    /// corrected when the kernel refuses a transfer.
    ///
    /// # Errors
    ///
    /// Why they are not; the text ends with what to do. The file works all the same, by interrupts.
    pub fn poll_support(&self) -> Result<(), NotPolled> {
        match &self.not_polled {
            Some(why) => Err(NotPolled::clone(why)),
            None if self.fd.is_polled() => Ok(()),
            None => Err(NotPolled::Refused),
        }
    }

    /// Returns the alignment that direct I/O on this file needs; `None` if the file was not opened with `O_DIRECT`.
    /// From `statx`, since Linux 6.1; before that, the file system's block size.
    pub fn direct_alignment(&self) -> Option<DirectAlignment> {
        self.direct.map(|direct| DirectAlignment {
            memory_bytes: direct.memory_bytes as usize,
            offset_bytes: direct.offset_bytes as usize,
        })
    }

    /// Sets what reads of this file do about the page cache before they go to a driver, from now on;
    /// [`CachedReads::Learn`] by default, and the costs are there. Clones share it; other files, and the
    /// same one opened again, have their own.
    ///
    /// It is about [`read_at`](File::read_at), [`read_exact_at`](File::read_exact_at),
    /// [`read_into`](File::read_into) and [`read_many_at`](File::read_many_at), of at most 128 KiB each.
    /// On files opened with `O_DIRECT` it changes nothing.
    pub fn set_cached_reads(&self, policy: CachedReads) {
        self.fd.cached().set(policy);
    }

    /// The descriptor, for calls that are not the engine's: `fstat`, `flock`. Its flags are not to be changed.
    /// `None`: the file is a simulated kernel's.
    ///
    /// Not [`AsFd`](std::os::fd::AsFd), which has no way to say that.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.fd.is_simulated()).then(|| borrow_fd(self.fd.raw()))
    }

    /// The descriptor alone.
    pub(crate) fn into_fd(self) -> Fd {
        self.fd
    }

    fn op<T: crate::op::Op>(&self, op: T) -> Operation<'_, T> {
        Operation::new(&self.submitter, op)
    }

    /// Reads into `buf` from `offset` on: one transfer.
    ///
    /// The count may be short of what the buffer lends; 0 is the end of the file. Buffered data that
    /// the page cache holds is copied on the calling thread at the first poll, without a driver.
    ///
    /// On a file opened with `O_DIRECT`, a read that is not aligned goes through aligned memory of
    /// the engine, rounded out, and the part asked for is copied.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept; `InvalidInput` for an offset beyond `i64::MAX`, and for a buffer without
    /// room, as 0 would look like the end of the file. The buffer comes back with the error.
    pub fn read_at<B: IoBufMut>(&self, buf: B, offset: u64) -> Operation<'_, ReadAt<B>> {
        self.read(buf, offset, Until::Once)
    }

    /// Reads until `buf` is full, submitting the rest of short transfers again.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file ends first; otherwise as [`read_at`](File::read_at).
    pub fn read_exact_at<B: IoBufMut>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, ReadAt<B>, WholeResult<B>> {
        self.read(buf, offset, Until::Full)
            .map(|result, _| result.map(|(_, buf)| buf))
    }

    fn read<B: IoBufMut>(&self, mut buf: B, offset: u64, until: Until) -> Operation<'_, ReadAt<B>> {
        let bytes = match check_read(&mut buf, offset) {
            Ok(bytes) => bytes,
            Err(error) => {
                return Operation::ready(&self.submitter, Err(BufError::new(error, Some(buf))));
            }
        };
        let target = self.target(buf.fill_ptr().addr(), bytes, offset);
        self.op(ReadAt::new(self.fd.clone(), buf, offset, target, until))
    }

    /// Whether a read of `bytes` is worth a look at the page cache.
    fn may_be_cached(&self, bytes: usize) -> bool {
        self.direct.is_none() && bytes <= FAST_PATH_BYTES_MAX && !self.fd.is_simulated()
    }

    /// Where the kernel puts the bytes of a read into memory at `address`.
    fn target(&self, address: usize, bytes: usize, offset: u64) -> Target {
        match self.direct {
            None => Target::Buf { align_bytes: 1 },
            Some(direct) => direct.target(address, bytes, offset, &self.submitter.bounces),
        }
    }

    /// Reads from `offset` on into a slice that the caller keeps: one transfer.
    ///
    /// Sound although the slice is only borrowed: the kernel sees memory of the engine, which is
    /// copied when the answer is taken. Cached data is read straight into the slice.
    ///
    /// # Errors
    ///
    /// As [`read_at`](File::read_at).
    pub fn read_into<'a>(&'a self, offset: u64, into: &'a mut [u8]) -> ReadInto<'a> {
        ReadInto::new(self, offset, into)
    }

    /// Reads into several buffers in order, from `offset` on: one transfer, of at most 1,024 buffers.
    ///
    /// # Errors
    ///
    /// As [`read_at`](File::read_at), where a single buffer with room is enough; on a file opened with
    /// `O_DIRECT`, `InvalidInput` if any part is not aligned.
    pub fn read_vectored_at<B: IoBufMut>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, ReadVectoredAt<B>> {
        self.read_vectored(bufs, offset, false)
    }

    /// Reads until all of `bufs` are full, submitting the rest of short transfers again.
    ///
    /// # Errors
    ///
    /// As [`read_vectored_at`](File::read_vectored_at), and `UnexpectedEof` if the file ends first.
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

    /// Writes `buf` at `offset`: one transfer; the count may be short.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOSPC`, `EFBIG`, …); `InvalidInput` for an offset beyond
    /// `i64::MAX`, and for a write to a file opened with `O_DIRECT` that is not aligned: such a write
    /// would have to read and write back its neighbours' bytes.
    pub fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> Operation<'_, WriteAt<B>> {
        self.write(buf, offset, 0, false)
    }

    /// Writes all of `buf`, submitting the rest of short transfers again.
    ///
    /// # Errors
    ///
    /// As [`write_at`](File::write_at), and `WriteZero` if the file takes no more.
    pub fn write_all_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        self.write(buf, offset, 0, true)
            .map(|result, _| result.map(|(_, buf)| buf))
    }

    /// Writes all of `buf`, durably: when the answer comes the bytes, and the metadata needed to read
    /// them, are on stable storage (`RWF_DSYNC`).
    ///
    /// On a file that was not opened with `O_DIRECT` this is a system call on a blocking thread, with
    /// every backend: a ring would do such writes to one file one after the other. As many run side by
    /// side as there are [`blocking_threads`](crate::EngineBuilder::blocking_threads).
    ///
    /// # Errors
    ///
    /// As [`write_all_at`](File::write_all_at).
    pub fn write_all_durable_at<B: IoBuf>(
        &self,
        buf: B,
        offset: u64,
    ) -> Operation<'_, WriteAt<B>, WholeResult<B>> {
        self.write(buf, offset, RWF_DSYNC, true)
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

    /// Writes several buffers in order, from `offset` on: one transfer, of at most 1,024 buffers.
    ///
    /// # Errors
    ///
    /// As [`write_at`](File::write_at).
    pub fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: Vec<B>,
        offset: u64,
    ) -> Operation<'_, WriteVectoredAt<B>> {
        self.write_vectored(bufs, offset, false)
    }

    /// Writes all of several buffers, submitting the rest of short transfers again.
    ///
    /// # Errors
    ///
    /// As [`write_all_at`](File::write_all_at).
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

    /// Reads many ranges, submitted together.
    ///
    /// Take the answers as they come, with [`ReadMany::next`], or await the whole for all of them in
    /// the order asked.
    pub fn read_many_at<B, I>(&self, reads: I) -> ReadMany<'_, B, I::IntoIter>
    where
        B: IoBufMut,
        I: IntoIterator<Item = (B, u64)>,
    {
        ReadMany::new(self, reads.into_iter())
    }

    /// Makes data and metadata durable: `fsync(2)`.
    ///
    /// Covers the writes that were answered before this was polled first, and no others. An error
    /// may be reported only once (the kernel forgets it); never take a later success for the data's.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`EIO`, `ENOSPC`, `EDQUOT`).
    pub fn sync_all(&self) -> Operation<'_, Fsync> {
        self.op(Fsync::new(self.fd.clone(), false))
    }

    /// Makes data durable, and what metadata is needed to read it back: `fdatasync(2)`.
    ///
    /// # Errors
    ///
    /// As [`sync_all`](File::sync_all).
    pub fn sync_data(&self) -> Operation<'_, Fsync> {
        self.op(Fsync::new(self.fd.clone(), true))
    }

    /// Reserves, zeroes or gives up the range of `bytes` from `offset` on: `fallocate(2)`.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ENOSPC`, `EOPNOTSUPP` where the file system can't).
    pub fn allocate(&self, mode: AllocateMode, offset: u64, bytes: u64) -> Operation<'_, Allocate> {
        self.op(Allocate::new(self.fd.clone(), mode, offset, bytes))
    }

    /// Tells the kernel how the range of `bytes` from `offset` on will be used; 0 bytes is "to the
    /// end". `posix_fadvise(2)`.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`ESPIPE`).
    pub fn advise(&self, advice: Advice, offset: u64, bytes: u64) -> Operation<'_, Advise> {
        self.op(Advise::new(self.fd.clone(), offset, bytes, advice))
    }

    /// Cuts the file, or lengthens it with a hole, to `bytes`: `ftruncate(2)`.
    ///
    /// Since Linux 6.9 on the ring; before that, on a blocking thread.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept (`EFBIG`, `EINVAL` if not open for writing).
    pub fn set_len(&self, bytes: u64) -> Operation<'_, Truncate> {
        self.op(Truncate::new(self.fd.clone(), bytes))
    }

    /// What the file system knows about the file: `statx(2)`.
    ///
    /// # Errors
    ///
    /// The kernel's, errno kept.
    pub fn metadata(&self) -> Operation<'_, StatAt, io::Result<Metadata>> {
        self.op(StatAt::file(self.fd.clone()))
            .map(|result, _| result.map(Metadata::new))
    }

    /// Closes the file and returns the file system's result. Dropping a file closes it too, without a result.
    ///
    /// # Errors
    ///
    /// The error of `close(2)` (`EIO`, `EDQUOT` on network file systems). The file is closed nevertheless.
    pub async fn close(self) -> io::Result<Closed> {
        let File { fd, submitter, .. } = self;
        match fd.into_raw() {
            Ok(raw) => {
                let close = Close::new(raw, submitter.closer.clone());
                Operation::new(&submitter, close)
                    .await
                    .map(|()| Closed::Now)
            }
            Err(_shared) => Ok(Closed::Deferred),
        }
    }
}

/// The result of [`File::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closed {
    /// The descriptor is closed.
    Now,
    /// Clones of the file, or operations that were dropped before they completed, still hold the descriptor. The last
    /// of them closes it.
    Deferred,
}

/// The alignment that direct I/O needs, in bytes. Each value is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectAlignment {
    /// Alignment of the buffer's address.
    pub memory_bytes: usize,
    /// Alignment of the offset in the file, and of the length.
    pub offset_bytes: usize,
}

fn poll_support(fd: &Fd, submitter: &Submitter, direct: Option<Direct>) -> Result<(), NotPolled> {
    match direct {
        _ if !submitter.has_polled() => Err(NotPolled::NoRing),
        None => Err(NotPolled::Buffered),
        Some(_) => poll_queue::of_file(fd.raw()),
    }
}

/// The bytes that a read into `buf` may fill from `offset` on; at least 1.
#[inline]
pub(crate) fn check_read<B: IoBufMut>(buf: &mut B, offset: u64) -> io::Result<usize> {
    let bytes = check_capacity(buf)?;
    check_range(offset, bytes).map(|()| bytes)
}

/// Refuses ranges that the kernel's signed offsets can't express. An offset of all ones would mean
/// "the current position" to io_uring (trap 49).
pub(crate) fn check_range(offset: u64, bytes: usize) -> io::Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{bytes} bytes at offset {offset} end beyond the largest offset of a file, {}",
                i64::MAX
            ),
        )),
    }
}
