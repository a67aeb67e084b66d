//! Tokio's file type: one task per operation in flight, with its own handles, which seeks and then reads.
//!
//! `tokio::fs::File` has a position and no positional read. Each task therefore opens each file again, as a duplicate
//! would share the position. It opens `/proc/self/fd/N`, which also works for a file without a name.

use std::fs::OpenOptions;
use std::io::{self, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::call::{copy_whole, whole};
use crate::tokio_blocking::{run_tasks, runtime, waiting};
use crate::{Bench, Failure, Finished, Job, Memory, Op, Variant, Worker};

/// `tokio::fs`.
pub struct TokioFs;

impl<B: Bench> Variant<B> for TokioFs {
    fn name(&self) -> &str {
        "tokio-fs"
    }

    fn about(&self) -> &str {
        "tokio::fs::File (2 workers), a task with its own handles per operation in flight: seek, then read or write"
    }

    fn opens_files(&self) -> bool {
        true
    }

    fn unfit(&self, job: &Job) -> Option<String> {
        job.direct.then(|| {
            "tokio::fs reads into its own unaligned memory, which O_DIRECT refuses; measure it with --buffered".into()
        })
    }

    fn run(&self, job: &Job, bench: &B) -> Result<Finished, Failure> {
        let runtime = runtime(job)?;
        let mut tasks = Vec::with_capacity(job.depth);
        for _ in 0..job.depth {
            let handles = Handles {
                files: match job.paths.is_empty() {
                    true => open_all(job)?,
                    false => Vec::new(),
                },
                paths: Arc::clone(&job.paths),
                whole: job.whole,
                durable: job.durable,
            };
            tasks.push((bench.worker(), Memory::new(1, job.block_bytes)?, handles));
        }
        run_tasks(&runtime, bench, tasks, |(worker, memory, handles)| {
            drive(handles, worker, memory)
        })?;
        Ok(Finished {
            calls: None,
            note: waiting(job),
        })
    }
}

/// The open files of one task.
struct Handles {
    files: Vec<File>,
    /// The files that operations open, for a load of small files.
    paths: Arc<[PathBuf]>,
    whole: bool,
    durable: bool,
}

fn open_all(job: &Job) -> Result<Vec<File>, Failure> {
    let mut files = Vec::with_capacity(job.files.len());
    for file in job.files.iter() {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let handle = OpenOptions::new()
            .read(true)
            .write(job.writes)
            .open(&path)
            .map_err(|error| cannot_open(&error, &path, job.depth * job.files.len()))?;
        files.push(File::from_std(handle));
    }
    Ok(files)
}

fn cannot_open(error: &io::Error, path: &str, handles: usize) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE) => Failure::Unavailable(format!(
            "{handles} handles are more than RLIMIT_NOFILE allows; raise it with `ulimit -n`"
        )),
        _ => Failure::failed(&format!("opening the file again through {path}"), error),
    }
}

async fn drive<L: Worker>(mut handles: Handles, mut worker: L, mut memory: Memory) -> L {
    while let Some(op) = worker.next() {
        let buffer = memory.only();
        if op.write {
            worker.fill(&op, buffer);
        }
        let result = handles.call(&op, buffer).await;
        worker.finish(op, result, &*buffer);
    }
    worker
}

impl Handles {
    /// Runs one operation. A write ends with `flush`; without it, Tokio returns before it makes the system call.
    async fn call(&mut self, op: &Op, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(path) = self.paths.get(op.file as usize) {
            return match self.whole {
                true => copy_whole(&tokio::fs::read(path).await?, buffer),
                false => read_whole(path, buffer).await,
            };
        }
        let file = &mut self.files[op.file as usize];
        file.seek(SeekFrom::Start(op.offset)).await?;
        if !op.write {
            return file.read_exact(buffer).await;
        }
        file.write_all(buffer).await?;
        file.flush().await?;
        if self.durable {
            file.sync_data().await?;
        }
        Ok(buffer.len())
    }
}

/// Opens a file, queries its metadata, reads it and closes it.
async fn read_whole(path: &Path, buffer: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path).await?;
    let length = whole(file.metadata().await?.len(), buffer.len())?;
    file.read_exact(&mut buffer[..length]).await
}
