//! SlateDB on one of two stores.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use object_store::ObjectStore;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, FlushOptions, FlushType, Settings,
};
use slatedb::db_cache::SplitCache;
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::{Db, WriteBatch};

use crate::Error;
use crate::load::{self, Load, TASKS};

const NAME: &str = "db";
/// Writes of a batch of the fill.
const WRITES: usize = 1000;
/// The time without a change of the tables after which the compactions are done.
const SETTLED: Duration = Duration::from_secs(20);
const METADATA_BYTES: u64 = 1 << 30;
/// Gets of one task after which the indexes of all tables are in memory.
const FIRST_GETS: u64 = 1000;

fn settings() -> Settings {
    Settings {
        wal_enabled: false,
        compactor_options: None,
        garbage_collector_options: None,
        ..Settings::default()
    }
}

/// Fills a new database, waits for its compactions, and returns its shape.
pub(crate) async fn fill(folder: &Path, keys: u64) -> Result<String, Error> {
    let store = object_store::local::LocalFileSystem::new_with_prefix(folder)?;
    // Polls often, as the fill waits for compactions.
    let poll = Duration::from_millis(200);
    let worker = CompactionWorkerOptions {
        compactions_poll_interval: poll,
        ..Default::default()
    };
    let compactor = CompactorOptions {
        poll_interval: poll,
        commit_compacted_interval: poll,
        worker: Some(worker),
        ..Default::default()
    };
    let settings = Settings {
        compactor_options: Some(compactor),
        manifest_poll_interval: poll,
        ..settings()
    };
    let db = Db::builder(NAME, Arc::new(store))
        .with_settings(settings)
        .build()
        .await?;
    let mut numbers = load::random_keys(keys).peekable();
    while numbers.peek().is_some() {
        let mut batch = WriteBatch::new();
        for number in numbers.by_ref().take(WRITES) {
            batch.put(load::key(number), load::value(number));
        }
        db.write(batch).await?;
    }
    db.flush_with_options(FlushOptions {
        flush_type: FlushType::MemTable,
    })
    .await?;
    let (mut shape, mut since) = ((0, Vec::new()), Instant::now());
    while since.elapsed() < SETTLED {
        tokio::time::sleep(poll).await;
        let manifest = db.manifest();
        let runs: Vec<u32> = manifest.compacted().iter().map(|run| run.id).collect();
        let now = (manifest.l0().len(), runs);
        if now != shape {
            (shape, since) = (now, Instant::now());
        }
    }
    db.close().await?;
    Ok(format!(
        "{} tables in level 0, {} sorted runs",
        shape.0,
        shape.1.len()
    ))
}

/// Opens the database on `LocalFileSystem` or on our store, without background work and without a cache of data.
pub(crate) async fn open(
    folder: &Path,
    keys: u64,
    annulus: bool,
    metadata: bool,
) -> Result<Db, Error> {
    let store: Arc<dyn ObjectStore> = match annulus {
        true => Arc::new(annulus_object_store::v0_14::LocalFileSystem::new_with_prefix(folder)?),
        false => Arc::new(object_store::local::LocalFileSystem::new_with_prefix(
            folder,
        )?),
    };
    let builder = Db::builder(NAME, store).with_settings(settings());
    let options = MokaCacheOptions {
        max_capacity: METADATA_BYTES,
        ..Default::default()
    };
    let builder = match metadata {
        true => {
            let cache = SplitCache::new()
                .with_meta_cache(Some(Arc::new(MokaCache::new_with_opts(options))));
            builder.with_db_cache(Arc::new(cache.build()), 0)
        }
        false => builder.with_db_cache_disabled(),
    };
    let db = builder.build().await?;
    // One get at a time reads the indexes. Many tasks that miss the same index would each read it.
    let mut random = fastrand::Rng::with_seed(0);
    for _ in 0..FIRST_GETS {
        db.get(load::key(random.u64(0..keys))).await?;
    }
    Ok(db)
}

/// Runs the tasks, and returns the number of keys that they found.
pub(crate) async fn run(db: &Db, load: Load) -> Result<u64, Error> {
    let task = |task| {
        let db = db.clone();
        tokio::spawn(async move {
            let mut found = 0;
            for batch in load.batches_of(task) {
                let gets = batch.iter().map(|&number| db.get(load::key(number)));
                for (number, value) in batch.iter().zip(try_join_all(gets).await?) {
                    found += load::check(*number, value.as_deref())?;
                }
            }
            Ok::<_, Error>(found)
        })
    };
    let mut found = 0;
    for task in (0..TASKS).map(task).collect::<Vec<_>>() {
        found += task.await??;
    }
    Ok(found)
}
