//! Annulus under Tokio: a Tokio task per operation in flight, awaiting the engine.
//!
//! What `tokio-blocking` and `tokio-fs` are compared with: the same runtime, the same tasks, the same lanes (one
//! per task), another way to the file. Which runtime it is stands in [`build_runtime`] and nowhere else.

use std::io;
use std::sync::Arc;

use annulus::{AlignedBuf, File};
use annulus_peers::{Bench, Contender, Failure, Finished, Job, Lane};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::annulus::{Opened, ask, buffer, settle};

/// Workers of the multi-thread runtime unless `--threads` says otherwise: as many as its peers get.
const WORKERS: usize = 2;

/// Which runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    CurrentThread,
    MultiThread,
}

/// Annulus under one of Tokio's runtimes.
pub(crate) struct OnTokio {
    flavour: Flavour,
}

impl OnTokio {
    pub(crate) fn variants() -> [OnTokio; 2] {
        [Flavour::CurrentThread, Flavour::MultiThread].map(|flavour| OnTokio { flavour })
    }
}

/// The runtime, as a program that uses Annulus would make it.
fn build_runtime(flavour: Flavour, workers: usize) -> io::Result<Runtime> {
    match flavour {
        Flavour::CurrentThread => Builder::new_current_thread().build(),
        Flavour::MultiThread => Builder::new_multi_thread().worker_threads(workers).build(),
    }
}

impl<B: Bench> Contender<B> for OnTokio {
    fn name(&self) -> &str {
        match self.flavour {
            Flavour::CurrentThread => "annulus-tokio",
            Flavour::MultiThread => "annulus-tokio-mt",
        }
    }

    fn about(&self) -> &str {
        match self.flavour {
            Flavour::CurrentThread => {
                "Annulus on Tokio (current_thread), a task per operation in flight"
            }
            Flavour::MultiThread => {
                "Annulus on Tokio (multi_thread, 2 workers), a task per operation in flight"
            }
        }
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let opened = Opened::new(job, None, annulus::Backend::Auto)?;
        let runtime = build_runtime(self.flavour, job.threads.unwrap_or(WORKERS))
            .map_err(|error| Failure::failed("starting the Tokio runtime", &error))?;
        let states: Vec<(B::Lane, AlignedBuf)> = (0..job.depth)
            .map(|_| (bench.lane(), buffer(job)))
            .collect();
        let lanes = runtime.block_on(async {
            bench.go();
            let tasks: Vec<JoinHandle<B::Lane>> = states
                .into_iter()
                .map(|(lane, buffer)| {
                    tokio::spawn(task(Arc::clone(&opened.files), lane, buffer, job.durable))
                })
                .collect();
            let mut lanes = Vec::with_capacity(tasks.len());
            for task in tasks {
                lanes.push(task.await);
            }
            lanes
        });
        for lane in lanes {
            bench.done(lane.map_err(|error| {
                Failure::Failed(format!("a task of the contender ended early: {error}"))
            })?);
        }
        Ok(opened.finished(job, 1))
    }
}

async fn task<L: Lane>(
    files: Arc<[File]>,
    mut lane: L,
    mut buffer: AlignedBuf,
    durable: bool,
) -> L {
    while let Some(op) = lane.next() {
        if op.write {
            lane.fill(&op, &mut buffer);
        }
        let answer = ask(&files, &op, buffer, durable).await;
        match settle(&mut lane, op, answer) {
            Some(back) => buffer = back,
            None => break,
        }
    }
    lane
}
