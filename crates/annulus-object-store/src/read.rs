//! Reads of ranges: one, many as a batch, and a stream that reads ahead.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annulus::File;
use annulus::buf::{Arena, ArenaBuf, IoBufMut};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::Failure;

/// The longest range that is read before `get` returns, bytes. A caller of a short range usually wants all of it.
pub(crate) const SHORT_BYTES: u64 = 1 << 20;
/// The size of a stream's reads, bytes. Small, so that the chunks ahead fit into a processor's cache.
const CHUNK_BYTES: u64 = 128 << 10;
/// The number of reads that a stream has in flight.
const READ_AHEAD: usize = 8;
/// The longest read for several ranges, bytes. Each of them keeps all of it in memory.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// The least bytes of a part of a batch: some milliseconds of copying, and much more than a task costs.
const PART_BYTES_MIN: u64 = 8 << 20;
/// The most parts of a batch. Few processors copy as fast as the memory allows.
const PARTS_MAX: usize = 4;

/// The memory for the bytes of objects: the heap, or the buffers of an arena while enough of them are free.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The arena, and the number of buffers that stay free in it.
    arena: Option<(Arena, usize)>,
    heap_reads: AtomicU64,
}

/// A buffer of an arena as the owner of `Bytes`, which returns it when the last slice is dropped.
struct Lease(ArenaBuf);

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The memory of dropped chunks of a stream, for its next chunks. An allocator may give it back to the kernel, and the
/// page faults of new memory take longer than the copy.
#[derive(Debug, Default)]
struct Recycled(Mutex<Vec<Vec<u8>>>);

impl Recycled {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns memory for a chunk.
    fn take(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        let recycled = self.lock().pop();
        recycled.map_or_else(|| buffer(path, CHUNK_BYTES), Ok)
    }
}

/// A chunk as the owner of `Bytes`. Returns its memory when the last slice is dropped.
struct Chunk {
    memory: Vec<u8>,
    to: Arc<Recycled>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.memory);
        memory.clear();
        let mut recycled = self.to.lock();
        // A larger one would read more than a chunk.
        if recycled.len() < READ_AHEAD && memory.capacity() as u64 == CHUNK_BYTES {
            recycled.push(memory);
        }
    }
}

impl Memory {
    pub(crate) fn of_arena(arena: Arena, reserved: usize) -> Memory {
        Memory {
            arena: Some((arena, reserved)),
            heap_reads: AtomicU64::new(0),
        }
    }

    /// Returns the number of reads that found no buffer in the arena and used the heap.
    pub(crate) fn heap_reads(&self) -> u64 {
        self.heap_reads.load(Ordering::Relaxed)
    }

    /// Returns a buffer of the arena with a length of `bytes`, or `None` if the read needs the heap.
    fn lease(&self, bytes: u64) -> Option<ArenaBuf> {
        let (arena, reserved) = self.arena.as_ref()?;
        let bytes = usize::try_from(bytes).ok();
        let lease = bytes
            .filter(|bytes| *bytes <= arena.layout().bytes)
            .and_then(|bytes| {
                let mut lease = arena.try_take()?;
                lease.set_len(bytes);
                // Tasks that take the last buffers together all return theirs.
                (arena.free() >= *reserved).then_some(lease)
            });
        if lease.is_none() {
            self.heap_reads.fetch_add(1, Ordering::Relaxed);
        }
        lease
    }
}

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
pub(crate) async fn range(
    file: &File,
    path: &Path,
    memory: &Memory,
    range: Range<u64>,
) -> Result<Bytes, Failure> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let bytes = range.end - range.start;
    match memory.lease(bytes) {
        Some(lease) => {
            let finish = |lease| Bytes::from_owner(Lease(lease));
            exactly(file, path, range.start, lease, finish).await
        }
        None => exactly(file, path, range.start, buffer(path, bytes)?, Bytes::from).await,
    }
}

/// Reads a chunk of a stream. Fails if the file ends first.
async fn chunk(
    file: &File,
    path: &Path,
    memory: &Memory,
    recycled: Arc<Recycled>,
    chunk: Range<u64>,
) -> Result<Bytes, Failure> {
    // An arena is in use, or this is the last chunk.
    if memory.arena.is_some() || chunk.end - chunk.start != CHUNK_BYTES {
        return range(file, path, memory, chunk).await;
    }
    let memory = recycled.take(path)?;
    let finish = |memory| {
        Bytes::from_owner(Chunk {
            memory,
            to: recycled,
        })
    };
    exactly(file, path, chunk.start, memory, finish).await
}

/// Fills a buffer.
async fn exactly<B: IoBufMut>(
    file: &File,
    path: &Path,
    start: u64,
    buffer: B,
    finish: impl FnOnce(B) -> Bytes,
) -> Result<Bytes, Failure> {
    match file.read_exact_at(buffer, start).await {
        Ok(buffer) => Ok(finish(buffer)),
        Err(error) => Err(Failure::other("read", path, error.into())),
    }
}

/// Reads a long range in order, with several reads in flight. Ends after an error.
pub(crate) fn stream(
    file: File,
    path: Arc<Path>,
    memory: Arc<Memory>,
    long: Range<u64>,
) -> impl Stream<Item = Result<Bytes, Failure>> + Send + 'static {
    let end = long.end;
    let recycled = Arc::<Recycled>::default();
    let chunks = (long.end - long.start).div_ceil(CHUNK_BYTES);
    stream::iter((0..chunks).map(move |number| long.start + number * CHUNK_BYTES))
        .map(move |start| {
            let (file, path, memory) = (file.clone(), Arc::clone(&path), Arc::clone(&memory));
            let (recycled, range) = (Arc::clone(&recycled), start..end.min(start + CHUNK_BYTES));
            async move { chunk(&file, &path, &memory, recycled, range).await }
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
    memory: &Memory,
    file_bytes: u64,
    ranges: &[Range<u64>],
) -> Result<Vec<Bytes>, Failure> {
    for range in ranges {
        check(path, range, file_bytes)?;
    }
    let plan = Plan::new(ranges);
    let longest = plan.reads.iter().map(|read| read.end - read.start).max();
    // Checks the size. The batch allocates memory when it starts a read.
    drop(buffer(path, longest.unwrap_or(0))?);
    let (mut leased, mut rest) = (Vec::new(), Vec::new());
    for (index, read) in plan.reads.iter().enumerate() {
        match memory.lease(read.end - read.start) {
            Some(lease) => leased.push((index, lease)),
            None => rest.push(index),
        }
    }
    let starts = |index: &usize| plan.reads.get(*index).map_or(0, |read| read.start);
    let bytes = |index: &usize| {
        plan.reads
            .get(*index)
            .map_or(0, |read| read.end - read.start)
    };
    let leased_at: Vec<usize> = leased.iter().map(|(index, _)| *index).collect();
    let leases = leased
        .into_iter()
        .map(|(index, lease)| (lease, starts(&index)));
    let leases = batch(file, path, leases, |lease| Bytes::from_owner(Lease(lease)));
    let heap = rest
        .iter()
        .map(|index| starts(index)..starts(index) + bytes(index));
    let (leased, heap) = futures_util::try_join!(leases, in_parts(file, path, heap.collect()))?;
    let mut done = vec![Bytes::new(); plan.reads.len()];
    let indices = leased_at.into_iter().chain(rest);
    for (index, (filled, read)) in indices.zip(leased.into_iter().chain(heap)) {
        let (Some(wanted), Some(done)) = (plan.reads.get(index), done.get_mut(index)) else {
            continue;
        };
        // A transfer may end early. If the file has become shorter, the second attempt fails.
        *done = match filled as u64 == wanted.end - wanted.start {
            true => read,
            false => range(file, path, memory, wanted.clone()).await?,
        };
    }
    Ok(plan.split(ranges, &mut done))
}

/// Makes reads into the heap. Long ones are shared with the workers of the Tokio runtime, as the copy of cached data
/// uses the processor for its whole length. Returns the same as `batch`.
///
/// The caller and a task poll each part. So the parts end although all workers of the runtime are blocked.
async fn in_parts(
    file: &File,
    path: &Path,
    reads: Vec<Range<u64>>,
) -> Result<Vec<(usize, Bytes)>, Failure> {
    let total: u64 = reads.iter().map(|read| read.end - read.start).sum();
    let workers = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
    let most = usize::try_from(total / PART_BYTES_MIN).unwrap_or(PARTS_MAX);
    let parts = workers.min(most).clamp(1, PARTS_MAX);
    let mut parts = reads.chunks(reads.len().div_ceil(parts).max(1));
    let own = parts.next().unwrap_or_default();
    let (mut tasks, mut shared) = (JoinSet::new(), Vec::new());
    for part in parts {
        let (file, path, reads) = (file.clone(), path.to_owned(), part.to_vec());
        let part = async move { Arc::new(Mutex::new(into_heap(&file, &path, &reads).await)) };
        let part = part.boxed().shared();
        tasks.spawn(part.clone().map(drop));
        shared.push(part);
    }
    let mut done = into_heap(file, path, own).await?;
    for part in shared {
        let part = part.await;
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        done.append(&mut std::mem::replace(&mut *part, Ok(Vec::new()))?);
    }
    Ok(done)
}

/// Makes reads into the heap as one batch.
async fn into_heap(
    file: &File,
    path: &Path,
    reads: &[Range<u64>],
) -> Result<Vec<(usize, Bytes)>, Failure> {
    let buffers = reads.iter().map(|read| {
        let buffer = buffer(path, read.end - read.start).unwrap_or_default();
        (buffer, read.start)
    });
    batch(file, path, buffers, Bytes::from).await
}

/// Makes reads as one batch. Returns the number of bytes of each, and the whole buffer, in the order of the reads.
async fn batch<B: IoBufMut>(
    file: &File,
    path: &Path,
    reads: impl ExactSizeIterator<Item = (B, u64)>,
    finish: impl Fn(B) -> Bytes,
) -> Result<Vec<(usize, Bytes)>, Failure> {
    let mut done = vec![(0, Bytes::new()); reads.len()];
    let mut batch = file.read_many_at(reads);
    while let Some(completed) = batch.next().await {
        let failed = |error: io::Error| Failure::other("read", path, error);
        let (filled, buffer) = completed.result.map_err(|error| failed(error.into()))?;
        if let Some(done) = done.get_mut(completed.index) {
            *done = (filled, finish(buffer));
        }
    }
    Ok(done)
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
    fn a_dropped_chunk_is_the_memory_of_the_next() {
        let (recycled, path) = (Arc::<Recycled>::default(), Path::new("object"));
        let chunk = || {
            let mut memory = recycled.take(path).unwrap();
            memory.resize(10, 7);
            let to = Arc::clone(&recycled);
            Chunk { memory, to }
        };
        let first = Bytes::from_owner(chunk());
        let (slice, address) = (first.slice(3..5), first.as_ptr());
        drop(first);
        assert_eq!(recycled.lock().len(), 0);
        drop(slice);
        let memory = recycled.take(path).unwrap();
        assert_eq!((memory.as_ptr(), memory.len()), (address, 0));
        let chunks: Vec<Chunk> = std::iter::repeat_with(chunk).take(2 * READ_AHEAD).collect();
        drop(chunks);
        assert_eq!(recycled.lock().len(), READ_AHEAD);
    }

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
