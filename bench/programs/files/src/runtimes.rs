//! One function for each library: `depth` tasks, each with one read at a time.

use std::future::Future;
use std::io;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::load::{Cache, Load, buffer};

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Runs the tasks of a multi-thread Tokio runtime with two workers.
fn on_tokio<F: Future<Output = ()> + Send + 'static>(
    load: &Arc<Load>,
    task: impl Fn(Arc<Load>) -> F,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let tasks: Vec<_> = (0..load.depth)
        .map(|_| runtime.spawn(task(Arc::clone(load))))
        .collect();
    for task in tasks {
        runtime.block_on(task).map_err(other)?;
    }
    Ok(())
}

/// Tasks of Tokio.
pub fn annulus_tokio(load: &Arc<Load>) -> io::Result<()> {
    let engine = annulus::Engine::new().map_err(other)?;
    let file = Arc::new(annulus::File::from_std(load.open()?, &engine)?);
    on_tokio(load, |load| annulus_reads(Arc::clone(&file), load))
}

/// One thread that drives its ring itself.
pub fn annulus_own(load: &Arc<Load>) -> io::Result<()> {
    let engine = annulus::Engine::new().map_err(other)?;
    let driver = engine.current_thread_driver().map_err(other)?;
    let file = Arc::new(annulus::File::from_std(load.open()?, &engine)?);
    driver.block_on(join_all(
        (0..load.depth).map(|_| annulus_reads(Arc::clone(&file), Arc::clone(load))),
    ));
    Ok(())
}

async fn annulus_reads(file: Arc<annulus::File>, load: Arc<Load>) {
    let mut memory = annulus::buf::AlignedBuf::with_len(load.block_bytes, 4096);
    while let Some(offset) = load.next() {
        match file.read_at(memory, offset).await {
            Ok((count, bytes)) => {
                load.done(offset, Ok(count), &bytes);
                memory = bytes;
            }
            Err(error) => return load.done(offset, Err(error.into_parts().0), &[]),
        }
    }
}

pub fn rustfs_uring(load: &Arc<Load>, shards: usize) -> io::Result<()> {
    let driver = rustfs_uring::UringDriver::probe_and_start_sharded(128, shards);
    let driver = Arc::new(driver.map_err(|error| io::Error::other(format!("{error:?}")))?);
    let file = Arc::new(load.open()?);
    on_tokio(load, |load| {
        let (driver, file) = (Arc::clone(&driver), Arc::clone(&file));
        async move {
            while let Some(offset) = load.next() {
                let (file, bytes) = (Arc::clone(&file), load.block_bytes);
                let read = match load.cache {
                    Cache::Direct => driver.read_at_direct(file, offset, bytes, 4096).await,
                    Cache::Cold | Cache::Hot => driver.read_at(file, offset, bytes).await,
                };
                match read {
                    Ok(bytes) => load.done(offset, Ok(bytes.len()), &bytes),
                    Err(error) => load.done(offset, Err(error), &[]),
                }
            }
        }
    })
}

pub fn monoio(load: &Arc<Load>) -> io::Result<()> {
    use monoio::buf::{IoBufMut, SliceMut};
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build()?;
    let file = load.open()?;
    runtime.block_on(async {
        let file = monoio::fs::File::from_std(file)?;
        join_all((0..load.depth).map(|_| async {
            let (mut memory, start) = buffer(load.block_bytes);
            while let Some(offset) = load.next() {
                let (result, slice): (_, SliceMut<Vec<u8>>) = file
                    .read_at(memory.slice_mut(start..start + load.block_bytes), offset)
                    .await;
                memory = slice.into_inner();
                load.done(offset, result, &memory[start..]);
            }
        }))
        .await;
        Ok(())
    })
}

pub fn tokio_uring(load: &Arc<Load>) -> io::Result<()> {
    use tokio_uring::buf::BoundedBuf;
    let std = load.open()?;
    tokio_uring::start(async {
        let file = tokio_uring::fs::File::from_std(std);
        join_all((0..load.depth).map(|_| async {
            let (mut memory, start) = buffer(load.block_bytes);
            while let Some(offset) = load.next() {
                let part = memory.slice(start..start + load.block_bytes);
                let (result, slice) = file.read_at(part, offset).await;
                memory = slice.into_inner();
                load.done(offset, result, &memory[start..]);
            }
        }))
        .await;
        Ok(())
    })
}

pub fn compio(load: &Arc<Load>) -> io::Result<()> {
    use compio::buf::{BufResult, IntoInner, IoBuf};
    use compio::io::AsyncReadAt;
    compio::runtime::Runtime::new()?.block_on(async {
        let mut options = compio::fs::OpenOptions::new();
        options.read(true).custom_flags(load.flags());
        let file = options.open(&load.path).await?;
        join_all((0..load.depth).map(|_| async {
            let (mut memory, start) = buffer(load.block_bytes);
            while let Some(offset) = load.next() {
                let part = memory.slice(start..start + load.block_bytes);
                let BufResult(result, slice) = file.read_at(part, offset).await;
                memory = slice.into_inner();
                load.done(offset, result, &memory[start..]);
            }
        }))
        .await;
        Ok(())
    })
}

pub fn glommio(load: &Arc<Load>) -> io::Result<()> {
    let executor = glommio::LocalExecutorBuilder::default()
        .make()
        .map_err(other)?;
    executor.run(async {
        let mut options = glommio::io::OpenOptions::new();
        options.read(true);
        match load.cache {
            Cache::Direct => {
                let file = options.dma_open(&load.path).await.map_err(other)?;
                join_all((0..load.depth).map(|_| async {
                    while let Some(offset) = load.next() {
                        match file.read_at_aligned(offset, load.block_bytes).await {
                            Ok(bytes) => load.done(offset, Ok(bytes.len()), &bytes),
                            Err(error) => load.done(offset, Err(other(error)), &[]),
                        }
                    }
                }))
                .await;
            }
            Cache::Cold | Cache::Hot => {
                let file = options.buffered_open(&load.path).await.map_err(other)?;
                join_all((0..load.depth).map(|_| async {
                    while let Some(offset) = load.next() {
                        match file.read_at(offset, load.block_bytes).await {
                            Ok(bytes) => load.done(offset, Ok(bytes.len()), &bytes),
                            Err(error) => load.done(offset, Err(other(error)), &[]),
                        }
                    }
                }))
                .await;
            }
        }
        Ok(())
    })
}
