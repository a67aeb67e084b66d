//! RocksDB, the reference: `batched_multi_get_cf` with `pread` or with io_uring.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rocksdb::{
    BlockBasedOptions, DB, DBCompressionType, Options, ReadOptions, WaitForCompactOptions,
    WriteBatch, WriteOptions,
};

use crate::Error;
use crate::load::{self, Key, Load, TASKS};

const COLUMN_FAMILY: &str = "default";
/// Writes of a batch of the fill.
const WRITES: usize = 1000;

/// The result of `RocksDbIOUringEnable`, for files that are opened later.
static URING: AtomicBool = AtomicBool::new(false);

/// Returns whether RocksDB may use io_uring. RocksDB calls it for each file that it opens: the linker replaces calls of
/// `RocksDbIOUringEnable` with calls of this function (`build.rs`).
#[unsafe(no_mangle)] // No other crate defines this symbol.
extern "C" fn __wrap_RocksDbIOUringEnable() -> bool {
    URING.load(Ordering::Relaxed)
}

/// An open database, and the options of its reads.
pub(crate) struct Database {
    db: DB,
    uring: bool,
}

fn options() -> Options {
    let mut table = BlockBasedOptions::default();
    table.disable_cache();
    // SlateDB's default.
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options
}

/// Fills a new database, waits for its compactions, and returns its shape.
pub(crate) fn fill(folder: &Path, keys: u64) -> Result<String, Error> {
    let mut options = options();
    options.create_if_missing(true);
    options.set_max_background_jobs(2);
    let db = DB::open(&options, folder)?;
    let mut unlogged = WriteOptions::default();
    unlogged.disable_wal(true);
    let mut numbers = load::random_keys(keys).peekable();
    while numbers.peek().is_some() {
        let mut batch = WriteBatch::default();
        for number in numbers.by_ref().take(WRITES) {
            batch.put(load::key(number), load::value(number));
        }
        db.write_opt(batch, &unlogged)?;
    }
    db.flush()?;
    db.wait_for_compact(&WaitForCompactOptions::default())?;
    let files = db.live_files()?;
    let deepest = files.iter().map(|file| file.level).max().unwrap_or(0);
    Ok(format!("{} tables in levels 0 to {deepest}", files.len()))
}

/// Opens the database for reads.
pub(crate) fn open(folder: &Path, uring: bool) -> Result<Database, Error> {
    URING.store(uring, Ordering::Relaxed);
    let db = DB::open_cf_for_read_only(&options(), folder, [COLUMN_FAMILY], false)?;
    Ok(Database { db, uring })
}

/// Runs the tasks, each on a thread, and returns the number of keys that they found.
pub(crate) fn run(database: &Database, load: Load) -> Result<u64, Error> {
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| scope.spawn(move || run_task(database, load, task)))
            .collect();
        let mut found = 0;
        for task in tasks {
            found += task
                .join()
                .map_err(|_| "a thread of RocksDB's load panicked")??;
        }
        Ok(found)
    })
}

fn run_task(database: &Database, load: Load, task: u64) -> Result<u64, Error> {
    let family = database
        .db
        .cf_handle(COLUMN_FAMILY)
        .ok_or("RocksDB has no default column family")?;
    let mut options = ReadOptions::default();
    options.set_async_io(database.uring);
    let mut found = 0;
    for batch in load.batches_of(task) {
        let keys: Vec<Key> = batch.iter().map(|&number| load::key(number)).collect();
        let values = database
            .db
            .batched_multi_get_cf_opt(family, &keys, false, &options);
        for (number, value) in batch.iter().zip(values) {
            found += load::check(*number, value?.as_deref())?;
        }
    }
    Ok(found)
}
