//! Reads into borrowed memory. The kernel writes only to memory of the engine (Lent). The copy into the borrowed slice
//! is made when the result is taken, so a dropped or leaked future leaves no pointer into the slice.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::{File, check_range};
use crate::buf::{Bounce, IoBufMut, no_capacity};
use crate::driver::Operation;
use crate::driver::coop_budget::{self, Yields};
use crate::metrics::OperationNumber;
use crate::narrow::to_u32;
use crate::op::{ReadAt, Until};
use crate::sys::transfer_call;
use crate::sys::transfer_flags::RWF_NOWAIT;

/// The future of [`File::read_into`]. Returns the number of bytes. If it is dropped or fails, a part of
/// the slice may have been overwritten.
///
/// A part of a larger array is filled in place:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
/// use std::time::Duration;
///
/// let file = engine.open(&path).await?;
/// let mut table = [0; 8];
/// let bytes = file.read_into(&mut table[4..], 2).timeout(Duration::from_secs(30)).await?;
/// assert_eq!((bytes, table), (4, *b"\0\0\0\02345"));
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is awaited"]
pub struct ReadInto<'a> {
    file: &'a File,
    offset: u64,
    into: &'a mut [u8],
    timeout: Option<Duration>,
    yields: Yields,
    read: Option<Operation<'a, ReadAt<Bounce>>>,
}

impl<'a> ReadInto<'a> {
    pub(super) fn new(file: &'a File, offset: u64, into: &'a mut [u8]) -> ReadInto<'a> {
        ReadInto {
            file,
            offset,
            into,
            timeout: None,
            yields: Yields::default(),
            read: None,
        }
    }

    /// Limits the read to `timeout` from its first poll on; see [`Operation::timeout`].
    ///
    /// [`Operation::timeout`]: crate::Operation::timeout
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returns the read for data that is not cached.
    fn past_the_cache(&self) -> io::Result<ReadAt<Bounce>> {
        let File { fd, submitter, .. } = self.file;
        let bytes = self.into.len();
        let mut bounce = submitter.bounces.take(bytes)?;
        let address = bounce.stable_mut_ptr().addr();
        let target = self.file.target(address, bytes, self.offset)?;
        let read = ReadAt::new(fd.clone(), bounce, self.offset, target, Until::Once);
        Ok(read.past_the_cache())
    }

    /// Returns whether the file ends `n` bytes after the start of the read, without blocking.
    fn ends_after(&mut self, n: usize) -> bool {
        let rest = self.into.get_mut(n..).unwrap_or_default();
        let (fd, offset) = (&self.file.fd, self.offset + n as u64);
        let flags = fd.flags(RWF_NOWAIT);
        n == 0 || transfer_call::pread_into(fd.raw_for_brief_call(), rest, offset, flags) == Ok(0)
    }

    /// Copies cached data on the calling thread.
    fn fill_from_cache(&mut self) -> Option<usize> {
        let (fd, bytes) = (&self.file.fd, self.into.len());
        if !self.file.may_be_cached(bytes) || !fd.cached().should_try() {
            return None;
        }
        let submitted_ns = self.file.submitter.sample();
        let flags = fd.flags(RWF_NOWAIT);
        match transfer_call::pread_into(fd.raw_for_brief_call(), self.into, self.offset, flags) {
            Ok(n) if n == bytes || self.ends_after(n) => {
                fd.cached().hit();
                self.file
                    .submitter
                    .count_sync(OperationNumber::READ_AT, 1, submitted_ns);
                return Some(n);
            }
            // Partly cached: an ordinary read follows.
            Ok(_) => {}
            Err(res) => fd.note_cached_refusal(res),
        }
        self.file.submitter.count_sync_missed(1);
        None
    }
}

impl Future for ReadInto<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.read.is_none() {
            if let Err(error) = check_range(this.offset, this.into.len()) {
                return Poll::Ready(Err(error));
            }
            if this.into.is_empty() {
                return Poll::Ready(Err(no_capacity()));
            }
            ready!(this.yields.poll(context));
            if let Some(bytes) = this.fill_from_cache() {
                coop_budget::count(1, to_u32(bytes));
                return Poll::Ready(Ok(bytes));
            }
            let mut read = this.file.op(this.past_the_cache()?);
            if let Some(timeout) = this.timeout {
                read = read.timeout(timeout);
            }
            this.read = Some(read);
        }
        let Some(read) = &mut this.read else {
            return Poll::Pending;
        };
        match Pin::new(read).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Ready(Ok((bytes, bounce))) => {
                if let (Some(into), Some(from)) = (this.into.get_mut(..bytes), bounce.get(..bytes))
                {
                    into.copy_from_slice(from);
                }
                Poll::Ready(Ok(bytes))
            }
        }
    }
}
