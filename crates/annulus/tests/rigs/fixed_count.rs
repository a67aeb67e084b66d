//! A fixed number of operations on one thread, for a tool that counts instructions (`bench/instructions`).
//!
//! ```text
//! fixed_count cached_read FILE COUNT     reads 4 KiB from the page cache, one after another
//! fixed_count ring_read FILE COUNT       the same reads, each through the ring
//! fixed_count nop FILE COUNT             sends NOPs through the ring; FILE is not used
//! fixed_count direct_read FILE COUNT     reads 4 KiB with O_DIRECT, one after another
//! fixed_count direct_read_32 FILE COUNT  the same in 32 tasks
//! fixed_count small_file FILE COUNT      opens, queries, reads (4 KiB) and closes a cached file
//! fixed_count tokio WORK FILE COUNT      any of these on a current-thread runtime of Tokio
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

async fn read(engine: &Engine, cached: CachedReads, path: &str, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE * FILE_PAGES as usize])?;
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
}

async fn nop(engine: &Engine, count: u64) -> io::Result<()> {
    for _ in 0..count {
        engine.nop().await?;
    }
    Ok(())
}

async fn direct(engine: &Engine, path: &str, depth: u64, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE * FILE_PAGES as usize])?;
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
}

async fn small_file(engine: &Engine, path: &str, count: u64) -> io::Result<()> {
    std::fs::write(path, vec![7; PAGE])?;
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

/// Does the work on files that `words` name: `WORK FILE COUNT`.
async fn on_files(engine: &Engine, words: &[&str]) -> io::Result<()> {
    let [work, path, count] = words else {
        return Err(Error::other(
            "usage: fixed_count [tokio] WORK FILE COUNT, or fixed_count echo; WORK is cached_read, ring_read, nop, \
             direct_read, direct_read_32 or small_file",
        ));
    };
    let count = count.parse().map_err(Error::other)?;
    match *work {
        "cached_read" => read(engine, CachedReads::Always, path, count).await,
        "ring_read" => read(engine, CachedReads::Never, path, count).await,
        "nop" => nop(engine, count).await,
        "direct_read" => direct(engine, path, 1, count).await,
        "direct_read_32" => direct(engine, path, 32, count).await,
        "small_file" => small_file(engine, path, count).await,
        _ => Err(Error::other(format!("there is no work `{work}`"))),
    }
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let engine = || Engine::builder().build().map_err(Error::other);
    match &words[..] {
        ["echo"] => echo(),
        #[cfg(feature = "tokio")]
        ["tokio", words @ ..] => {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build()?;
            runtime.block_on(on_files(&engine()?, words))
        }
        words => {
            let engine = engine()?;
            let driver = engine.current_thread_driver().map_err(Error::other)?;
            driver.block_on(on_files(&engine, words))
        }
    }
}
