//! Annulus itself: many tasks awaiting one operation each, or one stream of reads kept full.
//!
//! Five contenders, made from two ways to ask and a few ways to set the engine up. The callers, one unless
//! `--threads` says otherwise, each run on a thread with a plain executor; the engine's drivers have their own.
//! Each run makes its engine anew, before the clock starts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use annulus::{AlignedBuf, Backend, BackendInUse, BufError, Engine, File};
use annulus_peers::{Bench, Contender, Failure, Finished, Job, Lane, Op, on_owning_threads};
use futures_executor::{LocalPool, block_on};
use futures_util::task::LocalSpawnExt;

/// Aligned for any direct I/O.
const ALIGN_BYTES: usize = 4096;
/// What an engine lets each driver's kernel hold unless told otherwise; to say so where the depth is larger.
const IN_FLIGHT: usize = 1024;
const IN_FLIGHT_BYTES: usize = 256 << 20;

/// How operations are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// A task per operation in flight: `file.read_at(buf, offset).await`.
    Tasks,
    /// One `read_many_at`, refilled as answers come.
    Many,
}

/// Annulus in one of its forms.
pub(crate) struct Annulus {
    name: &'static str,
    about: &'static str,
    asking: Asking,
    backend: Backend,
    /// Driver threads; `None` leaves it to `--drivers`.
    drivers: Option<usize>,
}

impl Annulus {
    pub(crate) fn variants() -> Vec<Annulus> {
        use Asking::{Many, Tasks};
        let form = |name, about, asking, backend, drivers| Annulus {
            name,
            about,
            asking,
            backend,
            drivers,
        };
        let auto = || Backend::Auto;
        vec![
            form(
                "annulus",
                "Annulus, a task per operation in flight, one driver thread",
                Tasks,
                auto(),
                None,
            ),
            form(
                "annulus-many",
                "Annulus, one read_many_at kept full, one driver thread",
                Many,
                auto(),
                None,
            ),
            form(
                "annulus-2",
                "annulus with two driver threads",
                Tasks,
                auto(),
                Some(2),
            ),
            form(
                "annulus-many-2",
                "annulus-many with two driver threads",
                Many,
                auto(),
                Some(2),
            ),
            form(
                "annulus-blocking",
                "annulus without io_uring: its fallback on threads",
                Tasks,
                Backend::Blocking,
                None,
            ),
        ]
    }
}

impl<B: Bench> Contender<B> for Annulus {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        if self.asking != Asking::Many {
            return None;
        }
        if job.writes {
            return Some("read_many_at only reads; see `annulus`".into());
        }
        // A stream per file would have a share of the depth each: nothing to batch.
        (job.files.len() > 1)
            .then(|| "read_many_at is of one file; with many files see `annulus`".into())
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let opened = Opened::new(job, self.drivers, self.backend)?;
        let depths = job.split_depth(job.threads.unwrap_or(1));
        let setup = |index: usize| {
            let buffers: Vec<AlignedBuf> = (0..depths[index]).map(|_| buffer(job)).collect();
            Ok(buffers)
        };
        let drive = |buffers: Vec<AlignedBuf>, mut lane: B::Lane| {
            match self.asking {
                Asking::Tasks => lane = tasks(&opened.files, lane, buffers, job.durable)?,
                Asking::Many => block_on(many(&opened.files[0], &mut lane, buffers)),
            }
            Ok((lane, 0))
        };
        on_owning_threads(bench, depths.len(), setup, drive)?;
        Ok(opened.finished(job, depths.len()))
    }
}

/// An engine and the job's files on it.
pub(crate) struct Opened {
    // Dropped before the engine, which drains when its last handle goes.
    pub(crate) files: Arc<[File]>,
    engine: Engine,
    drivers: usize,
}

impl Opened {
    /// Builds the engine with `drivers`, or as many as the job leaves to us, and gives it the files.
    pub(crate) fn new(
        job: &Job,
        drivers: Option<usize>,
        backend: Backend,
    ) -> Result<Opened, Failure> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        // More drivers than processors only take turns.
        let by_itself = job.threads.unwrap_or(1).min(processors);
        let drivers = drivers.or(job.drivers).unwrap_or(by_itself);
        let engine = Engine::builder()
            .backend(backend)
            .threads(drivers)
            .build()
            .map_err(|error| Failure::Failed(format!("building the engine: {error}")))?;
        let files = (job.files.iter())
            .map(|file| engine.file(file.try_clone()?))
            .collect::<std::io::Result<Vec<File>>>()
            .map_err(|error| Failure::failed("giving the files to the engine", &error))?;
        Ok(Opened {
            files: Arc::from(files),
            engine,
            drivers,
        })
    }

    /// What there is to say at the end: enters, the backend, and what a reader might not expect.
    pub(crate) fn finished(&self, job: &Job, callers: usize) -> Finished {
        let backend = self.engine.backend();
        let mut note = backend.to_string();
        if callers > 1 {
            note += &format!("; {callers} threads ask");
        }
        let uring = matches!(backend, BackendInUse::Uring { .. });
        let held = self.drivers * IN_FLIGHT.min((IN_FLIGHT_BYTES / job.block_bytes).max(1));
        if uring && job.depth > held {
            note += &format!("; of {} asked the kernel holds {held} at once", job.depth);
        }
        let metrics = self.engine.metrics();
        let percent = metrics.inline * 100 / (metrics.inline + metrics.completed).max(1);
        if uring && percent > 0 {
            note += &format!(
                "; {percent} % of the answers came from the page cache on the asking thread, whose calls are not \
                 among the enters"
            );
        }
        Finished {
            calls: uring.then_some(metrics.enters),
            note: Some(note),
        }
    }
}

/// A buffer whose pages exist and do not compress.
pub(crate) fn buffer(job: &Job) -> AlignedBuf {
    let mut buffer = AlignedBuf::with_len(job.block_bytes, ALIGN_BYTES);
    fastrand::fill(&mut buffer);
    buffer
}

/// A task per buffer, all on this thread, on the executor that costs least of those that were tried (LocalPool,
/// FuturesUnordered under two kinds of `block_on`, smol's LocalExecutor: 150 to 210 ns per wake-up and poll).
fn tasks<L: Lane>(
    files: &Arc<[File]>,
    lane: L,
    buffers: Vec<AlignedBuf>,
    durable: bool,
) -> Result<L, Failure> {
    let lane = Rc::new(RefCell::new(lane));
    let mut pool = LocalPool::new();
    let spawner = pool.spawner();
    for buffer in buffers {
        spawner
            .spawn_local(task(Arc::clone(files), Rc::clone(&lane), buffer, durable))
            .map_err(|error| Failure::Failed(format!("spawning a task: {error}")))?;
    }
    pool.run();
    let lane = Rc::into_inner(lane)
        .ok_or_else(|| Failure::Failed("a task is still there after the end".into()))?;
    Ok(lane.into_inner())
}

async fn task<L: Lane>(
    files: Arc<[File]>,
    lane: Rc<RefCell<L>>,
    mut buffer: AlignedBuf,
    durable: bool,
) {
    loop {
        // A statement of its own: the borrow must end before the task waits.
        let next = lane.borrow_mut().next();
        let Some(op) = next else { return };
        if op.write {
            lane.borrow().fill(&op, &mut buffer);
        }
        let answer = ask(&files, &op, buffer, durable).await;
        match settle(&mut *lane.borrow_mut(), op, answer) {
            Some(back) => buffer = back,
            None => return,
        }
    }
}

/// One operation, as a program would ask for it.
#[inline]
pub(crate) async fn ask(
    files: &[File],
    op: &Op,
    buffer: AlignedBuf,
    durable: bool,
) -> Result<(usize, AlignedBuf), BufError<AlignedBuf>> {
    let file = &files[op.file as usize];
    match (op.write, durable) {
        (false, _) => file.read_at(buffer, op.offset).await,
        (true, false) => file.write_at(buffer, op.offset).await,
        (true, true) => {
            let buffer = file.write_all_durable_at(buffer, op.offset).await?;
            Ok((buffer.len(), buffer))
        }
    }
}

/// One stream of reads: each answer is replaced by the next question.
async fn many<L: Lane>(file: &File, lane: &mut L, buffers: Vec<AlignedBuf>) {
    let mut asked = Asked::default();
    // All of them pushed, none from the iterator: a push does not wait until the iterator has been asked whole,
    // and answers are known by the order in which they were asked.
    let mut reads = file.read_many_at(std::iter::empty()).window(buffers.len());
    for buffer in buffers {
        let Some(op) = lane.next() else { break };
        asked.push(op);
        reads.push(buffer, op.offset);
    }
    while let Some(done) = reads.next().await {
        let op = asked.take(done.index);
        let Some(buffer) = settle(lane, op, done.result) else {
            continue;
        };
        if let Some(op) = lane.next() {
            asked.push(op);
            reads.push(buffer, op.offset);
        }
    }
}

/// Gives an answer to the lane; the buffer for the next operation, if it came back.
pub(crate) fn settle<L: Lane>(
    lane: &mut L,
    op: Op,
    answer: Result<(usize, AlignedBuf), BufError<AlignedBuf>>,
) -> Option<AlignedBuf> {
    match answer {
        Ok((count, buffer)) => {
            lane.finish(op, Ok(count), &buffer[..]);
            Some(buffer)
        }
        Err(error) => {
            let (error, buffer) = error.into_parts();
            lane.finish(op, Err(error), &[][..]);
            buffer
        }
    }
}

/// The operations asked of a stream, by the index under which it answers them. Answers come nearly in
/// order, so it holds little more than what is outstanding.
#[derive(Default)]
struct Asked {
    ops: VecDeque<Option<Op>>,
    /// The index of the first.
    first: usize,
}

impl Asked {
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
            "the stream answered read {index}, which was not asked or is answered already"
        );
        op.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_index_in_any_order() {
        let mut asked = Asked::default();
        for offset in 0..4 {
            asked.push(Op {
                offset,
                ..Op::default()
            });
        }
        for index in [2, 0, 1] {
            assert_eq!(asked.take(index).offset, index as u64);
        }
        asked.push(Op {
            offset: 4,
            ..Op::default()
        });
        assert_eq!((asked.take(4).offset, asked.take(3).offset), (4, 3));
        assert!(asked.ops.is_empty());
    }
}
