//! Tokio's own file type: one task per operation in flight, each with a handle of its own, seek and read.
//!
//! `tokio::fs::File` has a position and no positional read, so each task needs its own open file: a
//! duplicate would share the position. They are opened again through `/proc/self/fd`, which also
//! works for a file without a name.

use std::fs::OpenOptions;
use std::io::{self, SeekFrom};
use std::os::fd::AsRawFd;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::tokio_blocking::{run_tasks, runtime};
use crate::{Bench, Contender, Failure, Finished, Job, Lane, Memory, Op};

/// `tokio::fs`.
pub struct TokioFs;

impl<B: Bench> Contender<B> for TokioFs {
    fn name(&self) -> &str {
        "tokio-fs"
    }

    fn about(&self) -> &str {
        "tokio::fs::File (2 workers), one task and one handle per operation in flight: seek, then read or write"
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        job.direct.then(|| {
            "tokio::fs reads into unaligned memory of its own, which O_DIRECT refuses; see it with --buffered".into()
        })
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let runtime = runtime(job)?;
        let path = format!("/proc/self/fd/{}", job.file.as_raw_fd());
        let mut tasks = Vec::with_capacity(job.depth);
        for _ in 0..job.depth {
            let file = OpenOptions::new()
                .read(true)
                .write(job.writes)
                .open(&path)
                .map_err(|error| cannot_open(&error, &path, job.depth))?;
            tasks.push((
                bench.lane(),
                Memory::new(1, job.block_bytes)?,
                File::from_std(file),
            ));
        }
        run_tasks(&runtime, bench, tasks, |(lane, memory, file)| {
            drive(file, lane, memory)
        })?;
        Ok(Finished::default())
    }
}

fn cannot_open(error: &io::Error, path: &str, depth: usize) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Failure::NotHere(format!(
            "{depth} handles are more than RLIMIT_NOFILE allows; raise it with `ulimit -n`"
        )),
        _ => Failure::failed(&format!("opening the file again through {path}"), error),
    }
}

async fn drive<L: Lane>(mut file: File, mut lane: L, mut memory: Memory) -> L {
    while let Some(op) = lane.next() {
        let buffer = memory.only();
        if op.write {
            lane.fill(&op, buffer);
        }
        let result = call(&mut file, &op, buffer).await;
        lane.finish(op, result, &*buffer);
    }
    lane
}

/// One operation. A write ends with `flush`: without it, Tokio answers before the system call is made.
async fn call(file: &mut File, op: &Op, buffer: &mut [u8]) -> io::Result<usize> {
    file.seek(SeekFrom::Start(op.offset)).await?;
    if op.write {
        file.write_all(buffer).await?;
        file.flush().await?;
        Ok(buffer.len())
    } else {
        file.read_exact(buffer).await
    }
}
