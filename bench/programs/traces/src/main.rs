//! The share of hits on four traces: of a page pool, of the policies of foyer, and of the page cache.
//!
//! Each keeps the same number of pages of a file that is larger. The reads through the page cache are in another
//! process with a memory limit, and without read-ahead.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::path::Path;

use annulus::Engine;
use annulus_pool::PagePool;
use annulus_testing::zipf::zipf;
use foyer_memory::{
    Cache, CacheBuilder, CacheProperties, EvictionConfig, FifoConfig, LfuConfig, LruConfig,
    S3FifoConfig, SieveConfig,
};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

type Fault = Box<dyn Error + Send + Sync>;

const PAGE_BYTES: u64 = 4096;
/// The number of pages in memory.
const FRAMES: u64 = 8192;
/// The number of pages that the points read.
const PAGES: u64 = 4 * FRAMES;
/// The pages behind them, which a scan reads.
const SCANNED: u64 = 4 * PAGES;
/// The reads of a trace. The second half counts.
const STEPS: u64 = 1_000_000;
/// The memory of the process that reads through the page cache, beside the pages of the file.
const OWN_BYTES: u64 = 832 << 10;
const TRACES: [&str; 4] = ["uniform", "Zipf 0.99", "Zipf 0.99 beside a scan", "loop"];
const PAGE_CACHE: &str = "--page-cache";

fn main() -> Result<(), Fault> {
    let dir = tempfile::tempdir_in(".")?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.as_slice() {
        [] => {}
        [flag, path] if flag == PAGE_CACHE => {
            let shares: Result<Vec<_>, _> = (0..TRACES.len())
                .map(|trace| Ok::<_, Fault>(hits(trace, page_cache(Path::new(path))?)?.to_string()))
                .collect();
            println!("{}", shares?.join(" "));
            return Ok(());
        }
        _ => {
            return Err(
                "there are no arguments; run it as root, on a file system with a page cache".into(),
            );
        }
    }
    let path = dir.path().join("pages");
    // Not a hole, which is read without waiting.
    let (mut file, chunk) = (File::create(&path)?, vec![1; 1 << 20]);
    for _ in 0..(PAGES + SCANNED) * PAGE_BYTES / chunk.len() as u64 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    println!(
        "| | {} |\n|---|{}",
        TRACES.join(" | "),
        "--:|".repeat(TRACES.len())
    );
    row("annulus-pool (S3-FIFO)", |trace| hits(trace, pool(&path)?))?;
    let policies: [(&str, EvictionConfig); 5] = [
        ("foyer, S3-FIFO", S3FifoConfig::default().into()),
        ("foyer, w-TinyLFU", LfuConfig::default().into()),
        ("foyer, LRU", LruConfig::default().into()),
        ("foyer, SIEVE", SieveConfig.into()),
        ("foyer, FIFO", FifoConfig::default().into()),
    ];
    for (name, policy) in policies {
        row(name, |trace| hits(trace, foyer(policy.clone())))?;
    }
    let limit = FRAMES * PAGE_BYTES + OWN_BYTES;
    let said = annulus_measure::in_limited_memory(limit, &[PAGE_CACHE.as_ref(), path.as_os_str()])?;
    let shares: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
    let shares =
        shares.map_err(|error| format!("the page cache's process said {said:?}: {error}"))?;
    row("page cache", |trace| Ok(shares[trace]))
}

fn row(name: &str, mut share: impl FnMut(usize) -> Result<f64, Fault>) -> Result<(), Fault> {
    let mut cells = format!("| {name} |");
    for trace in 0..TRACES.len() {
        cells += &format!(" {:.3} |", share(trace)?);
    }
    println!("{cells}");
    Ok(())
}

/// Returns the share of hits in the second half of a trace. `read` returns whether a page was in memory.
fn hits(trace: usize, mut read: impl FnMut(u64) -> Result<bool, Fault>) -> Result<f64, Fault> {
    let mut rng = fastrand::Rng::with_seed(trace as u64);
    let mut points = rng.clone();
    let mut ranks = zipf(PAGES, 0.99, move || points.f64());
    let (mut counted, mut found) = (0_u64, 0_u64);
    for step in 0..STEPS {
        let (page, counts) = match trace {
            0 => (rng.u64(..PAGES), true),
            2 if step % 2 == 1 => (PAGES + step / 2 % SCANNED, false),
            1 | 2 => (ranks(), true),
            _ => (step % (FRAMES * 5 / 4), true),
        };
        let hit = read(page)?;
        if counts && step >= STEPS / 2 {
            counted += 1;
            found += u64::from(hit);
        }
    }
    Ok(found as f64 / counted as f64)
}

fn pool(path: &Path) -> Result<impl FnMut(u64) -> Result<bool, Fault>, Fault> {
    let engine = Engine::new()?;
    let pool = PagePool::builder(&engine)
        .memory((FRAMES * PAGE_BYTES) as usize)
        .build()?;
    let file = pollster::block_on(pool.open(path))?;
    Ok(move |page| {
        let hit = file.try_page(page).is_some();
        if !hit {
            file.page_blocking(page)?;
        }
        Ok(hit)
    })
}

fn foyer(policy: EvictionConfig) -> impl FnMut(u64) -> Result<bool, Fault> {
    let cache: Cache<u64, (), _, CacheProperties> = CacheBuilder::new(FRAMES as usize)
        .with_shards(1)
        .with_eviction_config(policy)
        .build();
    move |page| {
        let hit = cache.get(&page).is_some();
        if !hit {
            cache.insert(page, ());
        }
        Ok(hit)
    }
}

fn page_cache(path: &Path) -> Result<impl FnMut(u64) -> Result<bool, Fault>, Fault> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    fadvise(&file, 0, None, Advice::Random)?;
    let mut bytes = [0; PAGE_BYTES as usize];
    Ok(move |page| {
        let at = page * PAGE_BYTES;
        let mut slices = [IoSliceMut::new(&mut bytes)];
        match preadv2(&file, &mut slices, at, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => {
                pread(&file, &mut bytes, at)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    })
}
