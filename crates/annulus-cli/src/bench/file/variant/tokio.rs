//! Annulus under Tokio: one Tokio task per operation in flight, which awaits the engine.
//!
//! These variants are comparable to `tokio-blocking` and `tokio-fs`: the runtime, the tasks and the workers (one per
//! task) are the same, and only the file access differs.

use std::io;
use std::sync::Arc;

use annulus::Engine;
use annulus_baselines::{Bench, Failure, Finished, Job, Variant, WORKERS, Worker, run_tasks};
use tokio::runtime::{Builder, Runtime};

use super::annulus::{Memory, Opened, arena_buffer};
use super::submit::{Buffer, Target, buffer, finish, submit, tasks_on};

/// The kind of Tokio runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    CurrentThread,
    MultiThread,
}

/// The futures that await the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaiting {
    /// A spawned task for each.
    Tasks,
    /// One future, on the thread of `block_on`, like the body of `main`.
    Main,
}

/// Annulus under one of Tokio's runtimes.
#[derive(Clone, Copy)]
pub(crate) struct OnTokio {
    name: &'static str,
    about: &'static str,
    flavour: Flavour,
    memory: Memory,
    awaiting: Awaiting,
}

const ON_TOKIO: OnTokio = OnTokio {
    name: "annulus-tokio",
    about: "Annulus on Tokio (current_thread, a ring on its thread), a task per operation in flight",
    flavour: Flavour::CurrentThread,
    memory: Memory::Plain,
    awaiting: Awaiting::Tasks,
};

impl OnTokio {
    pub(crate) fn variants() -> [OnTokio; 4] {
        [
            ON_TOKIO,
            OnTokio {
                name: "annulus-tokio-arena",
                about: "annulus-tokio into registered buffers",
                memory: Memory::Arena,
                ..ON_TOKIO
            },
            OnTokio {
                name: "annulus-tokio-mt",
                about: "Annulus on Tokio (multi_thread, 2 workers, a ring on each), a task per operation in flight",
                flavour: Flavour::MultiThread,
                ..ON_TOKIO
            },
            OnTokio {
                name: "annulus-tokio-main",
                about: "Annulus in the body of `main` under Tokio (multi_thread, 2 workers): on the thread of block_on",
                flavour: Flavour::MultiThread,
                awaiting: Awaiting::Main,
                ..ON_TOKIO
            },
        ]
    }

    /// Builds the runtime as a program that uses Annulus would.
    fn build_runtime(&self, workers: usize) -> io::Result<Runtime> {
        let mut builder = match self.flavour {
            Flavour::CurrentThread => Builder::new_current_thread(),
            Flavour::MultiThread => Builder::new_multi_thread(),
        };
        builder.worker_threads(workers).enable_all().build()
    }

    fn run_with<B: Bench, M: Buffer>(
        &self,
        job: &Job,
        bench: &B,
        opened: &Opened,
        make: impl Fn() -> Result<M, Failure>,
    ) -> Result<(), Failure> {
        let runtime = self
            .build_runtime(job.threads.unwrap_or(WORKERS))
            .map_err(|error| Failure::failed("starting the Tokio runtime", &error))?;
        let buffers: Result<Vec<M>, Failure> = (0..job.depth).map(|_| make()).collect();
        let buffers = buffers?;
        if self.awaiting == Awaiting::Main {
            let worker = bench.worker();
            bench.go();
            let worker = runtime.block_on(tasks_on(&opened.target, worker, buffers))?;
            bench.done(worker);
            return Ok(());
        }
        let states: Vec<(B::Worker, M)> = (buffers.into_iter())
            .map(|buffer| (bench.worker(), buffer))
            .collect();
        run_tasks(&runtime, bench, states, |(worker, buffer)| {
            task(Arc::clone(&opened.target), worker, buffer)
        })
    }
}

impl<B: Bench> Variant<B> for OnTokio {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let opened = Opened::new(job, None, Engine::builder())?;
        opened.shows_calls(bench);
        match self.memory {
            Memory::Plain => self.run_with(job, bench, &opened, || buffer(job))?,
            Memory::Arena => {
                let arena = opened.arena(job)?;
                self.run_with(job, bench, &opened, || arena_buffer(&arena))?;
            }
        }
        Ok(opened.finished(job, 1, true))
    }
}

async fn task<L: Worker, B: Buffer>(target: Arc<Target>, mut worker: L, mut buffer: B) -> L {
    while let Some(op) = worker.next() {
        if op.write {
            worker.fill(&op, &mut buffer);
        }
        let result = submit(&target, &op, buffer).await;
        match finish(&mut worker, op, result) {
            Some(back) => buffer = back,
            None => break,
        }
    }
    worker
}
