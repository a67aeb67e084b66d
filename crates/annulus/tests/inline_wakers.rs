//! Wakers that start an operation when they are woken, as a cursor that was dropped does. They run where completions are
//! delivered, which may be inside the reactor or the scheduler of an executor.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, current, park_timeout};
use std::time::Duration;

use annulus::fs::CachedReads;
use annulus::{Backend, Engine, File, OpenOptions};
use annulus_testing::skip::skip;
use tokio::io::AsyncWriteExt;
use tokio::runtime::{Builder, Runtime};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 64;

struct Fixture {
    engine: Engine,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new(backend: Backend) -> Option<Fixture> {
        let engine = match Engine::builder().backend(backend).build() {
            Ok(engine) => engine,
            Err(error) => {
                skip(error);
                return None;
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let contents: Vec<u8> = (0..BLOCKS).flat_map(|n| [n as u8; BLOCK_BYTES]).collect();
        std::fs::write(folder.path().join("data"), contents).unwrap();
        Some(Fixture { engine, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Opens the file without reads from the page cache, so that each read is an operation.
    async fn open(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).cached_reads(CachedReads::Never);
        let opened = self.engine.open_with(&options, self.path("data")).await;
        opened.unwrap()
    }
}

type Read = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A chain of reads. Its waker polls it, so the completion of each read starts the next.
struct Chain {
    read: Mutex<Option<Read>>,
    /// Set when the chain is woken while it is being polled.
    again: AtomicBool,
    ended: Arc<Ended>,
}

/// The number of chains that have ended, and the thread that waits for them.
struct Ended {
    count: AtomicU64,
    waits: Thread,
}

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        while let Ok(mut read) = self.read.try_lock()
            && self.again.swap(false, Ordering::SeqCst)
        {
            let waker = Waker::from(Arc::clone(&self));
            let polled = read
                .as_mut()
                .map(|read| read.as_mut().poll(&mut Context::from_waker(&waker)));
            if polled == Some(Poll::Ready(())) {
                *read = None;
                self.ended.count.fetch_add(1, Ordering::SeqCst);
                self.ended.waits.unpark();
            }
        }
    }
}

async fn reads(file: File, first: u64) {
    for n in (first..first + 20).map(|n| n % BLOCKS) {
        let (count, page) = file
            .read_at(vec![0; BLOCK_BYTES], n * BLOCK_BYTES as u64)
            .await
            .unwrap();
        assert!(count == BLOCK_BYTES && page.iter().all(|&byte| u64::from(byte) == n));
    }
}

fn start(file: &File, ended: &Arc<Ended>) {
    for n in 0..BLOCKS {
        let chain = Chain {
            read: Mutex::new(Some(Box::pin(reads(file.clone(), n)))),
            again: AtomicBool::new(false),
            ended: Arc::clone(ended),
        };
        Arc::new(chain).wake();
    }
}

/// Starts chains beside tasks that read, and waits for both.
async fn chains(file: File, ended: Arc<Ended>) {
    start(&file, &ended);
    let tasks: Vec<_> = (0..BLOCKS)
        .map(|n| tokio::spawn(reads(file.clone(), n)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    while ended.count.load(Ordering::SeqCst) < BLOCKS {
        tokio::task::yield_now().await;
    }
}

fn ended() -> Arc<Ended> {
    Arc::new(Ended {
        count: AtomicU64::new(0),
        waits: current(),
    })
}

fn runtimes() -> [Runtime; 3] {
    let mut several = Builder::new_multi_thread();
    [
        several.worker_threads(2).enable_all().build().unwrap(),
        several.worker_threads(1).build().unwrap(),
        Builder::new_current_thread().enable_all().build().unwrap(),
    ]
}

fn each_way(test: impl Fn(Fixture, &Runtime)) {
    for backend in [Backend::Uring, Backend::Fallback] {
        for runtime in &runtimes() {
            let Some(fixture) = Fixture::new(backend) else {
                return;
            };
            test(fixture, runtime);
        }
    }
}

#[test]
fn wakers_that_start_operations_on_the_threads_of_tokio_lose_none() {
    each_way(|fixture, runtime| {
        let file = runtime.block_on(fixture.open());
        let work = chains(file.clone(), ended());
        runtime.block_on(runtime.spawn(work)).unwrap();
        runtime.block_on(chains(file.clone(), ended()));
        let local = tokio::task::LocalSet::new();
        local.block_on(runtime, async {
            tokio::task::spawn_local(chains(file, ended()))
                .await
                .unwrap();
        });
        assert_eq!(fixture.engine.metrics().panics, 0);
    });
}

#[test]
fn wakers_that_start_operations_on_a_driver_lose_none() {
    let Some(fixture) = Fixture::new(Backend::Uring) else {
        return;
    };
    let file = pollster::block_on(fixture.open());
    let others = ended();
    start(&file, &others);
    while others.count.load(Ordering::SeqCst) < BLOCKS {
        park_timeout(Duration::from_secs(1));
    }
    let driver = fixture.engine.current_thread_driver().unwrap();
    let own = ended();
    driver.block_on(async {
        start(&file, &own);
        while own.count.load(Ordering::SeqCst) < BLOCKS {
            file.read_at(vec![0; 1], 0).await.unwrap();
        }
    });
    assert_eq!(fixture.engine.metrics().panics, 0);
}

async fn write_and_drop(engine: Engine, path: PathBuf) {
    let mut cursor = engine.create(&path).await.unwrap().cursor();
    for n in 0..5 {
        cursor.write_all(&[n + 1; 40_000]).await.unwrap();
    }
}

fn is_whole(path: &Path) -> bool {
    std::fs::metadata(path).unwrap().len() == 200_000
}

#[test]
fn a_dropped_cursor_writes_all_its_bytes() {
    each_way(|fixture, runtime| {
        for _ in 0..20 {
            let paths: Vec<_> = (0..16).map(|n| fixture.path(&n.to_string())).collect();
            let (engine, written) = (fixture.engine.clone(), paths.clone());
            let work = async move {
                let start = |path| tokio::spawn(write_and_drop(engine.clone(), path));
                let tasks: Vec<_> = written.clone().into_iter().map(start).collect();
                for task in tasks {
                    task.await.unwrap();
                }
                while !written.iter().all(|path| is_whole(path)) && engine.metrics().panics == 0 {
                    tokio::task::yield_now().await;
                }
            };
            runtime.block_on(runtime.spawn(work)).unwrap();
            assert_eq!(fixture.engine.metrics().panics, 0);
            assert!(paths.iter().all(|path| is_whole(path)));
        }
    });
}
