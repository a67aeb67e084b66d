//! Reads of ranges: one, many as a batch, and a stream that reads ahead.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use annulus::File;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};

use crate::error::Failure;

/// The longest range that is read before `get` returns, bytes. A caller of a short range usually wants all of it.
pub(crate) const SHORT_BYTES: u64 = 1 << 20;
/// The size of a stream's reads, bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// The number of reads that a stream has in flight.
const READ_AHEAD: usize = 4;
/// The longest read for several ranges, bytes. Each of them keeps all of it in memory.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// Checks a range against the length of the file, so that no memory is allocated for bytes that do not exist.
fn check(path: &Path, range: &Range<u64>, file_bytes: u64) -> Result<(), Failure> {
    let Range { start, end } = *range;
    if start > end || end > file_bytes && start != end {
        let reason = format!(
            "the range {start}..{end} is not within the file, which has {file_bytes} bytes"
        );
        return Err(Failure::invalid("read", path, reason));
    }
    Ok(())
}

/// Returns memory for `bytes` bytes.
fn buffer(path: &Path, bytes: u64) -> Result<Vec<u8>, Failure> {
    let failed = |_| Failure::other("read", path, io::ErrorKind::OutOfMemory.into());
    let bytes = usize::try_from(bytes).map_err(|_| failed(()))?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| failed(()))?;
    // An allocator may return more, which a read would fill.
    if buffer.capacity() != bytes {
        buffer.resize(bytes, 0);
    }
    Ok(buffer)
}

/// Reads `range`. Fails if the file ends first.
pub(crate) async fn range(file: &File, path: &Path, range: Range<u64>) -> Result<Bytes, Failure> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let buffer = buffer(path, range.end - range.start)?;
    match file.read_exact_at(buffer, range.start).await {
        Ok(buffer) => Ok(buffer.into()),
        Err(error) => Err(Failure::other("read", path, error.into())),
    }
}

/// Reads a long range in order, with several reads in flight. Ends after an error.
pub(crate) fn stream(
    file: File,
    path: Arc<Path>,
    long: Range<u64>,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send + 'static {
    let end = long.end;
    stream::iter(long.step_by(CHUNK_BYTES))
        .map(move |start| {
            let (file, path) = (file.clone(), Arc::clone(&path));
            let chunk = start..end.min(start + CHUNK_BYTES as u64);
            async move { range(&file, &path, chunk).await }
        })
        .buffered(READ_AHEAD)
        .scan(false, |has_failed, chunk| {
            let next = (!*has_failed).then_some(chunk);
            *has_failed |= matches!(next, Some(Err(_)));
            std::future::ready(next)
        })
}

/// Reads many ranges as one batch. Ranges that touch or overlap share a read.
pub(crate) async fn ranges(
    file: &File,
    path: &Path,
    file_bytes: u64,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>, Failure> {
    for range in ranges {
        check(path, range, file_bytes)?;
    }
    let plan = Plan::new(ranges);
    let failed = |error: io::Error| Failure::other("read", path, error);
    let mut done = vec![Bytes::new(); plan.reads.len()];
    let mut short = Vec::new();
    // Memory is allocated as the batch takes the reads, so this checks its size only.
    if let Some(longest) = plan.reads.iter().map(|read| read.end - read.start).max() {
        drop(buffer(path, longest)?);
    }
    let buffers = plan.reads.iter().map(|read| {
        let buffer = buffer(path, read.end - read.start).unwrap_or_default();
        (buffer, read.start)
    });
    let mut batch = file.read_many_at(buffers);
    while let Some(completed) = batch.next().await {
        let (bytes, buffer) = completed.result.map_err(|error| failed(error.into()))?;
        let index = completed.index;
        let Some(read) = plan.reads.get(index) else {
            continue;
        };
        if (bytes as u64) < read.end - read.start {
            short.push((index, bytes, buffer));
        } else if let Some(done) = done.get_mut(index) {
            *done = buffer.into();
        }
    }
    // A transfer may end before the range does. What is left fails if the file has become shorter.
    for (index, bytes, mut buffer) in short {
        if let (Some(read), Some(done)) = (plan.reads.get(index), done.get_mut(index)) {
            buffer.truncate(bytes);
            let rest = range(file, path, read.start + bytes as u64..read.end).await?;
            buffer.extend_from_slice(&rest);
            *done = buffer.into();
        }
    }
    Ok(plan.split(ranges, &mut done))
}

/// The reads for a list of ranges.
struct Plan {
    /// In the order of the file.
    reads: Vec<Range<u64>>,
    /// The number of ranges that each read serves.
    users: Vec<usize>,
    /// The read of each range; `None` for an empty range.
    read_of: Vec<Option<usize>>,
}

impl Plan {
    fn new(ranges: &[Range<u64>]) -> Plan {
        let mut order: Vec<_> = ranges
            .iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty())
            .collect();
        order.sort_unstable_by_key(|(_, range)| range.start);
        let mut plan = Plan {
            reads: Vec::with_capacity(order.len()),
            users: Vec::with_capacity(order.len()),
            read_of: vec![None; ranges.len()],
        };
        for (index, range) in order {
            match (plan.reads.last_mut(), plan.users.last_mut()) {
                (Some(read), Some(users)) if may_share(read, range) => {
                    read.end = read.end.max(range.end);
                    *users += 1;
                }
                _ => {
                    plan.reads.push(range.clone());
                    plan.users.push(1);
                }
            }
            if let Some(read) = plan.read_of.get_mut(index) {
                *read = plan.reads.len().checked_sub(1);
            }
        }
        plan
    }

    /// Returns the bytes of each range.
    fn split(&self, ranges: &[Range<u64>], done: &mut [Bytes]) -> Vec<Bytes> {
        let part = |(range, read): (&Range<u64>, &Option<usize>)| -> Option<Bytes> {
            let read = (*read)?;
            let bytes = done.get_mut(read)?;
            if *self.users.get(read)? == 1 {
                return Some(std::mem::take(bytes));
            }
            let start = self.reads.get(read)?.start;
            let from = usize::try_from(range.start - start).ok()?;
            let to = usize::try_from(range.end - start).ok()?;
            Some(bytes.slice(from..to))
        };
        let parts = ranges.iter().zip(&self.read_of).map(part);
        parts.map(Option::unwrap_or_default).collect()
    }
}

/// Returns whether `range`, which does not start before `read`, becomes a part of it.
fn may_share(read: &Range<u64>, range: &Range<u64>) -> bool {
    let within = range.end <= read.end;
    within || range.start <= read.end && range.end - read.start <= MERGED_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_share_a_read_up_to_a_limit() {
        let plan = Plan::new(&[100..200, 0..100, 300..400, 150..160, 5..5]);
        assert_eq!(plan.reads, [0..200, 300..400]);
        assert_eq!(plan.users, [3, 1]);
        assert_eq!(plan.read_of, [Some(0), Some(0), Some(1), Some(0), None]);
        let mib = 1 << 20;
        let plan = Plan::new(&[0..mib, mib..mib + 1, 0..3 * mib, 10..20]);
        assert!(
            plan.reads
                .iter()
                .all(|read| read.end - read.start <= 3 * mib)
        );
        let plan = Plan::new(&[0..mib, mib..mib + 1]);
        assert_eq!(plan.reads, [0..mib, mib..mib + 1]);
    }

    #[test]
    fn each_range_gets_its_bytes() {
        let ranges = [100..200, 0..100, 300..400, 150..160, 5..5];
        let plan = Plan::new(&ranges);
        let file: Vec<u8> = (0..=255).cycle().take(400).collect();
        let at = |range: &Range<u64>| {
            let (from, to) = (
                range.start.try_into().unwrap(),
                range.end.try_into().unwrap(),
            );
            let from: usize = from;
            Bytes::copy_from_slice(&file[from..to])
        };
        let mut done: Vec<_> = plan.reads.iter().map(at).collect();
        let expected: Vec<_> = ranges.iter().map(at).collect();
        assert_eq!(plan.split(&ranges, &mut done), expected);
    }
}
