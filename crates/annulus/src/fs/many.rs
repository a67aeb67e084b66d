//! Many reads as one batch, with results in order of completion or in order of the requests.

mod results;

pub use results::Completed;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::merge::{Merge, ReadMerged};
use super::{File, check_read};
use crate::buf::{IoBufMut, ReadTarget};
use crate::driver::Operation;
use crate::driver::coop_budget::{self, Yields};
use crate::driver::many::Batch;
use crate::error::{BufError, BufResult};
use crate::metrics::OperationNumber;
use crate::narrow::to_u32;
use crate::op::{FileOp, Op, READS_PER_STEP, ReadAt, Sleep, Try, Until, read_cached};
use crate::sys::engine_error::{EngineError, error_of};

/// The number of reads of one batch that are submitted at a time; the iterator is advanced as reads complete. This
/// bounds the memory of a batch. The load on the device is bounded by the engine's in-flight limits.
const WINDOW: usize = 1024;

/// The request that an operation of a batch executes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) index: usize,
    pub(crate) offset: u64,
}

/// A batch of reads, returned by [`File::read_many_at`].
///
/// [`next`](ReadMany::next) returns results in order of completion; awaiting the batch itself returns all of them in
/// order of the requests. Dropping the batch is sound: the engine keeps the buffers of the reads in flight, and frees
/// them.
///
/// The requests may come from a long iterator, which is advanced as reads complete:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
/// let file = engine.open(&path).await?;
/// let reads = (0..1000).map(|i| (vec![0; 100], i * 100)); // buffers are allocated late
/// let mut batch = file.read_many_at(reads).window(16); // at most 16 at a time
/// let mut bytes = 0;
/// while let Some(completed) = batch.next().await {
///     bytes += completed.result?.0;
/// }
/// assert_eq!(bytes, 100_000);
/// # Ok(()) }) }
/// ```
#[must_use = "reads do nothing until they are awaited or polled"]
pub struct ReadMany<'a, B: IoBufMut, I> {
    file: &'a File,
    reads: I,
    /// The iterator has ended.
    exhausted: bool,
    /// Reads that were pushed and wait for the iterator to end. Unbounded: the caller controls the length.
    pushed: VecDeque<(B, u64)>,
    next_index: usize,
    window: usize,
    batch: Batch<'a, ReadAt<B>, ReadRequest>,
    /// Reads that will be tried on the page cache together.
    staged: Vec<Try<B>>,
    /// Results that needed no driver: cached data, and rejected offsets and buffers.
    ready: VecDeque<Completed<B>>,
    timeout: Timeout<'a>,
    yields: Yields,
    /// The errno for all further reads, once the timeout has passed or the ring has failed.
    gave_up: Option<i32>,
}

/// The time limit of a batch.
pub(crate) struct Timeout<'a>(Option<Operation<'a, Sleep>>);

impl<'a> Timeout<'a> {
    pub(crate) fn none() -> Timeout<'a> {
        Timeout(None)
    }

    pub(crate) fn set(&mut self, file: &'a File, timeout: Duration) {
        self.0 = Some(Operation::new(&file.submitter, Sleep::new(timeout)).timeout(timeout));
    }

    /// Returns the errno for incomplete reads if waiting for them is pointless: the time is up, or the ring has failed.
    /// Otherwise registers the waker.
    pub(crate) fn gives_up<T: FileOp, K: Copy>(
        &mut self,
        batch: &Batch<'_, T, K>,
        context: &mut Context<'_>,
    ) -> Option<i32> {
        batch
            .failed()
            .or_else(|| self.passed(context).then_some(EngineError::TimedOut.code()))
    }

    fn passed(&mut self, context: &mut Context<'_>) -> bool {
        let Some(sleep) = &mut self.0 else {
            return false;
        };
        match Pin::new(sleep).poll(context) {
            Poll::Pending => false,
            Poll::Ready(slept) => {
                self.0 = None;
                // An engine that shuts down completes all operations itself.
                slept.is_ok()
            }
        }
    }
}

impl<'a, B: IoBufMut, I: Iterator<Item = (B, u64)>> ReadMany<'a, B, I> {
    pub(super) fn new(file: &'a File, reads: I) -> ReadMany<'a, B, I> {
        ReadMany {
            file,
            reads,
            exhausted: false,
            pushed: VecDeque::new(),
            next_index: 0,
            window: WINDOW,
            batch: Batch::new(&file.submitter),
            staged: Vec::new(),
            ready: VecDeque::new(),
            timeout: Timeout::none(),
            yields: Yields::default(),
            gave_up: None,
        }
    }

    /// Sets how many reads are submitted at a time; 1,024 by default, at least 1. This bounds the memory of a batch
    /// over a long iterator.
    pub fn window(mut self, reads: usize) -> Self {
        self.window = reads.max(1);
        self
    }

    /// Limits the batch to `timeout` from its first poll on. Every read that is incomplete by then fails with
    /// `TimedOut`, also those that the iterator has not returned yet, and those that are [pushed](ReadMany::push)
    /// later. Reads that were not submitted return their buffers.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// use std::{io::ErrorKind, time::Duration};
    ///
    /// let file = engine.open(&path).await?;
    /// let mut batch = file.read_many_at([(vec![0; 4096], 0)]).timeout(Duration::from_secs(30));
    /// while let Some(completed) = batch.next().await {
    ///     match completed.result {
    ///         Ok((_, page)) => assert_eq!(page[0], 7),
    ///         Err(error) if error.error().kind() == ErrorKind::TimedOut => {} // ask another replica
    ///         Err(error) => return Err(error.into()),
    ///     }
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout.set(self.file, timeout);
        self
    }

    /// Merges reads of neighbouring ranges into larger transfers, through memory of the engine. Linux only.
    ///
    /// One hundred small records become one transfer, and each still gets its own buffer:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 10_000])?;
    /// use annulus::fs::Merge;
    ///
    /// let file = engine.open(&path).await?;
    /// let records = (0..100).map(|i| (vec![0; 20], i * 100));
    /// let mut batch = file.read_many_at(records).merge(Merge::new(4096, 1 << 20));
    /// assert_eq!(batch.transfers(), 1);
    /// while let Some(completed) = batch.next().await {
    ///     assert_eq!(completed.result?.1, [7; 20]);
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn merge(self, merge: Merge) -> ReadMerged<'a, B> {
        ReadMerged::new(self.file, self.reads, merge)
    }

    /// Adds a read after all others, including the whole iterator. The read and its buffer wait while the iterator has
    /// items left. Its index follows those of the iterator.
    ///
    /// Reads that are added one at a time are submitted in small groups, or when [`next`](ReadMany::next) has no result
    /// to return.
    ///
    /// A search that finds out where to read on:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, [3, 0, 0, 7])?;
    /// let file = engine.open(&path).await?;
    /// let mut batch = file.read_many_at([(vec![0; 1], 0)]);
    /// let mut last = 0;
    /// while let Some(completed) = batch.next().await {
    ///     let (_, buf) = completed.result?;
    ///     last = buf[0];
    ///     if completed.index == 0 {
    ///         batch.push(buf, u64::from(last)); // follows the pointer, with the same buffer
    ///     }
    /// }
    /// assert_eq!(last, 7);
    /// # Ok(()) }) }
    /// ```
    pub fn push(&mut self, buf: B, offset: u64) {
        // An iterator that reports itself empty is not advanced here; `next` does that.
        let ended = self.exhausted || self.reads.size_hint().1 == Some(0);
        if !ended || !self.pushed.is_empty() {
            return self.pushed.push_back((buf, offset));
        }
        self.add(buf, offset);
        if self.staged.len() == READS_PER_STEP {
            self.finish_issue();
        }
        self.batch.flush_chunk();
    }

    fn add(&mut self, mut buf: B, offset: u64) {
        let request = ReadRequest {
            index: self.next_index,
            offset,
        };
        self.next_index += 1;
        if let Some(errno) = self.gave_up {
            coop_budget::count(1, 0);
            let unread = BufError::new(error_of(errno), Some(buf));
            return self.ready.push_back(request.result(Err(unread)));
        }
        let bytes = match check_read(&mut buf, offset) {
            Ok(bytes) => bytes,
            Err(error) => {
                let result = request.result(Err(BufError::new(error, Some(buf))));
                return self.ready.push_back(result);
            }
        };
        if self.file.may_be_cached(bytes) {
            return self.staged.push(Try {
                buf,
                bytes,
                offset,
                index: request.index,
                hit: false,
            });
        }
        self.submit_read(buf, request);
    }

    /// Adds a read to the driver's batch.
    fn submit_read(&mut self, mut buf: B, request: ReadRequest) {
        let (address, bytes) = (buf.fill_ptr().addr(), buf.fill_bytes());
        let target = match self.file.target(address, bytes, request.offset) {
            Ok(target) => target,
            Err(error) => {
                let result = request.result(Err(BufError::new(error, Some(buf))));
                return self.ready.push_back(result);
            }
        };
        let read = ReadAt::new(
            self.file.fd.clone(),
            buf,
            request.offset,
            target,
            Until::Once,
        );
        self.batch.add(read.past_the_cache(), request);
    }

    /// Tries the staged reads on the page cache, and submits those that miss.
    fn finish_issue(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let mut staged = std::mem::take(&mut self.staged);
        // The reads are tried together, so each takes as long as all of them.
        let submitted_ns = self.file.submitter.sample();
        let mut attempts = 0;
        for reads in staged.chunks_mut(READS_PER_STEP) {
            let allowed = self.file.fd.cached().attempts_of(reads.len());
            if let Some(reads) = reads.get_mut(..allowed).filter(|reads| !reads.is_empty()) {
                read_cached(&self.file.fd, reads, self.file.submitter.has_rings());
                attempts += allowed;
            }
        }
        let before = self.ready.len();
        for Try {
            buf,
            bytes,
            offset,
            index,
            hit,
        } in staged.drain(..)
        {
            let request = ReadRequest { index, offset };
            if hit {
                coop_budget::count(1, to_u32(bytes));
                self.ready.push_back(request.result(Ok((bytes, buf))));
            } else {
                self.submit_read(buf, request);
            }
        }
        self.staged = staged;
        let hits = self.ready.len() - before;
        if hits > 0 {
            self.file
                .submitter
                .count_sync(OperationNumber::READ_AT, hits as u64, submitted_ns);
        }
        if attempts > hits {
            self.file
                .submitter
                .count_sync_missed((attempts - hits) as u64);
        }
    }

    fn outstanding(&self) -> usize {
        self.batch.outstanding() + self.staged.len() + self.ready.len()
    }

    /// Returns whether further reads may be waiting to start.
    fn has_more(&self) -> bool {
        !self.exhausted || !self.pushed.is_empty()
    }

    fn refill(&mut self) {
        while self.has_more()
            && self.outstanding() < self.window
            && self.staged.len() < READS_PER_STEP
        {
            let next = if self.exhausted {
                self.pushed.pop_front()
            } else {
                self.reads.next()
            };
            match next {
                Some((buf, offset)) => self.add(buf, offset),
                None => self.exhausted = true,
            }
        }
    }

    /// Fails every incomplete read with `errno`. Reads that have not started fail in `add`.
    fn give_up(&mut self, errno: i32) {
        self.gave_up = Some(errno);
        for request in self.batch.abandon(errno) {
            let lost = BufError::new(error_of(errno), None);
            self.ready.push_back(request.result(Err(lost)));
        }
    }

    /// Polls for the next result; see [`next`](ReadMany::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Completed<B>>> {
        if self.yields.poll(context).is_pending() {
            // Many reads were served from the page cache: yield to other tasks. Reads that missed are submitted
            // meanwhile.
            self.batch.flush();
            if let Some(errno) = self.timeout.gives_up(&self.batch, context) {
                self.give_up(errno);
            }
            return Poll::Pending;
        }
        if let Some(ready) = self.ready.pop_front() {
            return Poll::Ready(Some(ready));
        }
        while self.has_more() && self.ready.is_empty() && self.outstanding() < self.window {
            self.refill();
            self.finish_issue();
        }
        self.finish_issue();
        self.batch.flush_if_idle();
        if let Some(ready) = self.ready.pop_front() {
            return Poll::Ready(Some(ready));
        }
        match self.batch.poll_next(context) {
            Poll::Ready(Some((request, op, res))) => {
                Poll::Ready(Some(request.result(op.complete(res))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                coop_budget::reset();
                let Some(errno) = self.timeout.gives_up(&self.batch, context) else {
                    return Poll::Pending;
                };
                self.give_up(errno);
                // Reads may have completed in the meantime.
                self.poll_next(context)
            }
        }
    }
}

impl<B: IoBufMut, I> Unpin for ReadMany<'_, B, I> {}

impl ReadRequest {
    pub(crate) fn result<B>(self, result: BufResult<usize, B>) -> Completed<B> {
        Completed {
            index: self.index,
            offset: self.offset,
            result,
        }
    }
}

impl<B: IoBufMut, I> fmt::Debug for ReadMany<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadMany")
            .field("next_index", &self.next_index)
            .field("outstanding", &self.batch.outstanding())
            .finish_non_exhaustive()
    }
}
