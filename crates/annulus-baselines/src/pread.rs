//! One thread per operation in flight, each in a blocking `pread` or `pwrite`: what most programs do.

use crate::call;
use crate::threads::{next_in_time, on_threads};
use crate::{Bench, Failure, Finished, Job, Memory, Variant, Worker};

/// Blocking positional calls on threads.
pub struct Pread;

/// [`Pread`] on as many threads as Tokio has for blocking calls, whatever the depth.
pub struct Pread512;

const THREADS: usize = 512;

impl<B: Bench> Variant<B> for Pread512 {
    fn name(&self) -> &str {
        "pread-512"
    }

    fn about(&self) -> &str {
        "pread on at most 512 threads, for depths beyond those of pread"
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let job = Job {
            threads: Some(job.threads.unwrap_or(THREADS).min(THREADS)),
            ..job.clone()
        };
        Pread.run(&job, bench)
    }
}

impl<B: Bench> Variant<B> for Pread {
    fn name(&self) -> &str {
        "pread"
    }

    fn about(&self) -> &str {
        "blocking pread/pwrite, one thread per operation in flight (at most --threads)"
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        job.too_many_threads()
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let per_operation = call::calls(job);
        let setup = |_| Memory::new(1, job.block_bytes);
        let drive = |mut memory: Memory, worker: &mut B::Worker| {
            let mut calls = 0;
            while let Some(op) = next_in_time(worker) {
                let buffer = &mut memory.only()[..op.bytes as usize];
                if op.write {
                    worker.fill(&op, buffer);
                }
                let result = call::run(job, &op, buffer);
                calls += per_operation;
                worker.called();
                worker.finish(op, result, &*buffer);
            }
            Ok(calls)
        };
        let (threads, note) = job.blocking_threads();
        let calls = on_threads(bench, threads, setup, drive)?;
        Ok(Finished {
            calls: Some(calls),
            note,
        })
    }
}
