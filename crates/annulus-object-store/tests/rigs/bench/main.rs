//! Compares the store with `LocalFileSystem` of the same version (0.14), on Tokio with two workers.
//!
//! ```text
//! cargo run --release -p annulus-object-store --example object_store_bench -- FOLDER [PAIRS] [LOAD...]
//! ```
//!
//! Each load runs `PAIRS` times (default 9) on each store, alternately, with other programs and the drive beside them.
//! `put_fsync=100000` sets the number of puts. The objects stay in FOLDER. The table has medians and quartiles of time
//! and CPU time, and of our time and CPU time divided by those of the others in the same round.

mod limits;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use annulus_object_store::v0_14::LocalFileSystem;
use futures_util::TryStreamExt;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::resource::{UsageWho, getrusage};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, local};

type Store = Arc<dyn ObjectStore>;
type AnyError = Box<dyn std::error::Error + Send + Sync>;

const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 1 << 30;
const READS: u64 = 20_000;
const TASKS: usize = 64;
/// The tasks that share the ranges on `LocalFileSystem`.
const SHARING_TASKS: usize = 128;
const OBJECTS: usize = 100_000;
const PUTS: usize = 5_000;
const CHANGES: usize = 5_000;

/// A load, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// `get_range` of 4 KiB, one at a time.
    GetRange,
    /// `get_range` of 4 KiB by 64 tasks.
    GetRangeTasks,
    /// `get_ranges` of 20,000 ranges of 4 to 64 KiB.
    GetRanges,
    /// A whole `get` of 1 GiB, as one `Bytes`.
    GetBytes,
    /// A whole `get` of 1 GiB, as a stream.
    GetStream,
    /// A listing of 100,000 objects.
    List,
    /// Puts of 4 KiB with fsync by 64 tasks.
    PutFsync,
    /// Puts of 4 KiB without fsync by 64 tasks.
    Put,
    /// Renames by one task.
    Rename,
    /// Copies over an object by 64 tasks.
    Copy,
    /// Multipart uploads of 4 KiB by 64 tasks.
    Upload,
}

/// The name of each load, and whether the page cache is empty.
const LOADS: [(&str, Load, bool); 14] = [
    ("get_range", Load::GetRange, false),
    ("get_range_tasks", Load::GetRangeTasks, false),
    ("get_ranges", Load::GetRanges, false),
    ("get_ranges_cold", Load::GetRanges, true),
    ("get_bytes", Load::GetBytes, false),
    ("get_stream", Load::GetStream, false),
    ("get_bytes_cold", Load::GetBytes, true),
    ("get_stream_cold", Load::GetStream, true),
    ("list", Load::List, false),
    ("put_fsync", Load::PutFsync, false),
    ("put", Load::Put, false),
    ("rename", Load::Rename, false),
    ("copy", Load::Copy, false),
    ("upload", Load::Upload, false),
];

/// A program that makes a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ours,
    Theirs,
    /// `LocalFileSystem`, whose ranges 128 tasks share.
    TheirsShared,
    Cat,
    /// A loop of `pread` into one buffer.
    Copy,
    /// Direct reads, or writes with fdatasync, of the same sizes by many threads.
    Drive,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Ours => "ours",
            By::Theirs => "`LocalFileSystem`",
            By::TheirsShared => "`LocalFileSystem`, 128 tasks",
            By::Cat => "`cat`",
            By::Copy => "`pread` into one buffer",
            By::Drive => "the drive",
        }
    }

    /// Returns the programs for a load.
    fn all(load: Load, is_cold: bool) -> Vec<By> {
        let mut all = vec![By::Ours, By::Theirs];
        match load {
            Load::GetRanges if is_cold => all.push(By::TheirsShared),
            Load::GetRanges => all.extend([By::TheirsShared, By::Copy]),
            Load::GetBytes | Load::GetStream => all.push(By::Cat),
            Load::PutFsync => all.push(By::Drive),
            _ => {}
        }
        if is_cold {
            all.push(By::Drive);
        }
        all
    }
}

/// The time and the CPU time of one run, seconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    time: f64,
    cpu: f64,
}

/// The CPU time of this process and the children that it has waited for.
fn cpu() -> Duration {
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    let whose = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN];
    let usages = whose.map(|who| getrusage(who).expect("the CPU time of this process"));
    let of = |usage: nix::sys::resource::Usage| of(usage.user_time()) + of(usage.system_time());
    usages.into_iter().map(of).sum()
}

fn object() -> Path {
    Path::from("large")
}

async fn reads(store: Store, seed: u64, reads: u64) -> Result<(), Error> {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..reads {
        let start = random.u64(0..FILE_BYTES / PAGE) * PAGE;
        let bytes = store.get_range(&object(), start..start + PAGE).await?;
        assert_eq!(bytes.len() as u64, PAGE);
    }
    Ok(())
}

fn ranges() -> Vec<Range<u64>> {
    let mut random = fastrand::Rng::with_seed(3);
    let range = |_| {
        let bytes = random.u64(1..=16) * PAGE;
        let start = random.u64(0..FILE_BYTES - bytes);
        start..start + bytes
    };
    (0..READS).map(range).collect()
}

async fn get_ranges(store: Store, ranges: Vec<Range<u64>>) -> Result<(), Error> {
    let got = store.get_ranges(&object(), &ranges).await?;
    let lengths = ranges.iter().map(|range| range.end - range.start);
    assert!(lengths.eq(got.iter().map(|bytes| bytes.len() as u64)));
    Ok(())
}

async fn all(tasks: Vec<tokio::task::JoinHandle<Result<(), Error>>>) -> Result<(), Error> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Makes changes by 64 tasks.
async fn by_tasks<F>(
    count: usize,
    change: impl Fn(usize) -> F + Send + Sync + 'static,
) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let shared = Arc::new((change, AtomicUsize::new(0)));
    let task = |_| {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let (change, next) = &*shared;
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    number if number < count => change(number).await?,
                    _ => return Ok(()),
                }
            }
        })
    };
    all((0..TASKS).map(task).collect()).await
}

/// Returns the path of an object in a new folder. Nothing removes it: ext4 does not use the inode of a removed file
/// soon, and a search for others would take most of the time of the next puts.
fn new_folder() -> impl Fn(usize) -> Path {
    let start = SystemTime::now().duration_since(UNIX_EPOCH);
    let start = start.unwrap_or_default().as_nanos();
    move |number| Path::from(format!("put/{start}/{number}"))
}

/// A load on a store.
async fn run(load: Load, by: By, store: Store, puts: usize) -> Result<(), Error> {
    match load {
        Load::GetRange => reads(store, 1, READS).await?,
        Load::GetRangeTasks => {
            let each = READS * 4 / TASKS as u64;
            let task = |task| tokio::spawn(reads(Arc::clone(&store), task, each));
            all((0..TASKS as u64).map(task).collect()).await?;
        }
        Load::GetRanges if by == By::TheirsShared => {
            let ranges = ranges();
            let shares = ranges.chunks(ranges.len().div_ceil(SHARING_TASKS));
            let task = |share: &[_]| tokio::spawn(get_ranges(Arc::clone(&store), share.to_vec()));
            all(shares.map(task).collect()).await?;
        }
        Load::GetRanges => get_ranges(store, ranges()).await?,
        Load::GetBytes => {
            let bytes = store.get(&object()).await?.bytes().await?;
            assert_eq!(bytes.len() as u64, FILE_BYTES);
        }
        Load::GetStream => {
            let mut chunks = store.get(&object()).await?.into_stream();
            let mut bytes = 0;
            while let Some(chunk) = chunks.try_next().await? {
                bytes += chunk.len() as u64;
            }
            assert_eq!(bytes, FILE_BYTES);
        }
        Load::List => {
            let prefix = Path::from("many");
            let objects = store
                .list(Some(&prefix))
                .try_fold(0, |sum, _| async move { Ok(sum + 1) });
            assert_eq!(objects.await?, OBJECTS);
        }
        _ => changes(load, store, puts).await?,
    }
    Ok(())
}

/// A load that changes objects.
async fn changes(load: Load, store: Store, puts: usize) -> Result<(), Error> {
    let at = new_folder();
    match load {
        Load::PutFsync | Load::Put => {
            let put = move |number| {
                let (store, at) = (Arc::clone(&store), at(number));
                async move { store.put(&at, vec![7; 4096].into()).await.map(drop) }
            };
            by_tasks(puts, put).await?;
        }
        Load::Rename => {
            store.put(&at(0), "contents".into()).await?;
            for number in 0..CHANGES {
                store.rename(&at(number), &at(number + 1)).await?;
            }
        }
        Load::Copy => {
            store.put(&at(0), "contents".into()).await?;
            let copy = move |number| {
                let (store, from, to) = (Arc::clone(&store), at(0), at(1 + number % TASKS));
                async move { store.copy(&from, &to).await }
            };
            by_tasks(CHANGES, copy).await?;
        }
        _ => {
            let upload = move |number| {
                let (store, at) = (Arc::clone(&store), at(number));
                async move {
                    let mut upload = store.put_multipart(&at).await?;
                    upload.put_part(vec![7; 4096].into()).await?;
                    upload.complete().await.map(drop)
                }
            };
            by_tasks(CHANGES, upload).await?;
        }
    }
    Ok(())
}

fn prepare(folder: &FilePath) -> io::Result<()> {
    let large = folder.join("large");
    if std::fs::metadata(&large).map_or(0, |file| file.len()) != FILE_BYTES {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&large)?);
        for number in 0..FILE_BYTES / 8 {
            file.write_all(&number.to_le_bytes())?;
        }
        file.flush()?;
        file.get_ref().sync_all()?;
    }
    let many = folder.join("many");
    if !many.join((OBJECTS - 1).to_string()).exists() {
        std::fs::create_dir_all(&many)?;
        for number in 0..OBJECTS {
            File::create(many.join(number.to_string()))?;
        }
    }
    Ok(())
}

/// Returns the first quartile, the median and the third quartile.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

struct Bench {
    folder: PathBuf,
    runtime: tokio::runtime::Runtime,
    engine: annulus::Engine,
    pairs: usize,
}

impl Bench {
    fn store(&self, by: By, fsync: bool) -> Result<Store, Error> {
        Ok(match by {
            By::Ours => {
                let store = LocalFileSystem::new_with_prefix(&self.folder)?.with_fsync(fsync);
                Arc::new(store.with_engine(self.engine.clone()))
            }
            _ => {
                let store = local::LocalFileSystem::new_with_prefix(&self.folder)?;
                Arc::new(store.with_fsync(fsync))
            }
        })
    }

    /// Makes one run.
    fn measure(
        &self,
        (load, is_cold): (Load, bool),
        by: By,
        store: &Store,
        puts: usize,
    ) -> Result<Cost, AnyError> {
        let large = self.folder.join("large");
        if is_cold {
            let dropped = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            posix_fadvise(&File::open(&large)?, 0, 0, dropped)?;
        }
        let files = match (by, load) {
            (By::Drive, Load::PutFsync) => limits::files(&self.folder, TASKS)?,
            _ => Vec::new(),
        };
        let (cpu_before, start) = (cpu(), Instant::now());
        match (by, load) {
            (By::Cat, _) => limits::cat(&large)?,
            (By::Copy, _) => limits::copy(&large, ranges())?,
            (By::Drive, Load::PutFsync) => limits::write(files, puts)?,
            (By::Drive, Load::GetRanges) => limits::read(&large, ranges())?,
            (By::Drive, _) => limits::read(&large, Some(0..FILE_BYTES))?,
            _ => {
                let run = run(load, by, Arc::clone(store), puts);
                self.runtime.block_on(async { tokio::spawn(run).await? })?;
            }
        }
        Ok(Cost {
            time: start.elapsed().as_secs_f64(),
            cpu: (cpu() - cpu_before).as_secs_f64(),
        })
    }

    fn compare(&self, name: &str, load: Load, is_cold: bool, puts: usize) -> Result<(), AnyError> {
        let all = By::all(load, is_cold);
        let stores = all.iter().map(|by| self.store(*by, load == Load::PutFsync));
        let stores: Vec<Store> = stores.collect::<Result<_, _>>()?;
        let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); all.len()];
        // The first round fills the caches.
        for round in 0..=self.pairs {
            // Each is the first of some rounds.
            for turn in 0..all.len() {
                let at = (turn + round) % all.len();
                let cost = self.measure((load, is_cold), all[at], &stores[at], puts)?;
                costs[at].push(cost);
            }
        }
        let of = |at: usize, value: &dyn Fn(Cost, Cost) -> f64| {
            let rounds = costs[0].iter().zip(&costs[at]).skip(1);
            quartiles(rounds.map(|(ours, its)| value(*ours, *its)).collect())
        };
        let cell =
            |[first, median, third]: [f64; 3]| format!("{median:.3} ({first:.3}–{third:.3})");
        for (at, by) in all.iter().enumerate() {
            println!(
                "| {name} | {} | {} | {} | {} | {} |",
                by.name(),
                cell(of(at, &|_, its| its.time)),
                cell(of(at, &|_, its| its.cpu)),
                cell(of(at, &|ours, its| ours.time / its.time)),
                cell(of(at, &|ours, its| ours.cpu / its.cpu)),
            );
        }
        Ok(())
    }
}

fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: object_store_bench FOLDER [PAIRS] [LOAD...]")?;
    let pairs = arguments.next().map_or(Ok(9), |pairs| pairs.parse())?;
    let wanted: Vec<String> = arguments.collect();
    let bench = Bench {
        folder: folder.into(),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?,
        engine: annulus::Engine::new()?,
        pairs,
    };
    prepare(&bench.folder)?;
    println!(
        "{}; {pairs} rounds; medians (quartiles)\n",
        bench.engine.backend()
    );
    println!("| load | by | time, s | CPU time, s | our time / its | our CPU time / its |");
    println!("|---|---|--:|--:|--:|--:|");
    for (name, load, is_cold) in LOADS {
        let names = |wanted: &&String| wanted.split('=').next() == Some(name);
        let wish = wanted.iter().find(names);
        if !wanted.is_empty() && wish.is_none() {
            continue;
        }
        let count = wish.and_then(|wish| wish.split_once('='));
        let puts = count.map_or(Ok(PUTS), |(_, count)| count.parse())?;
        bench.compare(name, load, is_cold, puts)?;
    }
    Ok(())
}
