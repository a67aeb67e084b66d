//! Random rows, scans and vector searches of a Lance data set: through Lance's `file://` and `file+uring://`, and
//! through our object store.
//!
//! Each take and scan must return the rows that were written, and each search what it returns through `file://`. The
//! counters of Annulus must show that it made the reads of our store, and no others.

#![forbid(unsafe_code)]

mod data;
mod provider;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use annulus_measure::{
    Cost, Options, Report, Stopwatch, order, read_into_cache, reads, remove_from_cache,
};
use annulus_object_store::v0_14::LocalFileSystem;
use arrow_array::{RecordBatch, RecordBatchIterator, UInt64Array};
use arrow_schema::ArrowError;
use clap::Parser;
use fastrand::Rng;
use futures_util::TryStreamExt;
use lance::dataset::builder::DatasetBuilder;
use lance::dataset::scanner::Scanner;
use lance::dataset::{DEFAULT_METADATA_CACHE_SIZE, Dataset, WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance::io::ObjectStoreRegistry;
use lance::session::Session;
use lance_index::IndexType;
use lance_io::object_store::ObjectStoreProvider;
use lance_linalg::distance::MetricType;
use lance_table::io::commit::ConditionalPutCommitHandler;

use provider::Provider;

type Error = Box<dyn std::error::Error + Send + Sync>;

const FILE: &str = "file";
const URING: &str = "file+uring";
const ANNULUS: &str = "annulus";
const VARIANTS: [&str; 3] = [FILE, URING, ANNULUS];
/// The rows of a take. The nearest rows that a search returns, the parts of the index that it reads, and the factor of
/// rows of which it reads the vectors.
const TAKEN: usize = 1000;
const NEAREST: usize = 10;
const PROBES: usize = 16;
const REFINE: u32 = 10;

#[derive(Clone, Copy)]
enum Load {
    Take,
    Scan,
    Search,
}

/// The loads, and how often a run does each.
const LOADS: [(Load, &str, u64); 3] = [
    (Load::Take, "take of 1,000 rows", 5),
    (Load::Scan, "scan", 1),
    (Load::Search, "vector search", 20),
];

#[derive(Parser)]
#[command(
    about = "Random rows, scans and vector searches of a Lance data set, through three readers"
)]
struct Args {
    /// Folder for the data set, which is written once and stays
    #[arg(long, default_value = "lance-data")]
    dir: PathBuf,
    /// Rows of the data set
    #[arg(long, default_value_t = 200_000)]
    rows: u64,
    /// A quick check: 20,000 rows, two rounds
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    common: Options,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = Args::parse();
    if args.short {
        (args.rows, args.common.repeat) = (20_000, 2);
    }
    let provider = Arc::new(Provider(LocalFileSystem::new()));
    let folder = args.dir.join(format!("{}-rows", args.rows));
    let lance = Lance::new(&folder, args.rows, provider).await?;
    let (mut report, mut loads) = (Report::default(), Vec::new());
    for cache in ["cached", "cold"] {
        for (load, name, times) in LOADS {
            let name = format!("{name}, {cache}");
            eprintln!("{name}");
            read_into_cache(&folder)?;
            for round in 0..=args.common.repeat {
                for place in order(VARIANTS.len(), round) {
                    let mut cost = Cost::default();
                    for time in 0..times {
                        let seed = (round as u64) << 32 | time;
                        cost += lance
                            .run(VARIANTS[place], load, seed, cache == "cold")
                            .await?;
                    }
                    report.add(&name, round, VARIANTS[place], times, cost);
                }
            }
            loads.push(name);
        }
    }
    println!("{}", report.table(&loads, &VARIANTS, FILE, ""));
    println!("All rows are those that were written, and all searches agree.");
    Ok(report.write_json(args.common.json.as_deref())?)
}

/// Makes sessions of Lance that know the name `annulus://`.
struct Sessions(Arc<ObjectStoreRegistry>);

impl Sessions {
    fn new(provider: Arc<dyn ObjectStoreProvider>) -> Sessions {
        let registry = ObjectStoreRegistry::default();
        registry.insert(ANNULUS, provider);
        Sessions(Arc::new(registry))
    }

    /// Returns a session with its own caches. Without a cache of the index, each search reads its parts of it.
    fn session(&self) -> Arc<Session> {
        let registry = Arc::clone(&self.0);
        Arc::new(Session::new(0, DEFAULT_METADATA_CACHE_SIZE, registry))
    }
}

/// A data set, opened by each variant.
struct Lance {
    folder: PathBuf,
    rows: u64,
    /// In the order of the variants.
    opened: Vec<Dataset>,
}

impl Lance {
    /// Opens the data set in a folder. Writes it through the provider if there is none.
    async fn new(
        folder: &Path,
        rows: u64,
        provider: Arc<dyn ObjectStoreProvider>,
    ) -> Result<Lance, Error> {
        std::fs::create_dir_all(folder)?;
        let folder = folder.canonicalize()?;
        let (path, part) = (folder.join("rows.lance"), folder.join("part.lance"));
        let sessions = Sessions::new(provider);
        if !path.exists() {
            let _ = std::fs::remove_dir_all(&part);
            let chunks = (0..rows.div_ceil(data::CHUNK)).map(|chunk| chunk * data::CHUNK);
            let chunks = chunks.map(move |start| data::rows(start..rows.min(start + data::CHUNK)));
            write(&part, sessions.session(), rows, chunks).await?;
            std::fs::rename(part, &path)?;
        }
        let mut opened = Vec::new();
        for scheme in VARIANTS {
            let name = format!("{scheme}://{}", path.display());
            let builder = DatasetBuilder::from_uri(name).with_session(sessions.session());
            opened.push(builder.load().await?);
        }
        Ok(Lance {
            folder,
            rows,
            opened,
        })
    }

    /// Does something once. `cold`: removes the data set from the page cache first. Fails if the answer is wrong, or if
    /// another reader than that of the variant read the data set.
    async fn run(&self, variant: &str, load: Load, seed: u64, cold: bool) -> Result<Cost, Error> {
        if cold {
            remove_from_cache(&self.folder)?;
        }
        let (before, stopwatch) = (reads(), Stopwatch::start()?);
        let answer = self.answer(variant, load, seed).await?;
        let cost = stopwatch.stop()?;
        let count = reads() - before;
        if (count > 0) != (variant == ANNULUS) {
            return Err(format!("{variant}: Annulus made {count} of the reads").into());
        }
        let is_right = match load {
            Load::Take => {
                let rows = data::rows(taken(self.rows, seed).into_iter())?;
                answer.len() == 1 && answer[0].columns() == rows.columns()
            }
            Load::Scan => {
                let mut next = 0;
                for batch in &answer {
                    let end = next + batch.num_rows() as u64;
                    if batch.columns() != data::rows(next..end)?.columns() {
                        break;
                    }
                    next = end;
                }
                next == self.rows
            }
            Load::Search => answer == self.answer(FILE, load, seed).await? && found(&answer)?,
        };
        match is_right {
            true => Ok(cost),
            false => Err(format!("{variant}: not the rows that were written: {answer:?}").into()),
        }
    }

    async fn answer(
        &self,
        variant: &str,
        load: Load,
        seed: u64,
    ) -> Result<Vec<RecordBatch>, Error> {
        let at = VARIANTS.iter().position(|scheme| *scheme == variant);
        let dataset = &self.opened[at.ok_or("no such variant")?];
        let scan = match load {
            Load::Take => {
                let rows = taken(self.rows, seed);
                return Ok(vec![dataset.take(&rows, dataset.schema().clone()).await?]);
            }
            Load::Scan => dataset.scan(),
            Load::Search => search(dataset, self.rows + seed)?,
        };
        Ok(scan.try_into_stream().await?.try_collect().await?)
    }
}

/// Returns the numbers of the rows of a take.
fn taken(rows: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::with_seed(seed);
    (0..TAKEN).map(|_| rng.u64(..rows)).collect()
}

/// Returns a search for the rows whose vectors are the nearest to that of a number.
fn search(dataset: &Dataset, number: u64) -> Result<Scanner, Error> {
    let mut scan = dataset.scan();
    let search = scan.nearest("vector", &data::vector(number), NEAREST)?;
    search.nprobes(PROBES).refine(REFINE);
    Ok(scan)
}

/// Returns whether a search found as many rows as it should, all as they were written.
fn found(answer: &[RecordBatch]) -> Result<bool, Error> {
    let mut count = 0;
    for batch in answer {
        let numbers = batch.column_by_name("number").ok_or("no column `number`")?;
        let numbers = numbers.as_any().downcast_ref::<UInt64Array>();
        let numbers = numbers.ok_or("`number` has another type")?;
        let rows = data::rows(numbers.values().iter().copied())?;
        if batch.columns()[..rows.num_columns()] != *rows.columns() {
            return Ok(false);
        }
        count += batch.num_rows();
    }
    Ok(count == NEAREST)
}

type Chunk = Result<RecordBatch, ArrowError>;

/// Appends rows to a data set through `annulus://`. Makes the data set if there is none.
async fn append(
    path: &Path,
    session: Arc<Session>,
    chunks: impl Iterator<Item = Chunk> + Send + 'static,
) -> Result<Dataset, Error> {
    let params = WriteParams {
        mode: WriteMode::Append,
        session: Some(session),
        // The default of Lance for other schemes than its own lets concurrent commits overwrite each other.
        commit_handler: Some(Arc::new(ConditionalPutCommitHandler)),
        ..WriteParams::default()
    };
    let chunks = RecordBatchIterator::new(chunks, data::rows(0..1)?.schema());
    let name = format!("{ANNULUS}://{}", path.display());
    Ok(Dataset::write(chunks, name.as_str(), Some(params)).await?)
}

/// Writes the data set and an index of its vectors.
async fn write(
    path: &Path,
    session: Arc<Session>,
    rows: u64,
    chunks: impl Iterator<Item = Chunk> + Send + 'static,
) -> Result<(), Error> {
    let mut dataset = append(path, session, chunks).await?;
    let parts = usize::try_from(rows / 1000)?.max(PROBES);
    let index = VectorIndexParams::ivf_pq(parts, 8, data::DIMENSIONS / 8, MetricType::L2, 10);
    let columns = ["vector"];
    let index = dataset.create_index(&columns, IndexType::Vector, None, &index, true);
    index.await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use annulus::{Backend, Engine};
    use lance_io::object_store::providers::local::FileStoreProvider;
    use tokio::sync::Mutex;

    use super::*;

    const ROWS: u64 = 5000;
    /// The counters of reads are those of the process.
    static ALONE: Mutex<()> = Mutex::const_new(());

    async fn lance(folder: &Path, backend: Backend) -> Lance {
        let engine = Engine::builder().backend(backend).build().unwrap();
        let provider = Provider(LocalFileSystem::new().with_engine(engine));
        let lance = Lance::new(folder, ROWS, Arc::new(provider));
        lance.await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_readers_return_the_same_and_only_ours_uses_annulus() {
        let (_alone, folder) = (ALONE.lock().await, tempfile::tempdir().unwrap());
        for backend in [Backend::Auto, Backend::Fallback] {
            let lance = lance(folder.path(), backend).await;
            for variant in VARIANTS {
                for (load, _, _) in LOADS {
                    for (seed, cold) in [(1, false), (2, true)] {
                        lance.run(variant, load, seed, cold).await.unwrap();
                    }
                }
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_provider_without_annulus_is_found() {
        let (_alone, folder) = (ALONE.lock().await, tempfile::tempdir().unwrap());
        let other = Arc::new(FileStoreProvider);
        let lance = Lance::new(folder.path(), ROWS, other).await.unwrap();
        for (load, _, _) in LOADS {
            let error = lance.run(ANNULUS, load, 3, false).await.unwrap_err();
            let error = error.to_string();
            assert!(error.contains("Annulus made 0 of the reads"), "{error}");
            lance.run(FILE, load, 3, false).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_changed_row_is_found() {
        let (_alone, folder) = (ALONE.lock().await, tempfile::tempdir().unwrap());
        let provider = Arc::new(Provider(LocalFileSystem::new()));
        let mut numbers: Vec<u64> = (0..ROWS).collect();
        numbers[taken(ROWS, 4)[0] as usize] += 1;
        let chunks = std::iter::once(data::rows(numbers.into_iter()));
        let session = Sessions::new(provider.clone()).session();
        let path = folder.path().join("rows.lance");
        write(&path, session, ROWS, chunks).await.unwrap();
        let lance = Lance::new(folder.path(), ROWS, provider);
        let lance = lance.await.unwrap();
        for variant in VARIANTS {
            for load in [Load::Take, Load::Scan] {
                let error = lance.run(variant, load, 4, false).await.unwrap_err();
                let error = error.to_string();
                assert!(error.contains("not the rows that were written"), "{error}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_search_uses_the_index_and_depends_on_its_vector() {
        let (_alone, folder) = (ALONE.lock().await, tempfile::tempdir().unwrap());
        let lance = lance(folder.path(), Backend::Auto).await;
        let search = search(&lance.opened[2], ROWS).unwrap();
        let plan = search.explain_plan(true).await.unwrap();
        assert!(plan.contains("ANNSubIndex"), "{plan}");
        let [one, other] = [1, 2].map(|seed| lance.answer(FILE, Load::Search, seed));
        assert_ne!(one.await.unwrap(), other.await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_commits_keep_all_rows() {
        let (_alone, folder) = (ALONE.lock().await, tempfile::tempdir().unwrap());
        let provider = Provider(LocalFileSystem::new());
        let sessions = Sessions::new(Arc::new(provider));
        let path = folder.path().join("rows.lance");
        let session = sessions.session();
        let rows = || std::iter::once(data::rows(0..10));
        append(&path, session.clone(), rows()).await.unwrap();
        let writers = (0..8).map(|_| {
            let (path, session) = (path.clone(), session.clone());
            tokio::spawn(async move { append(&path, session, rows()).await.map(drop) })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap().unwrap();
        }
        let name = format!("{FILE}://{}", path.display());
        let dataset = Dataset::open(&name).await.unwrap();
        assert_eq!(dataset.count_rows(None).await.unwrap(), 90);
    }
}
