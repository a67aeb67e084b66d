//! Compares the store with `LocalFileSystem` of the same version (0.14), on Tokio with two workers.
//!
//! ```text
//! cargo run --release -p annulus-object-store --example object_store_bench -- FOLDER [PAIRS] [LOAD...]
//! ```
//!
//! Each load runs `PAIRS` times (default 9) on each store, alternately. The table has medians of time and CPU time, and
//! the medians and quartiles of the ratios within a pair.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use annulus_object_store::v0_14::LocalFileSystem;
use futures_util::{StreamExt, TryStreamExt};
use nix::sys::resource::{UsageWho, getrusage};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, local};

type Store = Arc<dyn ObjectStore>;

const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 1 << 30;
const READS: u64 = 20_000;
const TASKS: u64 = 64;
const OBJECTS: usize = 100_000;
const PUTS: usize = 5_000;

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
}

const LOADS: [(&str, Load); 7] = [
    ("get_range", Load::GetRange),
    ("get_range_tasks", Load::GetRangeTasks),
    ("get_ranges", Load::GetRanges),
    ("get_bytes", Load::GetBytes),
    ("get_stream", Load::GetStream),
    ("list", Load::List),
    ("put_fsync", Load::PutFsync),
];

/// The time and the CPU time of one run, seconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    time: f64,
    cpu: f64,
}

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the CPU time of this process");
    let of = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    of(usage.user_time()) + of(usage.system_time())
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

async fn run(load: Load, store: Store, round: usize) -> Result<(), Error> {
    match load {
        Load::GetRange => reads(store, 1, READS).await?,
        Load::GetRangeTasks => {
            let task = |task| tokio::spawn(reads(Arc::clone(&store), task, READS * 4 / TASKS));
            for task in (0..TASKS).map(task).collect::<Vec<_>>() {
                task.await??;
            }
        }
        Load::GetRanges => {
            let ranges = ranges();
            let got = store.get_ranges(&object(), &ranges).await?;
            let lengths = ranges.iter().map(|range| range.end - range.start);
            assert!(lengths.eq(got.iter().map(|bytes| bytes.len() as u64)));
        }
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
        Load::PutFsync => {
            let puts = futures_util::stream::iter(0..PUTS).map(|number| {
                let store = Arc::clone(&store);
                let location = Path::from(format!("put/{round}/{number}"));
                let put = async move { store.put(&location, vec![7; 4096].into()).await };
                async move { tokio::spawn(put).await? }
            });
            let puts = puts.buffer_unordered(usize::try_from(TASKS).unwrap_or(1));
            puts.try_for_each(|_| async { Ok(()) }).await?;
        }
    }
    Ok(())
}

fn prepare(folder: &FilePath) -> std::io::Result<()> {
    let large = folder.join("large");
    if std::fs::metadata(&large).map_or(0, |file| file.len()) != FILE_BYTES {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&large)?);
        for number in 0..FILE_BYTES / 8 {
            file.write_all(&number.to_le_bytes())?;
        }
        file.flush()?;
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

fn measure(
    load: Load,
    store: &Store,
    round: usize,
    runtime: &tokio::runtime::Runtime,
) -> Result<Cost, Error> {
    let (cpu_before, start) = (cpu(), Instant::now());
    runtime.block_on(async { tokio::spawn(run(load, Arc::clone(store), round)).await? })?;
    Ok(Cost {
        time: start.elapsed().as_secs_f64(),
        cpu: (cpu() - cpu_before).as_secs_f64(),
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: object_store_bench FOLDER [PAIRS] [LOAD...]")?;
    let folder = FilePath::new(&folder);
    let pairs: usize = arguments.next().map_or(Ok(9), |pairs| pairs.parse())?;
    let wanted: Vec<String> = arguments.collect();
    prepare(folder)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let engine = annulus::Engine::new()?;
    println!("{}; {pairs} pairs", engine.backend());
    println!(
        "| load | ours, s | `LocalFileSystem`, s | time | quartiles | ours, CPU s | `LocalFileSystem`, CPU s | CPU time | quartiles |"
    );
    println!("|---|--:|--:|--:|---|--:|--:|--:|---|");
    for (name, load) in LOADS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let fsync = load == Load::PutFsync;
        let ours: Store = Arc::new(
            LocalFileSystem::new_with_prefix(folder)?
                .with_fsync(fsync)
                .with_engine(engine.clone()),
        );
        let theirs: Store =
            Arc::new(local::LocalFileSystem::new_with_prefix(folder)?.with_fsync(fsync));
        let mut costs = Vec::new();
        // The first pair fills the caches.
        for pair in 0..=pairs {
            let of = |store, round| measure(load, store, round, &runtime);
            // Each store is the first of every other pair.
            let cost = match pair % 2 {
                0 => {
                    let one = of(&ours, 2 * pair)?;
                    (one, of(&theirs, 2 * pair + 1)?)
                }
                _ => {
                    let one = of(&theirs, 2 * pair)?;
                    (of(&ours, 2 * pair + 1)?, one)
                }
            };
            costs.push(cost);
            if fsync {
                std::fs::remove_dir_all(folder.join("put"))?;
            }
        }
        let costs = &costs[1..];
        let of = |value: fn(&(Cost, Cost)) -> f64| quartiles(costs.iter().map(value).collect());
        let (ours, theirs) = (of(|pair| pair.0.time), of(|pair| pair.1.time));
        let (our_cpu, their_cpu) = (of(|pair| pair.0.cpu), of(|pair| pair.1.cpu));
        let time = of(|pair| pair.0.time / pair.1.time);
        let cpu = of(|pair| pair.0.cpu / pair.1.cpu);
        println!(
            "| {name} | {:.4} | {:.4} | {:.3} | {:.3}–{:.3} | {:.4} | {:.4} | {:.3} | {:.3}–{:.3} |",
            ours[1],
            theirs[1],
            time[1],
            time[0],
            time[2],
            our_cpu[1],
            their_cpu[1],
            cpu[1],
            cpu[0],
            cpu[2],
        );
    }
    Ok(())
}
