//! Tests of the pool: through its public methods, with real files and with the simulated kernel.

mod ends;
mod memory;
mod model;
mod pages;
mod threads;

use std::path::PathBuf;

use annulus::Engine;
use annulus_pool::{PagePool, PoolFile};

const PAGE: usize = 4096;

/// Returns the bytes that `number` identifies.
fn contents(number: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect()
}

/// A file in a folder that exists as long.
struct OnDisk {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl OnDisk {
    fn new(bytes: usize) -> OnDisk {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("data");
        let bytes = contents(bytes as u64, bytes);
        std::fs::write(&path, &bytes).unwrap();
        OnDisk {
            _dir: dir,
            path,
            bytes,
        }
    }

    /// Returns the bytes of a page.
    fn page(&self, number: u64) -> &[u8] {
        let from = number as usize * PAGE;
        &self.bytes[from..self.bytes.len().min(from + PAGE)]
    }
}

/// Returns a pool with this many frames.
fn pool(engine: &Engine, frames: usize) -> PagePool {
    let pool = PagePool::builder(engine)
        .memory(frames * (PAGE + 96))
        .build()
        .unwrap();
    assert_eq!(pool.stats().frames, frames);
    pool
}

/// Opens a file in a pool with this many frames, on a new engine.
async fn opened(on_disk: &OnDisk, frames: usize) -> (PagePool, PoolFile) {
    let pool = pool(&Engine::new().unwrap(), frames);
    let file = pool.open(&on_disk.path).await.unwrap();
    (pool, file)
}
