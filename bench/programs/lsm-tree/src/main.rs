//! Gets of 64 keys in 64 tables that are not in memory: lsm-tree as published, one after another and on threads, and
//! lsm-tree with a patch whose batch reads through Annulus.
//!
//! The trees have no cache of blocks. Each run removes the files from the page cache, and gets a random key of each
//! table. Each value is compared with the one that was written.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, RwLock};

use annulus::Engine;
use annulus::engine::CurrentThreadDriver;
use annulus::metrics::Metrics;
use annulus_measure::{Cost, Drive, Options, Report, Stopwatch, order, remove_from_cache};
use clap::Parser;
use lsm_tree::{AbstractTree, SeqNo};
use lsm_tree_patched::AbstractTree as _;

type Error = Box<dyn std::error::Error + Send + Sync>;

const TABLES: usize = 64;
const THREADS: usize = 8;
/// Reads per system call. More than the default, because it is known that more reads follow.
const SUBMIT_CHUNK: u32 = 8;
const VARIANTS: [&str; 4] = [
    "get, one after another",
    "get, 8 threads",
    "patched get, one after another",
    "patched multi_get",
];

const DRIVE: &str = "drive alone";

/// 64 cold gets in lsm-tree, as published and with a patch that reads through Annulus
#[derive(Debug, Parser)]
#[command(name = "annulus-lsm-tree", version)]
struct Args {
    /// The folder for the trees, on the drive to measure; they are removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Bytes of a value. Values of 128 bytes share a block of 4 KiB, larger ones have their own
    #[arg(long, value_delimiter = ',', default_value = "128,1048576")]
    value_bytes: Vec<usize>,
    /// A quick check: tables of 1 MiB instead of 4, at most two rounds
    #[arg(long)]
    short: bool,
    #[command(flatten)]
    common: Options,
}

/// A tree on disk. Table `i` has the keys from `i * keys_per_table` on.
struct Load {
    folder: PathBuf,
    value_bytes: usize,
    keys_per_table: u64,
}

impl Load {
    fn value(&self, key: u64) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        fastrand::Rng::with_seed(key).fill(&mut value);
        value
    }

    /// Writes the tables.
    fn fill(&self) -> Result<(), Error> {
        let tree = lsm_tree::Config::new(&self.folder, Default::default(), Default::default());
        let tree = tree.open()?;
        for table in 0..TABLES as u64 {
            for key in table * self.keys_per_table..(table + 1) * self.keys_per_table {
                tree.insert(key.to_be_bytes(), self.value(key), 0);
            }
            tree.flush_active_memtable(0)?;
        }
        match tree.table_count() {
            TABLES => Ok(()),
            count => Err(format!("the tree has {count} tables, not {TABLES}").into()),
        }
    }

    /// Returns a random key of each table, the same for all variants of a round.
    fn keys(&self, round: usize) -> Vec<[u8; 8]> {
        let mut random = fastrand::Rng::with_seed(round as u64);
        (0..TABLES as u64)
            .map(|table| table * self.keys_per_table + random.u64(0..self.keys_per_table))
            .map(u64::to_be_bytes)
            .collect()
    }

    /// Measures cold gets, and compares their values.
    fn measure<V: AsRef<[u8]>>(
        &self,
        keys: &[[u8; 8]],
        gets: impl FnOnce() -> Result<Vec<Option<V>>, Error>,
    ) -> Result<Cost, Error> {
        remove_from_cache(&self.folder)?;
        let stopwatch = Stopwatch::start()?;
        let values = gets()?;
        let cost = stopwatch.stop()?;
        let is_right = |(key, value): (&[u8; 8], &Option<V>)| {
            let written = self.value(u64::from_be_bytes(*key));
            value
                .as_ref()
                .is_some_and(|value| value.as_ref() == written)
        };
        if values.len() != keys.len() || !keys.iter().zip(&values).all(is_right) {
            return Err("a value is missing, or is not the one that was written".into());
        }
        if cost.drive_bytes < (TABLES * self.value_bytes) as u64 {
            let (folder, bytes) = (self.folder.display(), cost.drive_bytes);
            let says = format!(
                "{folder}: only {bytes} bytes were read from a drive; give a --dir that is on one"
            );
            return Err(says.into());
        }
        Ok(cost)
    }
}

macro_rules! open {
    ($version:ident, $folder:expr) => {{
        let cache = Arc::new($version::Cache::with_capacity_bytes(0));
        let config = $version::Config::new($folder, Default::default(), Default::default());
        match config.use_cache(cache).open()? {
            $version::AnyTree::Standard(tree) => tree,
            $version::AnyTree::Blob(_) => return Err("the tree keeps its values elsewhere".into()),
        }
    }};
}

/// The files of a load, opened by both versions.
struct Trees {
    published: lsm_tree::Tree,
    patched: lsm_tree_patched::Tree,
}

impl Trees {
    fn open(folder: &Path) -> Result<Trees, Error> {
        Ok(Trees {
            published: open!(lsm_tree, folder),
            patched: open!(lsm_tree_patched, folder),
        })
    }
}

/// Measures gets on threads, which start before the time is taken.
fn on_threads(tree: &lsm_tree::Tree, load: &Load, keys: &[[u8; 8]]) -> Result<Cost, Error> {
    let gate = &RwLock::new(());
    std::thread::scope(|scope| {
        let closed = gate.write();
        let mut threads = Vec::new();
        for keys in keys.chunks(TABLES / THREADS) {
            threads.push(scope.spawn(move || {
                drop(gate.read());
                let gets = keys.iter().map(|key| tree.get(key, SeqNo::MAX));
                gets.collect::<Result<Vec<_>, _>>()
            }));
        }
        load.measure(keys, || {
            drop(closed);
            let mut values = Vec::new();
            for thread in threads {
                values.extend(thread.join().map_err(|_| "a thread panicked")??);
            }
            Ok(values)
        })
    })
}

/// Runs a variant.
fn run(
    variant: usize,
    load: &Load,
    trees: &Trees,
    keys: &[[u8; 8]],
    engine: &Engine,
    driver: &CurrentThreadDriver,
) -> Result<Cost, Error> {
    let Trees { published, patched } = trees;
    match variant {
        0 => {
            let gets = keys.iter().map(|key| Ok(published.get(key, SeqNo::MAX)?));
            load.measure(keys, || gets.collect())
        }
        1 => on_threads(published, load, keys),
        2 => {
            let gets = keys.iter().map(|key| Ok(patched.get(key, SeqNo::MAX)?));
            load.measure(keys, || gets.collect())
        }
        _ => {
            // Data that arrives during an attempt without waiting is counted as `fast_path`.
            let reads = |metrics: Metrics| metrics.completed + metrics.fast_path;
            let before = reads(engine.metrics());
            let gets = patched.multi_get(engine, keys, SeqNo::MAX);
            let cost = load.measure(keys, || Ok(driver.block_on(gets)?))?;
            let reads = reads(engine.metrics()) - before;
            match reads >= TABLES as u64 {
                true => Ok(cost),
                false => Err(format!("only {reads} reads went through Annulus").into()),
            }
        }
    }
}

fn compare(args: &Args) -> Result<(), Error> {
    let engine = Engine::builder().submit_chunk(SUBMIT_CHUNK).build()?;
    let driver = engine.current_thread_driver()?;
    let dir = tempfile::tempdir_in(&args.dir)?;
    let (table_bytes, rounds) = match args.short {
        true => (1 << 20, args.common.repeat.min(2)),
        false => (4 << 20, args.common.repeat),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut report = Report::default();
    let mut names = Vec::new();
    for &value_bytes in &args.value_bytes {
        let name = format!("values of {value_bytes} bytes, cold");
        eprintln!("{name}: {rounds} rounds of {} variants", VARIANTS.len());
        let load = Load {
            folder: dir.path().join(value_bytes.to_string()),
            value_bytes,
            keys_per_table: (table_bytes / value_bytes.max(1)).max(1) as u64,
        };
        load.fill()?;
        let trees = Trees::open(&load.folder)?;
        let drive = Drive::new(&load.folder)?;
        let block_bytes = value_bytes.clamp(8192, 1 << 19) as u64;
        let reads = TABLES as u64 * (value_bytes as u64).div_ceil(block_bytes);
        for round in 0..=rounds {
            let keys = load.keys(round);
            for variant in order(VARIANTS.len(), round) {
                let cost = run(variant, &load, &trees, &keys, &engine, &driver)?;
                report.add(&name, round, VARIANTS[variant], TABLES as u64, cost);
            }
            let cost = runtime.block_on(drive.read(reads, block_bytes))?;
            report.add(&name, round, DRIVE, reads, cost);
        }
        names.push(name);
    }
    println!(
        "{rounds} rounds, {TABLES} keys in {TABLES} tables; ratios to `{}`. An operation is a get.\n\n{}",
        VARIANTS[0],
        report.table(
            &names,
            &[&VARIANTS[..], &[DRIVE]].concat(),
            VARIANTS[0],
            DRIVE
        )
    );
    Ok(report.write_json(args.common.json.as_deref())?)
}

fn main() -> ExitCode {
    annulus_measure::exit_code("annulus-lsm-tree", compare(&Args::parse()))
}
