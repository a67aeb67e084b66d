//! Submission of operations in the variants of Annulus: a task per operation, or a stream of reads.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::DerefMut;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use annulus::buf::{AlignedBuf, Slice};
use annulus::{BufError, Engine, File, IoBufMut};
use annulus_baselines::{Failure, Job, Op, Worker};
use futures_executor::LocalPool;
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::LocalSpawnExt;

/// The alignment of buffers, sufficient for direct I/O on any device.
const ALIGN_BYTES: usize = 4096;

/// A buffer for reads and writes, in plain or registered memory.
pub(crate) trait Buffer: IoBufMut + DerefMut<Target = [u8]> {}

impl<B: IoBufMut + DerefMut<Target = [u8]>> Buffer for B {}

/// The target of operations.
pub(crate) struct Target {
    // Dropped before the engine, which drains when its last handle is dropped.
    pub(crate) files: Vec<File>,
    pub(crate) engine: Engine,
    /// The files that operations open, for a load of small files.
    pub(crate) paths: Arc<[PathBuf]>,
    /// Operations call `Engine::read` for them.
    pub(crate) whole: bool,
    pub(crate) durable: bool,
}

/// The result of an operation, with its buffer unless the operation lost it.
type Submitted<B> = Result<(usize, B), (io::Error, Option<B>)>;

/// Allocates a buffer of random data, so that its pages are resident and do not compress.
pub(crate) fn buffer(job: &Job) -> Result<AlignedBuf, Failure> {
    let mut buffer = AlignedBuf::try_with_len(job.block_bytes, ALIGN_BYTES)
        .map_err(|error| Failure::failed("allocating a block", &error))?;
    fastrand::fill(&mut buffer);
    Ok(buffer)
}

/// Runs one task per buffer, all on this thread, until the worker has no more operations.
///
/// `LocalPool` was the cheapest of the executors that we compared. The others were `FuturesUnordered` under two kinds
/// of `block_on`, and smol's `LocalExecutor`. They cost 150 to 210 ns per wake-up and poll.
pub(crate) fn tasks<L: Worker, B: Buffer>(
    target: &Arc<Target>,
    worker: L,
    buffers: Vec<B>,
) -> Result<L, Failure> {
    let worker = Rc::new(RefCell::new(worker));
    let mut pool = LocalPool::new();
    let spawner = pool.spawner();
    for buffer in buffers {
        let task = task(Arc::clone(target), Rc::clone(&worker), buffer);
        spawner
            .spawn_local(async { drop(task.await) })
            .map_err(|error| Failure::Failed(format!("spawning a task: {error}")))?;
    }
    pool.run();
    taken_back(worker)
}

/// Runs the tasks of [`tasks`] as one future, for a thread that drives the ring itself. If the rate of a job requires a
/// pause, all tasks end, the thread sleeps, and they start again.
pub(crate) async fn tasks_on<L: Worker, B: Buffer>(
    target: &Arc<Target>,
    worker: L,
    mut buffers: Vec<B>,
) -> Result<L, Failure> {
    let worker = Rc::new(RefCell::new(worker));
    loop {
        let all: FuturesUnordered<_> = buffers
            .drain(..)
            .map(|buffer| task(Arc::clone(target), Rc::clone(&worker), buffer))
            .collect();
        buffers = all.filter_map(std::future::ready).collect().await;
        let later = worker.borrow().later();
        match later {
            // Nothing is in flight, so sleeping delays no completion.
            Some(pause) if !buffers.is_empty() => std::thread::sleep(pause),
            _ => break,
        }
    }
    taken_back(worker)
}

/// Returns the worker that the tasks of a thread shared, after their end.
pub(super) fn taken_back<L>(worker: Rc<RefCell<L>>) -> Result<L, Failure> {
    Rc::into_inner(worker)
        .map(RefCell::into_inner)
        .ok_or_else(|| Failure::Failed("a task is still there after the end".into()))
}

/// Runs operations until the worker has none. Returns the buffer, unless an operation lost it.
async fn task<L: Worker, B: Buffer>(
    target: Arc<Target>,
    worker: Rc<RefCell<L>>,
    mut buffer: B,
) -> Option<B> {
    loop {
        // A separate statement, because the borrow must end before the task waits.
        let next = worker.borrow_mut().next();
        let Some(op) = next else { return Some(buffer) };
        if op.write {
            worker.borrow().fill(&op, &mut buffer[..op.bytes as usize]);
        }
        let result = submit(&target, &op, buffer).await;
        buffer = finish(&mut *worker.borrow_mut(), op, result)?;
    }
}

/// Submits one operation as a program would.
#[inline]
pub(crate) async fn submit<B: Buffer>(target: &Target, op: &Op, buffer: B) -> Submitted<B> {
    if let Some(path) = target.paths.get(op.file as usize) {
        return match target.whole {
            true => copy_whole(&target.engine, path, buffer).await,
            false => read_whole(&target.engine, path, buffer).await,
        };
    }
    let file = &target.files[op.file as usize];
    // Some operations of a job are shorter than its longest.
    let buffer = buffer.subslice(..op.bytes as usize);
    let result = match (op.write, target.durable) {
        (false, _) => file.read_at(buffer, op.offset).await,
        (true, false) => file.write_at(buffer, op.offset).await,
        (true, true) => (file.write_all_durable_at(buffer, op.offset).await)
            .map(|buffer| (buffer.len(), buffer)),
    };
    match result.map_err(BufError::into_parts) {
        Ok((count, buffer)) => Ok((count, buffer.into_inner())),
        Err((error, buffer)) => Err((error, buffer.map(Slice::into_inner))),
    }
}

/// Reads a whole file by one call, and copies it into `buffer`, as all variants do.
async fn copy_whole<B: Buffer>(engine: &Engine, path: &Path, mut buffer: B) -> Submitted<B> {
    let contents = engine.read(path).await;
    match contents.and_then(|contents| annulus_baselines::copy_whole(&contents, &mut buffer)) {
        Ok(length) => Ok((length, buffer)),
        Err(error) => Err((error, Some(buffer))),
    }
}

/// Opens a file, queries its metadata, reads it and closes it.
async fn read_whole<B: Buffer>(engine: &Engine, path: &Path, buffer: B) -> Submitted<B> {
    let opened = async {
        let file = engine.open(path).await?;
        let length = file.metadata().await?.len();
        Ok((file, length))
    };
    let (file, length) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return Err((error, Some(buffer))),
    };
    if length != buffer.len() as u64 {
        let text = format!("the file has {length} bytes instead of {}", buffer.len());
        return Err((io::Error::other(text), Some(buffer)));
    }
    let (count, buffer) = file
        .read_at(buffer, 0)
        .await
        .map_err(BufError::into_parts)?;
    match file.close().await {
        Ok(_) => Ok((count, buffer)),
        Err(error) => Err((error, Some(buffer))),
    }
}

/// Runs one stream of reads. Each completed read is replaced by the next one.
pub(crate) async fn many<L: Worker, B: Buffer>(file: &File, worker: &mut L, buffers: Vec<B>) {
    let mut outstanding = Outstanding::default();
    // All reads are pushed and none come from the iterator. A push does not wait for the iterator to end, and the
    // index of a completion is then the order of the pushes.
    let mut reads = file.read_many_at(std::iter::empty()).window(buffers.len());
    for buffer in buffers {
        let Some(op) = worker.next() else { break };
        outstanding.push(op);
        reads.push(buffer, op.offset);
    }
    while let Some(done) = reads.next().await {
        let op = outstanding.take(done.index);
        let Some(buffer) = finish(worker, op, done.result.map_err(BufError::into_parts)) else {
            continue;
        };
        if let Some(op) = worker.next() {
            outstanding.push(op);
            reads.push(buffer, op.offset);
        }
    }
}

/// Reports a completion to the worker. Returns the buffer for the next operation, unless the operation lost it.
pub(crate) fn finish<L: Worker, B: Buffer>(
    worker: &mut L,
    op: Op,
    result: Submitted<B>,
) -> Option<B> {
    match result {
        Ok((count, buffer)) => {
            worker.finish(op, Ok(count), &buffer[..op.bytes as usize]);
            Some(buffer)
        }
        Err((error, buffer)) => {
            worker.finish(op, Err(error), &[][..]);
            buffer
        }
    }
}

/// The operations that a stream has in flight, by their index in the stream. Completions arrive nearly in order, so
/// the queue holds few entries besides the outstanding ones.
#[derive(Default)]
struct Outstanding {
    ops: VecDeque<Option<Op>>,
    /// The index of the first entry of `ops`.
    first: usize,
}

impl Outstanding {
    fn push(&mut self, op: Op) {
        self.ops.push_back(Some(op));
    }

    fn take(&mut self, index: usize) -> Op {
        let op = self
            .ops
            .get_mut(index.wrapping_sub(self.first))
            .and_then(Option::take);
        while let Some(None) = self.ops.front() {
            self.ops.pop_front();
            self.first += 1;
        }
        assert!(
            op.is_some(),
            "the stream returned read {index}, which was not requested or has already completed"
        );
        op.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_index_in_any_order() {
        let mut outstanding = Outstanding::default();
        for offset in 0..4 {
            outstanding.push(Op {
                offset,
                ..Op::default()
            });
        }
        for index in [2, 0, 1] {
            assert_eq!(outstanding.take(index).offset, index as u64);
        }
        outstanding.push(Op {
            offset: 4,
            ..Op::default()
        });
        assert_eq!(
            (outstanding.take(4).offset, outstanding.take(3).offset),
            (4, 3)
        );
        assert!(outstanding.ops.is_empty());
    }
}
