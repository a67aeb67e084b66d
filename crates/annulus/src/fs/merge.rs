//! A batch that reads neighbouring ranges together. It makes fewer, larger transfers, at the cost of a copy and of
//! reading the gaps.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::many::{Completed, ReadRequest, Timeout};
use super::{File, check_read};
use crate::buf::{Bounce, IoBufMut, copy_in};
use crate::driver::many::Batch;
use crate::error::{BufError, BufResult};
use crate::item_stream::item_stream;
use crate::narrow::to_usize;
use crate::op::{Op, ReadAt, Until};
use crate::sys::engine_error::{error_of, same_error};

/// The limits for merging ranges.
///
/// Ranges that are further apart than the gap stay separate:
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
/// use annulus::fs::Merge;
///
/// let file = engine.open(&path).await?;
/// let reads = [0, 1000, 50_000].map(|offset| (vec![0; 100], offset));
/// let near = file.read_many_at(reads.clone()).merge(Merge::new(4096, 1 << 20));
/// assert_eq!(near.transfers(), 2);
/// let touching = file.read_many_at(reads).merge(Merge::new(0, 1 << 20));
/// assert_eq!(touching.transfers(), 3);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merge {
    /// The widest gap to read along, in bytes; 0 merges only ranges that touch or overlap.
    pub gap_bytes: u64,
    /// The longest merged transfer, in bytes. A single range may be longer.
    pub max_bytes: usize,
}

impl Default for Merge {
    /// Returns limits of 4 KiB for gaps and 1 MiB for transfers.
    fn default() -> Merge {
        Merge {
            gap_bytes: 4 << 10,
            max_bytes: 1 << 20,
        }
    }
}

impl Merge {
    /// Merges ranges at most `gap_bytes` apart, into transfers of at most `max_bytes`.
    pub fn new(gap_bytes: u64, max_bytes: usize) -> Merge {
        Merge {
            gap_bytes,
            max_bytes,
        }
    }
}

/// A read that takes its bytes from a merged transfer.
struct Part<B> {
    request: ReadRequest,
    buf: B,
    bytes: usize,
}

/// A batch of merged reads, returned by [`ReadMany::merge`](super::ReadMany::merge). Used like
/// [`ReadMany`](super::ReadMany). Its reads are copied from the engine's memory, so every error returns the buffer. If
/// it is dropped, the results that were not taken are lost, with their buffers.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123456789")?;
/// use annulus::fs::Merge;
///
/// let file = engine.open(&path).await?;
/// let reads = [(vec![0; 4], 0), (vec![0; 4], 8)]; // the file ends within the second range
/// let mut batch = file.read_many_at(reads).merge(Merge::default());
/// let mut lengths = [0; 2];
/// while let Some(completed) = batch.next().await {
///     lengths[completed.index] = completed.result?.0;
/// }
/// assert_eq!(lengths, [4, 2]); // as without merging
/// # Ok(()) }) }
/// ```
#[must_use = "reads do nothing until they are awaited or polled"]
pub struct ReadMerged<'a, B: IoBufMut> {
    file: &'a File,
    /// The parts that each range serves, with the ranges in file order.
    plan: Vec<Option<Vec<Part<B>>>>,
    ranges: VecDeque<(u64, usize)>,
    batch: Batch<'a, ReadAt<Bounce>, usize>,
    results: VecDeque<Completed<B>>,
    is_submitted: bool,
    timeout: Timeout<'a>,
}

impl<'a, B: IoBufMut> ReadMerged<'a, B> {
    pub(super) fn new(
        file: &'a File,
        reads: impl Iterator<Item = (B, u64)>,
        merge: Merge,
    ) -> ReadMerged<'a, B> {
        let mut results = VecDeque::new();
        let mut parts: Vec<Part<B>> = Vec::new();
        for (index, (mut buf, offset)) in reads.enumerate() {
            let request = ReadRequest { index, offset };
            match check_read(&mut buf, offset) {
                Err(error) => {
                    results.push_back(request.result(Err(BufError::new(error, Some(buf)))))
                }
                Ok(bytes) => parts.push(Part {
                    request,
                    buf,
                    bytes,
                }),
            }
        }
        let (ranges, plan) = plan(parts, merge);
        ReadMerged {
            file,
            plan,
            ranges,
            batch: Batch::new(&file.submitter),
            results,
            is_submitted: false,
            timeout: Timeout::none(),
        }
    }

    /// Limits the batch to `timeout` from its first poll on. Reads that are incomplete by then fail with `TimedOut`,
    /// and return their buffers.
    ///
    /// The reads of one transfer fail together:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, vec![7; 4096])?;
    /// use std::time::Duration;
    /// use annulus::fs::Merge;
    ///
    /// let file = engine.open(&path).await?;
    /// let reads = [(vec![0; 100], 0), (vec![0; 100], 200)];
    /// let mut batch = file.read_many_at(reads).merge(Merge::default()).timeout(Duration::from_secs(30));
    /// while let Some(completed) = batch.next().await {
    ///     match completed.result {
    ///         Ok((bytes, _)) => assert_eq!(bytes, 100),
    ///         Err(error) => drop(error.into_buf()), // always there: the reads were made into other memory
    ///     }
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout.set(self.file, timeout);
        self
    }

    /// Returns the number of transfers that the reads were merged into.
    pub fn transfers(&self) -> usize {
        self.plan.len()
    }

    fn start(&mut self) {
        self.is_submitted = true;
        for (key, (offset, bytes)) in std::mem::take(&mut self.ranges).into_iter().enumerate() {
            let memory = self.file.submitter.bounces.take(bytes).and_then(|bounce| {
                let target = self.file.target(bounce.as_ptr().addr(), bytes, offset)?;
                Ok((bounce, target))
            });
            let (bounce, target) = match memory {
                Ok(memory) => memory,
                Err(error) => {
                    self.split(key, Err(BufError::new(error, None)));
                    continue;
                }
            };
            // A short transfer in the middle of a file must not look like the end of the file to later parts.
            self.batch.add(
                ReadAt::new(
                    self.file.fd.clone(),
                    bounce,
                    offset,
                    target,
                    Until::FullOrEnd,
                ),
                key,
            );
        }
        self.batch.flush();
    }

    /// Returns the next result, in order of completion; `None` when every read has completed.
    ///
    /// Cancel safe: dropping the future loses no result.
    pub async fn next(&mut self) -> Option<Completed<B>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next result; see [`next`](ReadMerged::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Completed<B>>> {
        if !self.is_submitted {
            self.start();
        }
        loop {
            if let Some(result) = self.results.pop_front() {
                return Poll::Ready(Some(result));
            }
            match self.batch.poll_next(context) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some((key, op, res))) => self.split(key, op.complete(res)),
                Poll::Pending => {
                    let Some(errno) = self.timeout.gives_up(&self.batch, context) else {
                        return Poll::Pending;
                    };
                    for key in self.batch.abandon(errno) {
                        let parts = self
                            .plan
                            .get_mut(key)
                            .and_then(Option::take)
                            .unwrap_or_default();
                        self.results.extend(parts.into_iter().map(|part| {
                            // The kernel never had this buffer, so the error can return it.
                            let error = error_of(errno);
                            part.request
                                .result(Err(BufError::new(error, Some(part.buf))))
                        }));
                    }
                }
            }
        }
    }

    /// Distributes the bytes of a transfer to its parts.
    fn split(&mut self, key: usize, result: BufResult<usize, Bounce>) {
        let parts = self
            .plan
            .get_mut(key)
            .and_then(Option::take)
            .unwrap_or_default();
        let from = parts
            .iter()
            .map(|part| part.request.offset)
            .min()
            .unwrap_or(0);
        for mut part in parts {
            let result = match &result {
                Ok((bytes, bounce)) => {
                    let start = to_usize(part.request.offset - from);
                    let end = (start + part.bytes).min(*bytes).max(start);
                    copy_in(&mut part.buf, bounce.get(start..end).unwrap_or_default());
                    Ok((end - start, part.buf))
                }
                Err(error) => Err(BufError::new(same_error(error.error()), Some(part.buf))),
            };
            self.results.push_back(part.request.result(result));
        }
    }
}

/// Ranges (offset, bytes) in file order, and the parts of each.
type Plan<B> = (VecDeque<(u64, usize)>, Vec<Option<Vec<Part<B>>>>);

fn plan<B>(mut parts: Vec<Part<B>>, merge: Merge) -> Plan<B> {
    parts.sort_by_key(|part| part.request.offset);
    let mut ranges: VecDeque<(u64, usize)> = VecDeque::new();
    let mut plan: Vec<Option<Vec<Part<B>>>> = Vec::new();
    for part in parts {
        let (from, to) = (part.request.offset, part.request.offset + part.bytes as u64);
        if let (Some((start, bytes)), Some(Some(members))) = (ranges.back_mut(), plan.last_mut()) {
            let end = *start + *bytes as u64;
            let merged = to_usize(to.max(end) - *start);
            if from <= end.saturating_add(merge.gap_bytes) && merged <= merge.max_bytes {
                *bytes = merged;
                members.push(part);
                continue;
            }
        }
        ranges.push_back((from, part.bytes));
        plan.push(Some(vec![part]));
    }
    (ranges, plan)
}

impl<B: IoBufMut> Unpin for ReadMerged<'_, B> {}

item_stream!(['a, B: IoBufMut] ReadMerged<'a, B>, Completed<B>);

impl<'a, B: IoBufMut> IntoFuture for ReadMerged<'a, B> {
    type Output = Vec<BufResult<usize, B>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut results = Vec::new();
            while let Some(completed) = self.next().await {
                results.push(completed);
            }
            results.sort_by_key(|completed| completed.index);
            results
                .into_iter()
                .map(|completed| completed.result)
                .collect()
        })
    }
}

impl<B: IoBufMut> fmt::Debug for ReadMerged<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadMerged")
            .field("transfers", &self.plan.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(reads: &[(u64, usize)], merge: Merge) -> Vec<(u64, usize, usize)> {
        let parts = reads
            .iter()
            .enumerate()
            .map(|(index, &(offset, bytes))| Part {
                request: ReadRequest { index, offset },
                buf: (),
                bytes,
            })
            .collect();
        let (ranges, plan) = plan(parts, merge);
        let counts = plan.iter().map(|parts| parts.as_ref().map_or(0, Vec::len));
        ranges
            .into_iter()
            .zip(counts)
            .map(|((offset, bytes), parts)| (offset, bytes, parts))
            .collect()
    }

    #[test]
    fn neighbours_within_the_gap_are_read_together() {
        let merge = Merge {
            gap_bytes: 100,
            max_bytes: 10_000,
        };
        assert_eq!(ranges(&[(1000, 50), (0, 900)], merge), [(0, 1050, 2)]);
        assert_eq!(
            ranges(&[(0, 900), (1001, 50)], merge),
            [(0, 900, 1), (1001, 50, 1)]
        );
    }

    #[test]
    fn a_merged_range_stays_within_its_limit() {
        let merge = Merge {
            gap_bytes: 0,
            max_bytes: 8192,
        };
        let reads: Vec<_> = (0..5).map(|n| (n * 4096, 4096)).collect();
        assert_eq!(
            ranges(&reads, merge),
            [(0, 8192, 2), (8192, 8192, 2), (16384, 4096, 1)]
        );
    }

    #[test]
    fn overlapping_and_equal_ranges_share_one_transfer() {
        let merge = Merge {
            gap_bytes: 0,
            max_bytes: 1 << 20,
        };
        assert_eq!(
            ranges(&[(10, 100), (0, 500), (10, 100)], merge),
            [(0, 500, 3)]
        );
    }
}
