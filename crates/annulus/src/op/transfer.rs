//! # Safety
//!
//! `write_at`, `read_vectored_at`, `write_vectored_at` and their exact forms: WRITE, READV or WRITEV; or `pwritev2`,
//! `preadv2`. They differ in direction and shape. `read_at` has its own file, because it knows the page cache and
//! direct I/O. Owns the descriptor (Open) and the buffers (Lent, Still). Treats at most the transferred bytes as
//! initialised (Written).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::shape::{Buffers, Shape, Single, Vectors};
use super::{
    FileOp, Op, OpInfo, Resume, Returns, ended, refused, retry_interrupted, table, transfer_len,
};
use crate::buf::{IoBuf, IoBufMut, ReadTarget};
use crate::error::{BufError, BufResult};
use crate::fd::Fd;
use crate::sys::errno::{check, count};
use crate::sys::sqe::{Sqe, opcode};
use crate::sys::transfer_call::{self, AT_POSITION};
use crate::sys::transfer_flags::TransferFlags;

/// Writes a buffer of type `B` at an offset; the result is the number of bytes and the buffer.
pub type WriteAt<B> = Transfer<Write, Single<B>>;

/// Writes several buffers in order at an offset; the result is the number of bytes and the buffers.
pub type WriteVectoredAt<B> = Transfer<Write, Vectors<B>>;

/// Reads at an offset into several buffers in order; the result is the number of bytes and the buffers.
pub type ReadVectoredAt<B> = Transfer<Read, Vectors<B>>;

/// A transfer between a file, at an offset, and buffers.
#[derive(Debug)]
pub struct Transfer<D, S> {
    fd: Fd,
    offset: u64,
    shape: S,
    flags: TransferFlags,
    /// Continues until all bytes are transferred, or the file ends.
    all: bool,
    /// Uses a blocking thread even if a ring could do the transfer.
    by_thread: bool,
    direction: PhantomData<D>,
}

/// The direction of a transfer, with what depends on its shape.
pub trait Direction<S: Shape>: Send + 'static {
    const INFO: OpInfo;

    /// Transfers `rest` at `offset` with a system call.
    ///
    /// # Safety
    ///
    /// Lent, Open: `rest` is the rest of a shape that the caller owns, and `raw` is open.
    unsafe fn call(raw: i32, rest: (*mut u8, usize), offset: u64, flags: TransferFlags) -> i32;

    /// Marks the first `bytes` as initialised.
    ///
    /// # Safety
    ///
    /// Written: the kernel has filled the buffers in order, `bytes` in all.
    unsafe fn fill(_bufs: &mut S::Bufs, _bytes: usize) {}

    /// Returns the error of a transfer that stopped early without an error of the kernel.
    fn stopped(bytes: usize, want: usize, bufs: S::Bufs) -> BufError<S::Bufs>;
}

/// From the file into buffers.
#[derive(Debug)]
pub enum Read {}

/// From buffers into the file.
#[derive(Debug)]
pub enum Write {}

impl<B: IoBuf> Direction<Single<B>> for Write {
    const INFO: OpInfo = table::WRITE_AT;

    unsafe fn call(
        raw: i32,
        (base, bytes): (*mut u8, usize),
        offset: u64,
        flags: TransferFlags,
    ) -> i32 {
        // SAFETY: Lent, Open: the caller upholds the contract of `Direction`.
        unsafe { transfer_call::pwrite(raw, base, bytes, offset, flags) }
    }

    fn stopped(bytes: usize, want: usize, buf: B) -> BufError<B> {
        refused(bytes, want, buf)
    }
}

impl<B: IoBuf> Direction<Vectors<B>> for Write {
    const INFO: OpInfo = table::WRITE_VECTORED_AT;

    unsafe fn call(
        raw: i32,
        (vectors, count): (*mut u8, usize),
        offset: u64,
        flags: TransferFlags,
    ) -> i32 {
        // SAFETY: Lent, Open: the caller upholds the contract of `Direction`.
        unsafe { transfer_call::pwritev(raw, vectors.cast(), count, offset, flags) }
    }

    fn stopped(bytes: usize, want: usize, bufs: Vec<B>) -> BufError<Vec<B>> {
        refused(bytes, want, bufs)
    }
}

impl<B: IoBufMut> Direction<Vectors<B>> for Read {
    const INFO: OpInfo = table::READ_VECTORED_AT;

    unsafe fn call(
        raw: i32,
        (vectors, count): (*mut u8, usize),
        offset: u64,
        flags: TransferFlags,
    ) -> i32 {
        // SAFETY: Lent, Open: the caller upholds the contract of `Direction`.
        unsafe { transfer_call::preadv(raw, vectors.cast(), count, offset, flags) }
    }

    unsafe fn fill(bufs: &mut Vec<B>, mut bytes: usize) {
        for buf in bufs {
            let filled = bytes.min(buf.fill_bytes());
            // SAFETY: Written: the caller upholds the contract of `Direction`.
            unsafe { buf.set_filled(filled) };
            bytes -= filled;
        }
    }

    fn stopped(bytes: usize, want: usize, bufs: Vec<B>) -> BufError<Vec<B>> {
        ended(bytes, want, bufs)
    }
}

impl<B: IoBuf> WriteAt<B> {
    pub(crate) fn new(fd: Fd, buf: B, offset: u64, flags: u32, all: bool) -> WriteAt<B> {
        Transfer::of(fd, Single::new(buf), offset, flags, all)
    }

    /// Writes all of `buf` to a file without offsets, on a blocking thread, which waits for the reader.
    pub(crate) fn stream(fd: Fd, buf: B) -> WriteAt<B> {
        WriteAt::new(fd, buf, AT_POSITION, 0, true).by_thread(true)
    }

    /// Sets whether the write uses a blocking thread. A ring's workers do the buffered writes to one file one at a
    /// time. For durable writes that is too slow, because each waits for the device.
    pub(crate) fn by_thread(mut self, by_thread: bool) -> WriteAt<B> {
        self.by_thread = by_thread;
        self
    }
}

impl<B: IoBuf> WriteVectoredAt<B> {
    pub(crate) fn new(
        fd: Fd,
        bufs: Vec<B>,
        offset: u64,
        flags: u32,
        all: bool,
    ) -> WriteVectoredAt<B> {
        Transfer::of(fd, Vectors::from(bufs), offset, flags, all)
    }
}

impl<B: IoBufMut> ReadVectoredAt<B> {
    pub(crate) fn new(fd: Fd, bufs: Vec<B>, offset: u64, exact: bool) -> ReadVectoredAt<B> {
        Transfer::of(fd, Vectors::into(bufs), offset, 0, exact)
    }
}

impl<D: Direction<S>, S: Shape> Transfer<D, S> {
    fn of(fd: Fd, shape: S, offset: u64, flags: u32, all: bool) -> Transfer<D, S> {
        Transfer {
            flags: fd.flags(flags),
            fd,
            offset,
            shape,
            all,
            by_thread: false,
            direction: PhantomData,
        }
    }

    fn rest_offset(&self) -> u64 {
        match self.offset {
            AT_POSITION => AT_POSITION,
            offset => offset + self.shape.done() as u64,
        }
    }
}

// SAFETY: Lent, Still, Open: the shape owns its memory at a fixed address, and `fd` keeps the descriptor open.
unsafe impl<D: Direction<S>, S: Shape> Op for Transfer<D, S> {
    const INFO: OpInfo = D::INFO;

    fn sqe(&mut self) -> Sqe {
        let off = self.rest_offset();
        let (rest, count) = self.shape.rest();
        Sqe {
            addr: rest as u64,
            len: transfer_len(count),
            off,
            op_flags: self.flags.bits(),
            ..Sqe::new(D::INFO.opcode, self.fd.raw())
        }
    }

    fn resume(&mut self, res: i32) -> Resume {
        if self.fd.remove_refused(&mut self.flags, res) {
            return Resume::Again;
        }
        let again = match retry_interrupted(res) {
            // Return the bytes before the error. A further call returns the error again.
            Resume::Done(..0) if self.shape.done() > 0 && !self.all => false,
            other if res < 0 => return other,
            _ => {
                self.shape.advance(count(res));
                self.all && res > 0 && self.shape.has_rest()
            }
        };
        if again {
            return Resume::Again;
        }
        // At most 2 GiB; `complete` does not use it.
        Resume::Done(i32::try_from(self.shape.done()).unwrap_or(i32::MAX))
    }

    fn complete(self, res: i32) -> Self::Output {
        let (bytes, want) = (self.shape.done(), self.shape.want());
        let mut bufs = self.shape.into_bufs();
        if let Err(error) = check(res) {
            return Err(BufError::new(error, Some(bufs)));
        }
        // SAFETY: Written: the kernel has transferred `bytes`, in order.
        unsafe { D::fill(&mut bufs, bytes) };
        if self.all && bytes < want {
            return Err(D::stopped(bytes, want, bufs));
        }
        Ok((bytes, bufs))
    }
}

impl<D, S: Buffers> Returns for Transfer<D, S> {
    type Output = BufResult<usize, S::Bufs>;
}

impl<D: Direction<S>, S: Shape> FileOp for Transfer<D, S> {
    #[inline]
    fn opcode(&self) -> u8 {
        if self.by_thread {
            return opcode::BY_THREAD;
        }
        self.fd.opcode_of_transfer(D::INFO.opcode)
    }

    fn syscall(&mut self) -> i32 {
        let offset = self.rest_offset();
        // SAFETY: Lent, Open: the op owns both, and is not touched during the call.
        unsafe { D::call(self.fd.raw(), self.shape.rest(), offset, self.flags) }
    }

    #[inline]
    fn is_polled(&self) -> bool {
        self.fd.is_polled()
    }

    fn stop_polling(&mut self) {
        self.fd.set_polled(false);
    }

    fn bytes(&self) -> u32 {
        u32::try_from(self.shape.want()).unwrap_or(u32::MAX)
    }
}
