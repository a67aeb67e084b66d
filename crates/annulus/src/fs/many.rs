//! Many reads as one batch: a stream of completions, or all together in the order of the requests.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::merge::{Merge, ReadMerged};
use super::{File, check_read};
use crate::buf::{IoBufMut, ReadTarget};
use crate::driver::many::Batch;
use crate::driver::{Operation, coop_budget};
use crate::error::{BufError, BufResult};
use crate::metrics::OperationNumber;
use crate::narrow::to_u32;
use crate::op::{Op, READS_PER_STEP, ReadAt, Sleep, Try, Until, read_cached};
use crate::sys::engine_error::{EngineError, error_of};

/// Reads of one batch submitted at a time; the rest of the iterator is read as answers come. It
/// bounds the memory of a batch, not what the device is given: that is the engine's in-flight limit.
const WINDOW: usize = 1024;

/// One answer of a batch.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed<B> {
    /// Which read: 0 for the first asked.
    pub index: usize,
    /// Where it began.
    pub offset: u64,
    /// Its answer, as of [`File::read_at`].
    pub result: BufResult<usize, B>,
}

/// Which read an operation of a batch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) index: usize,
    pub(crate) offset: u64,
}

/// Reads under way, made by [`File::read_many_at`].
///
/// [`next`](ReadMany::next) gives the answers as they come; awaiting the whole gives all of them in
/// the order asked. Dropping it leaves what is in flight to the engine, soundly.
#[must_use = "reads do nothing until their results are polled"]
pub struct ReadMany<'a, B: IoBufMut, I> {
    file: &'a File,
    reads: I,
    /// The iterator has ended.
    exhausted: bool,
    /// Reads that were pushed and wait for the iterator to end. As long as its holder makes it.
    pushed: VecDeque<(B, u64)>,
    next_index: usize,
    window: usize,
    batch: Batch<'a, ReadAt<B>, ReadRequest>,
    /// Reads to be tried on the page cache together.
    staged: Vec<Try<B>>,
    /// Answers that needed no driver: cached data, refused offsets and buffers.
    ready: VecDeque<Completed<B>>,
    timeout: Timeout<'a>,
}

/// A batch's time limit.
pub(crate) struct Timeout<'a>(Option<Operation<'a, Sleep>>);

impl<'a> Timeout<'a> {
    pub(crate) fn none() -> Timeout<'a> {
        Timeout(None)
    }

    pub(crate) fn set(&mut self, file: &'a File, timeout: Duration) {
        self.0 = Some(Operation::new(&file.submitter, Sleep).timeout(timeout));
    }

    /// The errno for what has no answer, if none can be waited for: the time is up, or the kernel is
    /// gone. The waker is registered if not.
    pub(crate) fn gives_up<T: Op, K: Copy>(
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
                // An engine that shuts down answers everything itself.
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
        }
    }

    /// Keeps at most `reads` submitted at a time (1,024 by default, at least 1): the memory of a
    /// batch over a long iterator.
    pub fn window(mut self, reads: usize) -> Self {
        self.window = reads.max(1);
        self
    }

    /// Gives the batch at most `timeout` from its first poll on; reads without an answer by then
    /// answer `TimedOut`, without their buffers unless they were [pushed](ReadMany::push) and still
    /// waited for the iterator to end.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout.set(self.file, timeout);
        self
    }

    /// Reads neighbouring ranges together, through memory of the engine.
    pub fn merge(self, merge: Merge) -> ReadMerged<'a, B> {
        ReadMerged::new(self.file, self.reads, merge)
    }

    /// Adds a read behind all others: behind the whole iterator, too. While that has items left, the
    /// read waits, and so does its buffer; its index follows those of the iterator.
    ///
    /// Reads added one by one are submitted in small groups, or when [`next`](ReadMany::next) finds
    /// nothing to return.
    pub fn push(&mut self, buf: B, offset: u64) {
        // An iterator that says it is empty is not asked for an item: that is for `next`.
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

    /// Puts a read on its way to a driver.
    fn submit_read(&mut self, mut buf: B, request: ReadRequest) {
        let target = self
            .file
            .target(buf.fill_ptr().addr(), buf.fill_bytes(), request.offset);
        let read = ReadAt::new(
            self.file.fd.clone(),
            buf,
            request.offset,
            target,
            Until::Once,
        );
        self.batch.add(read.past_the_cache(), request);
    }

    /// Tries what is staged on the page cache; what is not there goes to a driver.
    fn finish_issue(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let mut staged = std::mem::take(&mut self.staged);
        // Each of them waits for all.
        let submitted_ns = self.file.submitter.sample();
        let mut attempts = 0;
        for reads in staged.chunks_mut(READS_PER_STEP) {
            let ask = self.file.fd.cached().attempts_of(reads.len());
            if let Some(reads) = reads.get_mut(..ask).filter(|reads| !reads.is_empty()) {
                read_cached(&self.file.fd, reads, self.file.submitter.has_rings());
                attempts += ask;
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

    /// Whether there may be reads that have not been begun.
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

    /// Answers everything that has no answer with an error.
    fn give_up(&mut self, errno: i32) {
        self.exhausted = true;
        for request in self.batch.abandon(errno) {
            let lost = BufError::new(error_of(errno), None);
            self.ready.push_back(request.result(Err(lost)));
        }
        for (buf, offset) in self.pushed.drain(..) {
            let request = ReadRequest {
                index: self.next_index,
                offset,
            };
            self.next_index += 1;
            let unread = BufError::new(error_of(errno), Some(buf));
            self.ready.push_back(request.result(Err(unread)));
        }
    }

    /// The next answer, in the order they come; `None` when every read has been answered.
    ///
    /// Cancel safe: an answer is lost only together with the `ReadMany`.
    pub async fn next(&mut self) -> Option<Completed<B>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`next`](ReadMany::next) for those who poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Completed<B>>> {
        if !coop_budget::may_go_on() {
            // Enough reads were served from the page cache: let the neighbours have a turn. What could not
            // be answered so is on its way meanwhile.
            coop_budget::reset();
            self.batch.flush();
            context.waker().wake_by_ref();
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
                // Answers may have come in the meantime.
                self.poll_next(context)
            }
        }
    }
}

impl ReadRequest {
    pub(crate) fn result<B>(self, result: BufResult<usize, B>) -> Completed<B> {
        Completed {
            index: self.index,
            offset: self.offset,
            result,
        }
    }
}

impl<'a, B, I> IntoFuture for ReadMany<'a, B, I>
where
    B: IoBufMut,
    I: Iterator<Item = (B, u64)> + Send + 'a,
{
    type Output = Vec<BufResult<usize, B>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut results: Vec<Option<BufResult<usize, B>>> = Vec::new();
            while let Some(Completed { index, result, .. }) = self.next().await {
                if results.len() <= index {
                    results.resize_with(index + 1, || None);
                }
                if let Some(entry) = results.get_mut(index) {
                    *entry = Some(result);
                }
            }
            results.into_iter().flatten().collect()
        })
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
