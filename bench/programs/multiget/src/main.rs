//! Batches of gets in SlateDB, on `LocalFileSystem` of object_store and on ours, beside RocksDB's MultiGet.
//!
//! The load is `fillrandom`, then batches of 256 keys by 32 tasks, as in RocksDB's `multireadrandom`. Keys have 16
//! bytes and values 128. The databases do not cache blocks of data, and compress nothing. Each round runs every variant
//! once. Each value is compared with the one that was written, and all variants must find the same keys.

// With RocksDB, a function that it calls needs the attribute `no_mangle`.
#![cfg_attr(not(feature = "rocksdb"), forbid(unsafe_code))]

mod load;
#[cfg(feature = "rocksdb")]
mod rocks;
mod slate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use annulus_measure::{Cache, Drive, Options, Report, Stopwatch, order};
use clap::{Parser, ValueEnum};

use load::Load;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The bytes of a direct read: a block of 4 KiB that is not aligned lies on two pages.
const DRIVE_BLOCK_BYTES: u64 = 8192;
const DRIVE: &str = "drive alone";

/// A database on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// SlateDB on `object_store::local::LocalFileSystem`.
    SlatedbLocal,
    /// SlateDB on `annulus_object_store::v0_14::LocalFileSystem`.
    SlatedbAnnulus,
    /// RocksDB with `pread`.
    Rocksdb,
    /// RocksDB with io_uring.
    RocksdbUring,
}

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::SlatedbLocal => "SlateDB, LocalFileSystem",
            Engine::SlatedbAnnulus => "SlateDB, annulus",
            Engine::Rocksdb => "RocksDB, pread",
            Engine::RocksdbUring => "RocksDB, io_uring",
        }
    }

    fn is_available(self) -> bool {
        cfg!(feature = "rocksdb") || matches!(self, Engine::SlatedbLocal | Engine::SlatedbAnnulus)
    }
}

/// Batches of gets in SlateDB on two object stores, beside RocksDB's MultiGet
#[derive(Debug, Parser)]
#[command(name = "annulus-multiget", version)]
struct Args {
    /// The folder of the databases; they are filled once and stay
    #[arg(long, default_value = "multiget-data")]
    dir: PathBuf,
    /// Random keys that the fill writes; it writes some twice, so about 63 % of them exist
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Batches of each of the 32 tasks in a run
    #[arg(long, default_value_t = 8)]
    batches: u64,
    /// The databases to run; all that this build has by default
    #[arg(long, value_delimiter = ',')]
    engines: Vec<Engine>,
    /// The states of the page cache
    #[arg(long, value_delimiter = ',', default_value = "cached,cold")]
    cache: Vec<Cache>,
    /// The distances between the keys of a batch; 0 for random keys
    #[arg(long, value_delimiter = ',', default_value = "0,1000")]
    stride: Vec<u64>,
    /// SlateDB keeps no indexes and filters in memory either, and reads them for each get
    #[arg(long)]
    no_metadata_cache: bool,
    /// A quick check: 300,000 keys in another folder, one batch per task, at most three rounds
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    common: Options,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut args = Args::parse();
    if args.short {
        (args.keys, args.batches) = (300_000, 1);
        args.common.repeat = args.common.repeat.min(3);
        args.dir = args.dir.join("short");
    }
    annulus_measure::exit_code("annulus-multiget", run(&args).await)
}

async fn run(args: &Args) -> Result<(), Error> {
    let engines = match args.engines.as_slice() {
        [] => Engine::value_variants().to_vec(),
        engines => engines.to_vec(),
    };
    let (engines, missing): (Vec<Engine>, Vec<Engine>) = engines
        .into_iter()
        .partition(|engine| engine.is_available());
    if let Some(engine) = missing.first() {
        let says = format!(
            "{} is not in this build; build with `--features rocksdb`",
            engine.name()
        );
        if engines.is_empty() {
            return Err(says.into());
        }
        eprintln!("annulus-multiget: {says}");
    }
    fill(&args.dir, args.keys, &engines).await?;
    let mut report = Report::default();
    let mut loads = Vec::new();
    for &cache in &args.cache {
        for &stride in &args.stride {
            let name = format!("{cache}, stride {stride}");
            eprintln!(
                "{name}: {} rounds of {} variants",
                args.common.repeat,
                engines.len()
            );
            measure(args, &engines, cache, stride, &name, &mut report).await?;
            loads.push(name);
        }
    }
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    let names = [names.as_slice(), &[DRIVE]].concat();
    println!(
        "{} rounds, 32 tasks, batches of 256 keys, {} random keys; ratios to `{}`\n\n{}",
        args.common.repeat,
        args.keys,
        Engine::SlatedbLocal.name(),
        report.table(&loads, &names, Engine::SlatedbLocal.name(), DRIVE)
    );
    println!(
        "An operation is a get. `{DRIVE}` reads as many bytes as `{}` did, in random direct reads of \
         {DRIVE_BLOCK_BYTES} bytes, 256 at a time.",
        names[0]
    );
    Ok(report.write_json(args.common.json.as_deref())?)
}

fn folder(dir: &Path, engine: Engine) -> PathBuf {
    dir.join(match engine {
        Engine::SlatedbLocal | Engine::SlatedbAnnulus => "slatedb",
        Engine::Rocksdb | Engine::RocksdbUring => "rocksdb",
    })
}

/// Fills the databases that have not been filled with as many keys.
async fn fill(dir: &Path, keys: u64, engines: &[Engine]) -> Result<(), Error> {
    for &engine in engines {
        let folder = folder(dir, engine);
        let mark = folder.join("filled");
        match std::fs::read_to_string(&mark) {
            Ok(filled) if filled == keys.to_string() => continue,
            Ok(filled) => {
                let folder = folder.display();
                let says = format!(
                    "{folder} was filled with {filled} keys; remove it, or give --keys {filled}"
                );
                return Err(says.into());
            }
            Err(_) => {}
        }
        if folder.exists() {
            let says = format!("{} was not filled completely; remove it", folder.display());
            return Err(says.into());
        }
        std::fs::create_dir_all(&folder)?;
        eprintln!("filling {} with {keys} random keys", folder.display());
        let shape = match engine {
            Engine::SlatedbLocal | Engine::SlatedbAnnulus => slate::fill(&folder, keys).await?,
            #[cfg(feature = "rocksdb")]
            Engine::Rocksdb | Engine::RocksdbUring => {
                tokio::task::block_in_place(|| rocks::fill(&folder, keys))?
            }
            #[cfg(not(feature = "rocksdb"))]
            Engine::Rocksdb | Engine::RocksdbUring => continue,
        };
        eprintln!("filled: {shape}");
        std::fs::write(mark, keys.to_string())?;
    }
    Ok(())
}

/// Runs the rounds of one load.
async fn measure(
    args: &Args,
    engines: &[Engine],
    cache: Cache,
    stride: u64,
    name: &str,
    report: &mut Report,
) -> Result<(), Error> {
    let drive = match cache {
        Cache::Cached => None,
        Cache::Cold => Some(Drive::new(&folder(&args.dir, engines[0]))?),
    };
    for round in 0..=args.common.repeat {
        // Each round reads other keys, the same for all variants.
        let load = Load {
            keys: args.keys,
            batches: args.batches,
            stride,
            seed: u64::try_from(round)? + 1,
        };
        let (mut found, mut cold_bytes) = (None, 0);
        for place in order(engines.len(), round) {
            let engine = engines[place];
            let folder = folder(&args.dir, engine);
            let (cost, hits) = match engine {
                Engine::SlatedbLocal | Engine::SlatedbAnnulus => {
                    let annulus = engine == Engine::SlatedbAnnulus;
                    let db =
                        slate::open(&folder, args.keys, annulus, !args.no_metadata_cache).await?;
                    slate::run(&db, load.warm_up()).await?;
                    cache.prepare(&folder)?;
                    let stopwatch = Stopwatch::start()?;
                    let hits = slate::run(&db, load).await?;
                    let cost = stopwatch.stop()?;
                    db.close().await?;
                    (cost, hits)
                }
                #[cfg(feature = "rocksdb")]
                Engine::Rocksdb | Engine::RocksdbUring => tokio::task::block_in_place(|| {
                    let db = rocks::open(&folder, engine == Engine::RocksdbUring)?;
                    rocks::run(&db, load.warm_up())?;
                    cache.prepare(&folder)?;
                    let stopwatch = Stopwatch::start()?;
                    let hits = rocks::run(&db, load)?;
                    Ok::<_, Error>((stopwatch.stop()?, hits))
                })?,
                #[cfg(not(feature = "rocksdb"))]
                Engine::Rocksdb | Engine::RocksdbUring => continue,
            };
            let expected = *found.get_or_insert(hits);
            if expected != hits {
                let name = engine.name();
                let says = format!(
                    "{name} found {hits} of the keys in round {round}, another database {expected}"
                );
                return Err(says.into());
            }
            if cache == Cache::Cold && place == 0 {
                cold_bytes = cost.drive_bytes;
            }
            report.add(name, round, engine.name(), load.gets(), cost);
        }
        if let Some(drive) = drive.as_ref().filter(|_| round > 0) {
            let reads = (cold_bytes / DRIVE_BLOCK_BYTES).max(1);
            let cost = drive.read(reads, DRIVE_BLOCK_BYTES).await?;
            report.add(name, round, DRIVE, reads, cost);
        }
    }
    Ok(())
}
