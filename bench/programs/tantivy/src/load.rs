//! The index, and the reads of random documents.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use annulus_measure::Stopwatch;
use annulus_pool::PagePool;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tantivy::directory::{Advice, MmapDirectory};
use tantivy::schema::{Field, INDEXED, STORED, Schema, Value};
use tantivy::{DocAddress, Index, ReloadPolicy, Searcher, TantivyDocument};

use crate::directory::PoolDirectory;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The text of a document, in words of eight hexadecimal digits.
const WORDS: usize = 160;
/// Documents that are added before the size of the index is looked at.
const COMMIT: u64 = 50_000;
const WRITER_BYTES: usize = 64 << 20;
/// The workers of Tokio, and the time without measurement before a run.
const WORKERS: usize = 2;
const WARM_UP: Duration = Duration::from_secs(3);
/// The memory of a run beside the pages of its pool: a quarter of the limit.
const BESIDE: usize = 4;
/// The pages of the pool: as long as a block of documents, which then takes one or two reads, not four or five.
const PAGE_BYTES: usize = 16 << 10;

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const ENDED: u8 = 2;

/// The variants, and which is which.
pub(crate) const VARIANTS: [&str; 3] = ["map-threads", "map-tokio", "pool-tokio"];

fn schema() -> (Schema, Field, Field) {
    let mut schema = Schema::builder();
    let number = schema.add_u64_field("number", INDEXED | STORED);
    let body = schema.add_text_field("body", STORED);
    (schema.build(), number, body)
}

/// Returns the text of a document.
fn body(number: u64) -> String {
    let mut rng = Rng::with_seed(number);
    (0..WORDS)
        .map(|_| format!("{:08x} ", rng.u32(..)))
        .collect()
}

/// Writes an index of at least `bytes` into an empty folder.
pub(crate) fn fill(folder: &Path, bytes: u64) -> Result<()> {
    let (schema, number, text) = schema();
    let index = Index::create_in_dir(folder, schema)?;
    let mut writer = index.writer_with_num_threads(1, WRITER_BYTES)?;
    let mut next = 0;
    while size(folder)? < bytes {
        for one in next..next + COMMIT.min(1 + bytes / 1000) {
            let mut document = TantivyDocument::new();
            document.add_u64(number, one);
            document.add_text(text, body(one));
            writer.add_document(document)?;
            next = one + 1;
        }
        writer.commit()?;
    }
    writer.wait_merging_threads()?;
    Ok(())
}

pub(crate) fn size(folder: &Path) -> io::Result<u64> {
    let files = std::fs::read_dir(folder)?;
    files.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// Opens the index for a variant. `memory`: the limit, of which a pool takes a part.
pub(crate) fn open(
    folder: &Path,
    variant: &str,
    memory: usize,
) -> Result<(Searcher, Option<PagePool>)> {
    let (index, pool) = if variant.starts_with("pool") {
        let engine = annulus::Engine::new()?;
        let pool = PagePool::builder(&engine)
            .memory(memory - memory / BESIDE)
            .page_bytes(PAGE_BYTES)
            .build()?;
        (
            Index::open(PoolDirectory::open(folder, &pool)?)?,
            Some(pool),
        )
    } else {
        (
            Index::open(MmapDirectory::open_with_madvice(folder, Advice::Random)?)?,
            None,
        )
    };
    let reader = index
        .reader_builder()
        .reload_policy(ReloadPolicy::Manual)
        .try_into()?;
    Ok((reader.searcher(), pool))
}

/// Returns the number and the text of a document.
fn contents(searcher: &Searcher, document: &TantivyDocument) -> Option<(u64, String)> {
    let [number, body] = ["number", "body"].map(|name| searcher.schema().get_field(name).ok());
    let number = document.get_first(number?)?.as_u64()?;
    Some((number, document.get_first(body?)?.as_str()?.to_owned()))
}

/// Compares all documents of both ways to read with those that were written. Returns their number.
pub(crate) fn compare(folder: &Path, memory: usize) -> Result<u64> {
    let [maps, pool] = [VARIANTS[0], VARIANTS[2]].map(|variant| open(folder, variant, memory));
    let (maps, (pool, _)) = (maps?.0, pool?);
    let mut all = 0;
    for (segment, reader) in maps.segment_readers().iter().enumerate() {
        for id in 0..reader.max_doc() {
            let address = DocAddress::new(segment as u32, id);
            let [one, other] =
                [&maps, &pool].map(|searcher| searcher.doc::<TantivyDocument>(address));
            let (one, other) = (contents(&maps, &one?), contents(&pool, &other?));
            let awaited = pollster::block_on(pool.doc_async::<TantivyDocument>(address))?;
            let is_right = one
                .as_ref()
                .is_some_and(|(number, text)| *text == body(*number));
            if !is_right || one != other || one != contents(&pool, &awaited) {
                return Err(format!("document {address:?} differs").into());
            }
            all += 1;
        }
    }
    Ok(all)
}

/// The figures of a run, with the names that `annulus bench file` has for them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    kind: String,
    pub(crate) ops_per_second: f64,
    pub(crate) cpu_us_per_op: f64,
    latency_ns: Latency,
    /// Hits and misses of the pool.
    pages: Option<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Latency {
    p50: u64,
    p99_9: u64,
}

/// One who reads.
struct Reader {
    searcher: Searcher,
    phase: Arc<AtomicU8>,
    rng: Rng,
    latencies: Vec<u32>,
}

impl Reader {
    fn next(&mut self) -> Option<DocAddress> {
        let segments = self.searcher.segment_readers();
        let mut nth = self.rng.u64(..self.searcher.num_docs());
        for (segment, reader) in segments.iter().enumerate() {
            if nth < u64::from(reader.max_doc()) {
                let address = DocAddress::new(segment as u32, nth as u32);
                return (self.phase.load(Ordering::Relaxed) != ENDED).then_some(address);
            }
            nth -= u64::from(reader.max_doc());
        }
        None
    }

    fn done(&mut self, document: tantivy::Result<TantivyDocument>, from: Instant) -> Result<()> {
        contents(&self.searcher, &document?).ok_or("a document has no number or text")?;
        if self.phase.load(Ordering::Relaxed) == MEASURED {
            self.latencies.push(from.elapsed().as_micros() as u32);
        }
        Ok(())
    }

    /// Blocks its thread.
    fn on_thread(mut self) -> Result<Vec<u32>> {
        while let Some(address) = self.next() {
            let from = Instant::now();
            let document = self.searcher.doc(address);
            self.done(document, from)?;
        }
        Ok(self.latencies)
    }

    async fn in_task(mut self, awaits: bool) -> Result<Vec<u32>> {
        while let Some(address) = self.next() {
            let from = Instant::now();
            let document = match awaits {
                true => self.searcher.doc_async(address).await,
                false => self.searcher.doc(address),
            };
            self.done(document, from)?;
            tokio::task::yield_now().await;
        }
        Ok(self.latencies)
    }
}

/// Reads random documents with a number of readers for some time.
pub(crate) fn run(
    folder: &Path,
    variant: &str,
    readers: usize,
    memory: usize,
    time: Duration,
) -> Result<Sample> {
    let (searcher, pool) = open(folder, variant, memory)?;
    let phase = Arc::new(AtomicU8::new(WARM));
    let reader = |seed| Reader {
        searcher: searcher.clone(),
        phase: Arc::clone(&phase),
        rng: Rng::with_seed(seed),
        latencies: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    let (mut threads, mut tasks) = (Vec::new(), Vec::new());
    for seed in 0..readers as u64 {
        let reader = reader(seed);
        match variant == "map-threads" {
            true => threads.push(std::thread::spawn(move || reader.on_thread())),
            false => tasks.push(runtime.spawn(reader.in_task(pool.is_some()))),
        }
    }
    std::thread::sleep(WARM_UP);
    let pages = || {
        pool.as_ref()
            .map(|pool| (pool.stats().hits, pool.stats().misses))
    };
    let (before, watch) = (pages(), Stopwatch::start()?);
    phase.store(MEASURED, Ordering::Relaxed);
    std::thread::sleep(time);
    phase.store(ENDED, Ordering::Relaxed);
    let cost = watch.stop()?;
    let after = pages();
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().map_err(|_| "a reader panicked")??);
    }
    for task in tasks {
        latencies.extend(runtime.block_on(task)??);
    }
    latencies.sort_unstable();
    if latencies.is_empty() {
        return Err("no document was read in the measured time".into());
    }
    let at =
        |share: f64| u64::from(latencies[((latencies.len() - 1) as f64 * share) as usize]) * 1000;
    Ok(Sample {
        kind: "measured".into(),
        ops_per_second: latencies.len() as f64 / cost.seconds,
        cpu_us_per_op: cost.cpu_seconds * 1e6 / latencies.len() as f64,
        latency_ns: Latency {
            p50: at(0.5),
            p99_9: at(0.999),
        },
        pages: before
            .zip(after)
            .map(|(before, after)| (after.0 - before.0, after.1 - before.1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_documents_are_equal_from_maps_and_from_a_pool_that_is_smaller_than_the_index() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 3 << 20).unwrap();
        let bytes = size(folder.path()).unwrap();
        assert!(compare(folder.path(), 1 << 20).unwrap() > 1000);
        let (searcher, pool) = open(folder.path(), "pool-tokio", 1 << 20).unwrap();
        for id in (0..searcher.segment_reader(0).max_doc()).step_by(7) {
            searcher
                .doc::<TantivyDocument>(DocAddress::new(0, id))
                .unwrap();
        }
        let stats = pool.unwrap().stats();
        assert!(
            stats.misses > 0 && stats.evicted > 0,
            "{bytes} bytes, {stats:?}"
        );
    }
}
