//! Annulus itself: many tasks awaiting one operation each, or one stream of reads kept full.
//!
//! Five contenders, made from two ways to ask and a few ways to set the engine up. The caller runs on one
//! thread with a plain executor; the engine's drivers have their own. Each run makes its engine anew, before the
//! clock starts.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use annulus::{AlignedBuf, Backend, BackendInUse, BufError, Engine, File};
use annulus_peers::{Bench, Contender, Failure, Finished, Job, Lane, Op};
use futures_executor::{LocalPool, block_on};
use futures_util::task::LocalSpawnExt;

/// Aligned for any direct I/O.
const ALIGN_BYTES: usize = 4096;

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
    /// Driver threads; `None` leaves it to `--threads`, which is one unless given.
    threads: Option<usize>,
}

impl Annulus {
    pub(crate) fn variants() -> Vec<Annulus> {
        use Asking::{Many, Tasks};
        let form = |name, about, asking, backend, threads| Annulus {
            name,
            about,
            asking,
            backend,
            threads,
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
        (self.asking == Asking::Many && job.writes)
            .then(|| "read_many_at only reads; see `annulus`".into())
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let threads = self.threads.or(job.threads).unwrap_or(1);
        let engine = Engine::builder()
            .backend(self.backend)
            .threads(threads)
            .build()
            .map_err(|error| Failure::Failed(format!("building the engine: {error}")))?;
        let file = job
            .file
            .try_clone()
            .and_then(|file| engine.file(file))
            .map_err(|error| Failure::failed("giving the file to the engine", &error))?;
        let mut lane = bench.lane();
        let buffers: Vec<AlignedBuf> = (0..job.depth).map(|_| buffer(job)).collect();
        bench.go();
        match self.asking {
            Asking::Tasks => lane = tasks(&file, lane, buffers)?,
            Asking::Many => block_on(many(&file, &mut lane, buffers)),
        }
        bench.done(lane);
        let enters =
            matches!(engine.backend(), BackendInUse::Uring { .. }).then(|| engine.metrics().enters);
        Ok(Finished {
            calls: enters,
            note: Some(engine.backend().to_string()),
        })
    }
}

/// A buffer whose pages exist and do not compress.
fn buffer(job: &Job) -> AlignedBuf {
    let mut buffer = AlignedBuf::with_len(job.block_bytes, ALIGN_BYTES);
    fastrand::fill(&mut buffer);
    buffer
}

/// A task per buffer, all on this thread, on the executor that costs least of those that were tried (LocalPool,
/// FuturesUnordered under two kinds of `block_on`, smol's LocalExecutor: 150 to 210 ns per wake-up and poll).
fn tasks<L: Lane>(file: &File, lane: L, buffers: Vec<AlignedBuf>) -> Result<L, Failure> {
    let lane = Rc::new(RefCell::new(lane));
    let mut pool = LocalPool::new();
    let spawner = pool.spawner();
    for buffer in buffers {
        spawner
            .spawn_local(task(file.clone(), Rc::clone(&lane), buffer))
            .map_err(|error| Failure::Failed(format!("spawning a task: {error}")))?;
    }
    pool.run();
    let lane = Rc::into_inner(lane)
        .ok_or_else(|| Failure::Failed("a task is still there after the end".into()))?;
    Ok(lane.into_inner())
}

async fn task<L: Lane>(file: File, lane: Rc<RefCell<L>>, mut buffer: AlignedBuf) {
    loop {
        // A statement of its own: the borrow must end before the task waits.
        let next = lane.borrow_mut().next();
        let Some(op) = next else { return };
        let answer = if op.write {
            lane.borrow().fill(&op, &mut buffer);
            file.write_at(buffer, op.offset).await
        } else {
            file.read_at(buffer, op.offset).await
        };
        match settle(&mut *lane.borrow_mut(), op, answer) {
            Some(back) => buffer = back,
            None => return,
        }
    }
}

/// One stream of reads: each answer is replaced by the next question.
async fn many<L: Lane>(file: &File, lane: &mut L, buffers: Vec<AlignedBuf>) {
    let mut asked = Asked::default();
    let mut first = Vec::with_capacity(buffers.len());
    // As many as there are buffers: the iterator must be asked whole before the first `push`.
    let window = buffers.len();
    for buffer in buffers {
        let Some(op) = lane.next() else { break };
        asked.push(op);
        first.push((buffer, op.offset));
    }
    let mut reads = file.read_many_at(first).window(window);
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
fn settle<L: Lane>(
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
