//! ringline: one worker, whose first task reads the file.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use ringline::fs::{FsConfig, OpenFlags, open, read_into};
use ringline::{AsyncEventHandler, ConfigBuilder, ConnCtx, DirectIoConfig, RinglineBuilder};
use ringline::{direct_io_read, open_direct_io_file, request_shutdown, spawn_with_handle};

use crate::load::{Cache, Load, buffer};

/// The load of the worker, which ringline creates without arguments.
static LOAD: Mutex<Option<(Arc<Load>, Sender<io::Result<()>>)>> = Mutex::new(None);

struct Reads;

impl AsyncEventHandler for Reads {
    #[allow(clippy::manual_async_fn)]
    fn on_accept(&self, _connection: ConnCtx) -> impl Future<Output = ()> + 'static {
        async {}
    }

    fn create_for_worker(_worker: usize) -> Reads {
        Reads
    }

    fn on_start(&self) -> Option<Pin<Box<dyn Future<Output = ()> + 'static>>> {
        let (load, done) = LOAD.lock().unwrap().take()?;
        Some(Box::pin(async move {
            let result = match load.cache {
                Cache::Direct => direct(&load).await,
                Cache::Cold | Cache::Hot => buffered(&load).await,
            };
            let _ = done.send(result);
            let _ = request_shutdown();
        }))
    }
}

/// Runs a task per read in flight. In one task they would hang from 31 on: a completion wakes the task and not the
/// waker of the poll, and `join_all` then polls none of its futures.
async fn on_tasks<F: Future<Output = ()> + 'static>(
    load: &Arc<Load>,
    task: impl Fn(Arc<Load>) -> F,
) -> io::Result<()> {
    let spawn = |_| spawn_with_handle(task(Arc::clone(load)));
    let tasks = (0..load.depth).map(spawn).collect::<Result<Vec<_>, _>>()?;
    for task in tasks {
        task.await;
    }
    Ok(())
}

async fn direct(load: &Arc<Load>) -> io::Result<()> {
    let file = open_direct_io_file(&load.path.to_string_lossy())?;
    on_tasks(load, |load| async move {
        let (mut memory, start) = buffer(load.block_bytes);
        while let Some(offset) = load.next() {
            let part = &mut memory[start..start + load.block_bytes];
            // SAFETY: `memory` is not accessed or dropped before the read has completed, because nothing drops this
            // task.
            let read =
                unsafe { direct_io_read(file, offset, part.as_mut_ptr(), part.len() as u32) };
            let result = match read {
                Ok(read) => read.await.map(|count| count as usize),
                Err(error) => Err(error),
            };
            load.done(offset, result, &memory[start..]);
        }
    })
    .await
}

async fn buffered(load: &Arc<Load>) -> io::Result<()> {
    let file = open(&load.path, OpenFlags::READ, 0)?.await?;
    on_tasks(load, |load| async move {
        let mut memory = BytesMut::with_capacity(load.block_bytes);
        while let Some(offset) = load.next() {
            memory.clear();
            let read = match read_into(file, offset, memory) {
                Ok(read) => read,
                Err(error) => return load.done(offset, Err(error), &[]),
            };
            let (result, back) = read.await;
            memory = back;
            load.done(offset, result.map(|count| count as usize), &memory);
        }
    })
    .await
}

pub fn run(load: &Arc<Load>) -> io::Result<()> {
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    let commands = u16::try_from(load.depth.max(256)).map_err(|error| other(&error))?;
    let (sender, done) = channel();
    *LOAD.lock().unwrap() = Some((Arc::clone(load), sender));
    let config = ConfigBuilder::new()
        .workers(1)
        .pin_to_core(false)
        .direct_io(DirectIoConfig {
            max_files: 8,
            max_commands_in_flight: commands,
        })
        .fs(FsConfig {
            max_files: 8,
            max_commands_in_flight: commands,
        })
        .build()
        .map_err(|error| other(&error))?;
    let launched = RinglineBuilder::new(config).launch::<Reads>();
    let (_shutdown, workers) = launched.map_err(|error| other(&error))?;
    let result = done.recv().map_err(|error| other(&error))?;
    for worker in workers {
        match worker.join() {
            Ok(ended) => ended.map_err(|error| other(&error))?,
            Err(_) => return Err(io::Error::other("a worker panicked")),
        }
    }
    result
}
