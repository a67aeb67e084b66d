//! Tokio with `spawn_blocking(pread)`: one task per operation in flight, and a blocking thread for each call.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::call;
use crate::{Bench, Failure, Finished, Job, Memory, Variant, Worker};

/// The number of workers without `--threads`, as in this project's published tables.
pub const WORKERS: usize = 2;

/// Tokio's default limit of blocking threads.
const BLOCKING_THREADS: usize = 512;
/// Up to this depth, every operation has a blocking thread. At greater depths, Tokio's limit stays at its default.
const RAISED_MAX: usize = 4096;

/// `spawn_blocking` around a positional call.
pub struct TokioBlocking;

impl<B: Bench> Variant<B> for TokioBlocking {
    fn name(&self) -> &str {
        "tokio-blocking"
    }

    fn about(&self) -> &str {
        "Tokio (2 workers), one task per operation in flight, each in spawn_blocking(pread/pwrite)"
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let runtime = runtime(job)?;
        let mut tasks = Vec::with_capacity(job.depth);
        for _ in 0..job.depth {
            let memory = Memory::new(1, job.block_bytes)?;
            tasks.push((bench.worker(), memory));
        }
        let shared = Arc::new(job.clone());
        run_tasks(&runtime, bench, tasks, |(worker, memory)| {
            drive(Arc::clone(&shared), worker, memory)
        })?;
        Ok(Finished {
            calls: None,
            note: waiting(job),
        })
    }
}

/// Starts a runtime with enough blocking threads for the depth.
pub(crate) fn runtime(job: &Job) -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .worker_threads(job.threads.unwrap_or(WORKERS))
        .max_blocking_threads(blocking_threads(job))
        .build()
        .map_err(|error| Failure::failed("starting the Tokio runtime", &error))
}

fn blocking_threads(job: &Job) -> usize {
    match job.depth {
        depth if depth <= RAISED_MAX => depth.max(BLOCKING_THREADS),
        _ => BLOCKING_THREADS,
    }
}

/// Returns the note for the row if operations have to wait for a blocking thread.
pub(crate) fn waiting(job: &Job) -> Option<String> {
    let threads = blocking_threads(job);
    (threads < job.depth).then(|| {
        format!(
            "{threads} blocking threads, as Tokio has by itself: of {} tasks the others wait",
            job.depth
        )
    })
}

/// Starts the clock, spawns a task for each state, waits for all of them, and gives the workers back.
///
/// # Errors
///
/// Fails if a task panics.
pub fn run_tasks<B: Bench, S, F>(
    runtime: &Runtime,
    bench: &B,
    states: Vec<S>,
    drive: impl Fn(S) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = B::Worker> + Send + 'static,
{
    bench.go();
    let tasks: Vec<JoinHandle<B::Worker>> = states
        .into_iter()
        .map(|state| runtime.spawn(drive(state)))
        .collect();
    for task in tasks {
        let worker = runtime.block_on(task).map_err(|error| {
            Failure::Failed(format!("a task of the variant ended early: {error}"))
        })?;
        bench.done(worker);
    }
    Ok(())
}

async fn drive<L: Worker>(job: Arc<Job>, mut worker: L, mut memory: Memory) -> L {
    while let Some(op) = worker.next() {
        if op.write {
            worker.fill(&op, memory.only());
        }
        let job = Arc::clone(&job);
        let call = spawn_blocking(move || {
            let result = call::run(&job, &op, memory.only());
            (result, memory)
        });
        match call.await {
            Ok((result, back)) => {
                memory = back;
                worker.finish(op, result, &*memory.only());
            }
            Err(error) => {
                // The memory was lost with the thread, so this task reports the error and stops.
                worker.finish(op, Err(io::Error::other(error)), &[][..]);
                return worker;
            }
        }
    }
    worker
}
