//! A fixed number of operations on one thread, for a tool that counts instructions (`ci/instructions`).
//!
//! ```text
//! fixed_count cached_read FILE COUNT     reads 4 KiB from the page cache, one after another
//! fixed_count ring_read FILE COUNT       the same reads, each through the ring
//! fixed_count nop FILE COUNT             sends NOPs through the ring; FILE is not used
//! fixed_count direct_read FILE COUNT     reads 4 KiB with O_DIRECT, one after another
//! fixed_count direct_read_32 FILE COUNT  the same in 32 tasks
//! fixed_count small_file FILE COUNT      opens, queries, reads (4 KiB) and closes a cached file
//! fixed_count echo                       prints a port, and echoes one connection until it ends
//! ```

use std::io::{self, Error, Write};

use annulus::buf::AlignedBuf;
use annulus::fs::CachedReads;
use annulus::net::TcpListener;
use annulus::runtime::Runtime;
use annulus::{Engine, OpenOptions};
use futures_util::TryStreamExt;
use futures_util::stream::FuturesUnordered;

const PAGE: usize = 4096;
const FILE_PAGES: u64 = 256;

fn read(cached: CachedReads, path: &str, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE * FILE_PAGES as usize])?;
    let engine = Engine::builder().build().map_err(Error::other)?;
    let driver = engine.current_thread_driver().map_err(Error::other)?;
    driver.block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).cached_reads(cached);
        let file = engine.open_with(&options, path).await?;
        let mut buffer = AlignedBuf::with_len(PAGE, PAGE);
        for i in 0..count {
            let offset = i % FILE_PAGES * PAGE as u64;
            let bytes;
            (bytes, buffer) = file.read_at(buffer, offset).await?;
            assert_eq!(bytes, PAGE);
        }
        Ok(())
    })
}

fn nop(count: u64) -> io::Result<()> {
    let engine = Engine::builder().build().map_err(Error::other)?;
    let driver = engine.current_thread_driver().map_err(Error::other)?;
    driver.block_on(async {
        for _ in 0..count {
            engine.nop().await?;
        }
        Ok(())
    })
}

fn direct(path: &str, depth: u64, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE * FILE_PAGES as usize])?;
    let engine = Engine::builder().build().map_err(Error::other)?;
    let driver = engine.current_thread_driver().map_err(Error::other)?;
    driver.block_on(async {
        let mut options = OpenOptions::new();
        let file = engine
            .open_with(options.read(true).direct(true), path)
            .await?;
        let tasks: FuturesUnordered<_> = (0..depth)
            .map(async |task| {
                let mut buffer = AlignedBuf::with_len(PAGE, PAGE);
                for i in (task..count).step_by(depth as usize) {
                    let offset = i % FILE_PAGES * PAGE as u64;
                    let bytes;
                    (bytes, buffer) = file.read_at(buffer, offset).await?;
                    assert_eq!(bytes, PAGE);
                }
                io::Result::Ok(())
            })
            .collect();
        tasks.try_collect().await
    })
}

fn small_file(path: &str, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE])?;
    let engine = Engine::builder().build().map_err(Error::other)?;
    let driver = engine.current_thread_driver().map_err(Error::other)?;
    driver.block_on(async {
        let mut buffer = vec![0; PAGE];
        for _ in 0..count {
            let file = engine.open(path).await?;
            assert_eq!(file.metadata().await?.len(), PAGE as u64);
            let bytes;
            (bytes, buffer) = file.read_at(buffer, 0).await?;
            assert_eq!(bytes, PAGE);
            file.close().await?;
        }
        Ok(())
    })
}

fn echo() -> io::Result<()> {
    Runtime::builder().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?.port());
        io::stdout().flush()?;
        let stream = listener.accept().await?;
        let mut chunks = stream.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            stream.send_all(chunk?).await?;
        }
        Ok(())
    })?
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["cached_read", path, count] => read(
            CachedReads::Always,
            path,
            count.parse().map_err(Error::other)?,
        ),
        ["ring_read", path, count] => read(
            CachedReads::Never,
            path,
            count.parse().map_err(Error::other)?,
        ),
        ["nop", _, count] => nop(count.parse().map_err(Error::other)?),
        ["direct_read", path, count] => direct(path, 1, count.parse().map_err(Error::other)?),
        ["direct_read_32", path, count] => direct(path, 32, count.parse().map_err(Error::other)?),
        ["small_file", path, count] => small_file(path, count.parse().map_err(Error::other)?),
        ["echo"] => echo(),
        _ => Err(Error::other(
            "usage: fixed_count WORK FILE COUNT, or fixed_count echo; WORK is cached_read, ring_read, nop, direct_read, \
             direct_read_32 or small_file",
        )),
    }
}
