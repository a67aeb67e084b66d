//! Tokio runtimes that the program did not prepare: each thread gets a ring with its first operation, and every case in
//! which that is not possible works by other means.

use std::fs;
use std::path::PathBuf;

use annulus::buf::AlignedBuf;
use annulus::{Backend, Engine, File, OpenOptions};
use tempfile::TempDir;

use crate::tokio_runtimes::{several, single};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 64;

struct Fixture {
    engine: Engine,
    path: PathBuf,
    _dir: TempDir,
}

impl Fixture {
    /// Creates a file of numbered blocks. `None` without io_uring.
    fn new() -> Option<Fixture> {
        let engine = match Engine::builder().backend(Backend::Uring).build() {
            Ok(engine) => engine,
            Err(error) => {
                annulus_testing::skip::skip(error);
                return None;
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let contents: Vec<u8> =
            Vec::from_iter((0..BLOCKS).map(|n| [n as u8; BLOCK_BYTES])).concat();
        fs::write(&path, contents).unwrap();
        Some(Fixture {
            engine,
            path,
            _dir: dir,
        })
    }

    /// Opens the file for direct I/O if its file system supports that.
    async fn open(&self) -> File {
        let mut options = OpenOptions::new();
        match self
            .engine
            .open_with(options.read(true).direct(true), &self.path)
            .await
        {
            Ok(file) => file,
            Err(_) => {
                let file = self.engine.open(&self.path).await.unwrap();
                file.set_cached_reads(annulus::fs::CachedReads::Never);
                file
            }
        }
    }

    /// Checks that no operation went to the engine's driver.
    fn assert_own_rings(&self) {
        assert!(self.engine.thread_ring_refusal().is_none());
        let metrics = self.engine.metrics();
        assert!(metrics.submitted > 0, "{metrics:?}");
        assert_eq!(metrics.wakeups, 0, "{metrics:?}");
    }

    /// Checks that operations went to the engine's driver, and returns the reason.
    fn driver_reason(&self) -> String {
        assert!(self.engine.metrics().wakeups > 0);
        let reason = self.engine.thread_ring_refusal().unwrap().to_string();
        assert!(
            self.engine.backend().to_string().contains(&reason),
            "{}",
            self.engine.backend()
        );
        reason
    }
}

async fn read_block(file: &File, n: u64) {
    let buf = AlignedBuf::with_len(BLOCK_BYTES, BLOCK_BYTES);
    let (count, buf) = file.read_at(buf, n * BLOCK_BYTES as u64).await.unwrap();
    assert!(
        count == BLOCK_BYTES && buf.iter().all(|&byte| u64::from(byte) == n),
        "block {n}"
    );
}

async fn read_in_tasks(file: &File) {
    let tasks: Vec<_> = (0..BLOCKS)
        .map(|n| {
            let file = file.clone();
            tokio::spawn(async move {
                for k in 0..10 {
                    read_block(&file, (n + k) % BLOCKS).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_attribute_of_tokio_needs_nothing_else() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let file = fixture.open().await;
    read_in_tasks(&file).await;
    fixture.assert_own_rings();
}

#[test]
fn threads_of_spawn_blocking_read_whatever_they_block_on() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for runtime in [several(1), single()] {
        let file = runtime.block_on(fixture.open());
        let (one, two) = (file.clone(), file);
        let blocking = runtime.spawn_blocking(move || pollster::block_on(read_block(&one, 1)));
        // This thread does not run the runtime while it waits.
        while !blocking.is_finished() {
            std::thread::yield_now();
        }
        runtime.block_on(blocking).unwrap();
        let blocking = runtime.spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(read_block(&two, 2));
        });
        runtime.block_on(blocking).unwrap();
    }
}

#[test]
fn several_runtimes_share_an_engine() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let runtimes = [several(2), single(), several(1), single()];
    for runtime in &runtimes {
        runtime.block_on(async { read_in_tasks(&fixture.open().await).await });
    }
    // In another order, with the first one gone.
    let [first, rest @ ..] = runtimes;
    drop(first);
    for runtime in rest.iter().rev() {
        runtime.block_on(async { read_in_tasks(&fixture.open().await).await });
    }
    fixture.assert_own_rings();
}

#[test]
fn a_thread_that_only_entered_a_runtime_uses_the_driver() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let runtime = single();
    let _inside = runtime.enter();
    pollster::block_on(async { read_block(&fixture.open().await, 5).await });
    assert!(fixture.engine.metrics().wakeups > 0);
}

#[test]
fn a_program_can_keep_the_drivers() {
    if Fixture::new().is_none() {
        return;
    }
    let builder = Engine::builder().backend(Backend::Uring);
    let engine = builder.thread_rings(false).build().unwrap();
    several(2).block_on(engine.nop()).unwrap();
    assert!(engine.metrics().wakeups > 0);
    assert!(engine.thread_ring_refusal().is_none());
}

#[test]
fn a_runtime_whose_only_worker_is_blocked_gets_its_completions_and_later_the_driver() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let runtime = several(1);
    let file = runtime.block_on(fixture.open());
    let engine = fixture.engine.clone();
    let task = runtime.spawn(async move {
        // The thread that should run the reactor waits for each of these reads. Some complete as they are submitted.
        for n in (0..BLOCKS).cycle() {
            pollster::block_on(read_block(&file, n));
            if engine.thread_ring_refusal().is_some() {
                break;
            }
        }
    });
    runtime.block_on(task).unwrap();
    let reason = fixture.driver_reason();
    assert!(reason.contains("blocked"), "{reason}");
    // Runtimes that are not blocked keep their rings.
    let Some(other) = Fixture::new() else { return };
    several(1).block_on(async { read_in_tasks(&other.open().await).await });
    other.assert_own_rings();
}

#[test]
fn a_runtime_dropped_inside_another_loses_nothing() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let outer = several(2);
    outer.block_on(async {
        let file = fixture.open().await;
        let inner = several(1);
        let other = file.clone();
        let task = inner.spawn(async move { read_in_tasks(&other).await });
        read_block(&file, 1).await;
        task.await.unwrap();
        inner.shutdown_background();
        read_in_tasks(&file).await;
    });
}
