//! Many reads as one batch, with results in order of completion or in order of the requests.

#[path = "../fs/many/results.rs"]
mod results;

pub use results::Completed;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::File;
use crate::buf::IoBufMut;
use crate::driver::Operation;
use crate::error::{BufError, BufResult};
use crate::op::ReadAt;
use crate::sys::engine_error::EngineError;

/// The number of reads of one batch that are submitted at a time: more than the default number of threads.
const WINDOW: usize = 128;

/// A batch of reads, returned by [`File::read_many_at`].
///
/// [`next`](ReadMany::next) returns results in order of completion; awaiting the batch itself returns all of them in
/// order of the requests.
#[must_use = "reads do nothing until they are awaited or polled"]
pub struct ReadMany<'a, B: IoBufMut, I> {
    file: &'a File,
    /// `None` once it has ended.
    reads: Option<I>,
    /// Reads that were pushed and wait for the iterator to end.
    pushed: VecDeque<(B, u64)>,
    next_index: usize,
    window: usize,
    in_flight: Vec<InFlight<'a, B>>,
    timeout: Option<Duration>,
    /// From the first poll on, if there is a timeout.
    until: Option<Instant>,
}

struct InFlight<'a, B> {
    index: usize,
    offset: u64,
    read: Operation<'a, ReadAt<B>, BufResult<usize, B>>,
}

impl<'a, B: IoBufMut, I: Iterator<Item = (B, u64)>> ReadMany<'a, B, I> {
    pub(super) fn new(file: &'a File, reads: I) -> ReadMany<'a, B, I> {
        ReadMany {
            file,
            reads: Some(reads),
            pushed: VecDeque::new(),
            next_index: 0,
            window: WINDOW,
            in_flight: Vec::new(),
            timeout: None,
            until: None,
        }
    }

    /// Sets how many reads are submitted at a time; 128 by default, at least 1.
    pub fn window(mut self, reads: usize) -> Self {
        self.window = reads.max(1);
        self
    }

    /// Limits the batch to `timeout` from its first poll on. Every read that is incomplete by then fails with
    /// `TimedOut`. Reads that have not started return their buffers.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Adds a read after all others, including the whole iterator. It starts at the next poll.
    pub fn push(&mut self, buf: B, offset: u64) {
        self.pushed.push_back((buf, offset));
    }

    fn next_request(&mut self) -> Option<(B, u64)> {
        if let Some(next) = self.reads.as_mut().and_then(Iterator::next) {
            return Some(next);
        }
        self.reads = None;
        self.pushed.pop_front()
    }

    /// Polls for the next result; see [`next`](ReadMany::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Completed<B>>> {
        let (now, file) = (Instant::now(), self.file);
        let within = self.timeout.take();
        self.until = self.until.or_else(|| now.checked_add(within?));
        while self.in_flight.len() < self.window {
            let Some((buf, offset)) = self.next_request() else {
                break;
            };
            let index = self.next_index;
            self.next_index += 1;
            let left = (self.until).map(|until| until.saturating_duration_since(now));
            let mut read = match left {
                None => file.read_at(buf, offset),
                Some(left) if !left.is_zero() => file.read_at(buf, offset).timeout(left),
                Some(_) => {
                    let late = BufError::new(EngineError::TimedOut.into(), Some(buf));
                    Operation::new(&file.submitter, Err(Err(late)))
                }
            };
            match Pin::new(&mut read).poll(context) {
                Poll::Ready(result) => return completed(index, offset, result),
                Poll::Pending => self.in_flight.push(InFlight {
                    index,
                    offset,
                    read,
                }),
            }
        }
        for at in 0..self.in_flight.len() {
            if let Some(InFlight { read, .. }) = self.in_flight.get_mut(at)
                && let Poll::Ready(result) = Pin::new(read).poll(context)
            {
                let InFlight { index, offset, .. } = self.in_flight.swap_remove(at);
                return completed(index, offset, result);
            }
        }
        match self.in_flight.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}

fn completed<B>(
    index: usize,
    offset: u64,
    result: BufResult<usize, B>,
) -> Poll<Option<Completed<B>>> {
    Poll::Ready(Some(Completed {
        index,
        offset,
        result,
    }))
}

impl<B: IoBufMut, I> Unpin for ReadMany<'_, B, I> {}

impl<B: IoBufMut, I> fmt::Debug for ReadMany<'_, B, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadMany")
            .field("next_index", &self.next_index)
            .field("outstanding", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
