//! Rings on the threads of Tokio runtimes: operations that are started, polled and dropped on different threads.

use std::future::{Future, poll_fn};
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use annulus::buf::{AlignedBuf, BufferLayout};
use annulus::tokio::adopt;
use annulus::{Backend, BackendInUse, Engine, File, OpenOptions};
use annulus_testing::memory_map::{is_mapped, until_unmapped};
use annulus_testing::skip::skip;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 512;

/// A file whose blocks encode their positions, and an engine: of rings, or, where io_uring is refused, of blocking
/// threads.
struct Fixture {
    dir: TempDir,
    engine: Engine,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
        std::fs::write(dir.path().join("data"), blocks.concat()).unwrap();
        // Longer than any disk takes, because nothing may be leaked.
        let builder = Engine::builder().drain_timeout(Duration::from_secs(600));
        let engine = match builder.clone().backend(Backend::Uring).build() {
            Err(error) if error.allows_fallback() => {
                skip(format_args!("rings on Tokio's threads: {error}"));
                builder.backend(Backend::Fallback).build().unwrap()
            }
            engine => engine.unwrap(),
        };
        Fixture { dir, engine }
    }

    fn has_rings(&self) -> bool {
        matches!(self.engine.backend(), BackendInUse::Uring { .. })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Opens the file with direct I/O if possible, so that reads are really in flight.
    async fn open(&self) -> File {
        let mut options = OpenOptions::new();
        match self
            .engine
            .open_with(options.read(true).direct(true), self.path())
            .await
        {
            Ok(file) => file,
            Err(_) => self.engine.open(self.path()).await.unwrap(),
        }
    }

    /// Checks that everything that was started has ended.
    fn settled(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let metrics = self.engine.metrics();
            if metrics.submitted == metrics.completed {
                assert_eq!((metrics.stale, metrics.leaked), (0, 0));
                return;
            }
            assert!(Instant::now() < deadline, "{metrics:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn workers(count: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(count).enable_all().build().unwrap()
}

fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn aligned() -> AlignedBuf {
    AlignedBuf::with_len(BLOCK_BYTES, BLOCK_BYTES)
}

fn block(n: u64) -> Vec<u8> {
    n.to_ne_bytes().repeat(BLOCK_BYTES / 8)
}

fn is_block(buf: &[u8], n: u64) -> bool {
    buf == block(n)
}

async fn read_block(file: &File, n: u64) {
    let (count, buf) = file
        .read_at(aligned(), n * BLOCK_BYTES as u64)
        .await
        .unwrap();
    assert!(count == BLOCK_BYTES && is_block(&buf, n), "block {n}");
}

/// Polls once, and leaves the rest to the next poll.
async fn begin<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match pin!(&mut *future).poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn tasks_that_move_between_workers_with_reads_in_flight_get_their_results() {
    let fixture = Fixture::new();
    let runtime = workers(4);
    runtime.block_on(async {
        let file = fixture.open().await;
        let tasks = (0..32u64).map(|task| {
            let file = file.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task);
                for _ in 0..60 {
                    let n = random.u64(..BLOCKS);
                    let mut read = file.read_at(aligned(), n * BLOCK_BYTES as u64);
                    let mut result = begin(&mut read).await;
                    // Another task runs, on this worker or, if the task was stolen, on another one.
                    for _ in 0..random.u8(..4) {
                        tokio::task::yield_now().await;
                        if result.is_none() {
                            result = begin(&mut read).await;
                        }
                    }
                    let (count, buf) = match result {
                        Some(result) => result.unwrap(),
                        None => read.await.unwrap(),
                    };
                    assert!(count == BLOCK_BYTES && is_block(&buf, n));
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    fixture.settled();
}

#[test]
fn reads_started_on_one_worker_complete_or_are_dropped_on_another() {
    let fixture = Fixture::new();
    let engine = Box::leak(Box::new(fixture.engine.clone()));
    let runtime = workers(2);
    runtime.block_on(async {
        let file: &'static File = Box::leak(Box::new(fixture.open().await));
        let _ = &engine;
        let (send, mut receive) = mpsc::channel(8);
        let begun = tokio::spawn(async move {
            for n in 0..BLOCKS {
                let mut read = file.read_at(aligned(), n * BLOCK_BYTES as u64);
                let result = begin(&mut read).await;
                if send.send((n, read, result)).await.is_err() {
                    return;
                }
            }
        });
        // On a separate thread, which is not a worker.
        let ended = std::thread::spawn(move || {
            pollster::block_on(async {
                while let Some((n, read, result)) = receive.recv().await {
                    match result {
                        Some(result) => assert!(is_block(&result.unwrap().1, n)),
                        None if n % 3 == 0 => drop(read),
                        None => assert!(is_block(&read.await.unwrap().1, n)),
                    }
                }
            });
        });
        begun.await.unwrap();
        tokio::task::spawn_blocking(move || ended.join().unwrap())
            .await
            .unwrap();
    });
    fixture.settled();
}

#[test]
fn every_thread_of_a_runtime_can_read() {
    for runtime in [workers(2), current()] {
        let fixture = Fixture::new();
        // In `block_on`, in a task, on a blocking thread, in a `block_on` there, and on an unrelated thread.
        let file = runtime.block_on(fixture.open());
        runtime.block_on(read_block(&file, 1));
        let task = file.clone();
        let in_task = runtime.spawn(async move { read_block(&task, 2).await });
        runtime.block_on(in_task).unwrap();
        let (handle, blocking) = (runtime.handle().clone(), file.clone());
        let on_blocking = runtime.spawn_blocking(move || handle.block_on(read_block(&blocking, 3)));
        runtime.block_on(on_blocking).unwrap();
        let handle = runtime.handle().clone();
        let (entered, foreign) = (file.clone(), file.clone());
        std::thread::spawn(move || {
            // A current-thread runtime only makes progress while it runs; here it is only entered.
            let _inside = handle.enter();
            drop(entered.read_at(aligned(), 0));
        })
        .join()
        .unwrap();
        std::thread::spawn(move || pollster::block_on(read_block(&foreign, 4)))
            .join()
            .unwrap();
        drop(file);
        fixture.settled();
    }
}

#[test]
fn the_first_operation_of_a_thread_may_come_when_its_task_has_used_up_tokios_budget() {
    for runtime in [workers(1), current()] {
        let fixture = Fixture::new();
        // Not in the runtime, so that its threads have no ring yet.
        let file = pollster::block_on(fixture.open());
        let run = |file: File| async move {
            let (send, mut receive) = mpsc::unbounded_channel();
            (0..1000).for_each(|n| send.send(n).unwrap());
            // As in a `join!` of a future that is always ready and a read.
            poll_fn(|context| {
                while receive.poll_recv(context).is_ready() {}
                Poll::Ready(())
            })
            .await;
            assert!(!tokio::task::coop::has_budget_remaining());
            read_block(&file, 1).await;
        };
        // In a task, and outside of the workers.
        runtime.block_on(runtime.spawn(run(file.clone()))).unwrap();
        runtime.block_on(run(file));
        fixture.settled();
    }
}

#[test]
fn several_runtimes_share_one_engine_and_one_runtime_several_engines() {
    let (one, other) = (Fixture::new(), Fixture::new());
    let runtimes = [workers(2), current(), workers(1)];
    std::thread::scope(|scope| {
        for runtime in &runtimes {
            let (one, other) = (&one, &other);
            scope.spawn(move || {
                runtime.block_on(async {
                    let (file, second) = (one.open().await, other.open().await);
                    for n in 0..100 {
                        read_block(&file, n).await;
                        read_block(&second, BLOCKS - 1 - n).await;
                    }
                });
            });
        }
    });
    // One after the other on one thread: the thread has a ring for each.
    for runtime in runtimes {
        runtime.block_on(async { read_block(&one.open().await, 7).await });
        drop(runtime);
    }
    one.settled();
    other.settled();
}

#[test]
fn a_runtime_that_shuts_down_with_reads_in_flight_leaves_nothing_behind() {
    for round in 0..20 {
        let fixture = Fixture::new();
        let runtime = if round % 2 == 0 {
            workers(3)
        } else {
            current()
        };
        let file = runtime.block_on(fixture.open());
        for n in 0..200 {
            let file = file.clone();
            runtime.spawn(async move {
                for k in 0.. {
                    read_block(&file, (n + k) % BLOCKS).await;
                }
            });
        }
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(round / 2)).await });
        match round % 3 {
            0 => runtime.shutdown_background(),
            1 => runtime.shutdown_timeout(Duration::from_secs(5)),
            _ => drop(runtime),
        }
        // The engine still works elsewhere.
        let next = current();
        next.block_on(read_block(&file, 5));
        pollster::block_on(read_block(&file, 6));
        drop(next);
        fixture.settled();
    }
}

#[test]
fn an_engine_that_ends_before_its_runtime_drains_the_rings_of_its_workers() {
    let runtime = workers(2);
    for shut_down in [true, false] {
        for _ in 0..10 {
            let fixture = Fixture::new();
            let file = runtime.block_on(fixture.open());
            let tasks: Vec<_> = (0..50u64)
                .map(|n| {
                    let file = file.clone();
                    runtime.spawn(async move {
                        for k in 0..200 {
                            let at = (n + k) % BLOCKS * BLOCK_BYTES as u64;
                            match file.read_at(aligned(), at).await {
                                Ok((_, buf)) => assert!(is_block(&buf, (n + k) % BLOCKS)),
                                Err(error) => return Err(io::Error::from(error)),
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            drop(file);
            if shut_down {
                std::thread::sleep(Duration::from_millis(2));
                fixture.engine.shutdown();
                fixture.settled();
            }
            for task in tasks {
                // `EngineError::Ended`, or a cancel in time.
                if let Err(error) = runtime.block_on(task).unwrap() {
                    let ended = annulus::EngineError::of(&error);
                    let expected = ended == Some(annulus::EngineError::Ended)
                        || error.raw_os_error() == Some(125);
                    assert!(shut_down && expected, "{error}");
                }
            }
            drop(fixture);
        }
    }
}

#[test]
fn timeouts_and_sleeps_pass_on_rings_without_a_waiting_thread() {
    for runtime in [workers(2), current()] {
        let fixture = Fixture::new();
        runtime.block_on(async {
            let engine = fixture.engine.clone();
            let slept = tokio::spawn(async move {
                let began = Instant::now();
                engine.sleep(Duration::from_millis(30)).await.unwrap();
                assert!(began.elapsed() >= Duration::from_millis(30));
                let never = engine.timeout(Duration::from_millis(20), std::future::pending::<()>());
                assert_eq!(never.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
                // The later deadline comes first: the timer of the earlier one must still fire.
                let (long, short) = (Duration::from_secs(600), Duration::from_millis(10));
                let mut long = engine.sleep(long);
                assert!(begin(&mut long).await.is_none());
                engine.sleep(short).await.unwrap();
            });
            slept.await.unwrap();
            let file = fixture.open().await;
            let read = file.read_at(aligned(), 0).timeout(Duration::from_secs(60));
            assert!(is_block(&read.await.unwrap().1, 0));
        });
        drop(runtime);
        fixture.settled();
    }
}

#[test]
fn an_executor_nested_in_a_worker_gets_its_completions() {
    let fixture = Arc::new(Fixture::new());
    let runtime = workers(2);
    let file = runtime.block_on(fixture.open());
    let tasks: Vec<_> = (0..2u64)
        .map(|n| {
            let file = file.clone();
            runtime.spawn(async move {
                // Discouraged, but possible: while one worker waits here, another one drives the ring.
                if n == 0 {
                    pollster::block_on(read_block(&file, n));
                } else {
                    read_block(&file, n).await;
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    fixture.settled();
}

#[test]
fn a_runtime_that_the_program_declares_has_rings() {
    for builder in [Builder::new_multi_thread, Builder::new_current_thread] {
        let fixture = Fixture::new();
        let runtime = builder().enable_all().build().unwrap();
        adopt(runtime.handle()).unwrap();
        runtime.block_on(async {
            let file = fixture.open().await;
            let tasks = (0..100).map(|n| {
                let file = file.clone();
                tokio::spawn(async move { read_block(&file, n).await })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
        let wakeups = fixture.engine.metrics().wakeups;
        assert!(
            wakeups == 0 || !fixture.has_rings(),
            "the engine's driver has been used"
        );
        drop(runtime);
        fixture.settled();
    }
}

#[test]
fn a_future_outlives_the_runtime_that_started_it() {
    let fixture = Fixture::new();
    let runtime = current();
    let file = runtime.block_on(fixture.open());
    let mut read = file.read_at(aligned(), 9 * BLOCK_BYTES as u64);
    let result = runtime.block_on(begin(&mut read));
    drop(runtime);
    let result = result.unwrap_or_else(|| pollster::block_on(read));
    assert!(is_block(&result.unwrap().1, 9));
    fixture.settled();
}

#[test]
fn idle_rings_of_a_runtime_give_the_memory_of_a_dropped_arena_back() {
    let fixture = Fixture::new();
    // A runtime with its own threads, and one that does not run when the arena is dropped.
    for runtime in [workers(2), current()] {
        let layout = BufferLayout::new(16, 1 << 20);
        let arena = fixture.engine.register_buffers(layout).unwrap();
        let rings = arena.registered().rings;
        runtime.block_on(async {
            let file = fixture.open().await;
            let task = tokio::spawn(async move { read_block(&file, 1).await });
            task.await.unwrap();
        });
        assert!(
            arena.registered().rings > rings || !fixture.has_rings(),
            "{arena}"
        );
        let from = arena.try_take().unwrap().as_ptr().addr();
        let bytes = layout.count * layout.bytes;
        assert!(is_mapped(from, bytes));
        drop(arena);
        until_unmapped(from, bytes);
    }
    fixture.settled();
}

/// Reads when it is dropped, and sends the result.
struct Reads(File, std::sync::mpsc::Sender<io::Result<()>>);

impl Reads {
    async fn read(&self) -> io::Result<()> {
        let reads = (0..32).map(|n| (aligned(), n * BLOCK_BYTES as u64));
        for (n, result) in self.0.read_many_at(reads).await.into_iter().enumerate() {
            let (count, buf) = result?;
            assert!(count == BLOCK_BYTES && is_block(&buf, n as u64));
        }
        Ok(())
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        // Like `pollster`, which has a thread-local.
        let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut read = pin!(self.read());
        let ended = loop {
            match read.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => break ended,
                Poll::Pending => std::thread::park(),
            }
        };
        let _ = self.1.send(ended);
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static READS: std::cell::RefCell<Option<Reads>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_worker_without_its_ring_reads_in_the_destructors_of_its_thread_locals() {
    for direct in [false, true] {
        for used_before in [false, true] {
            let fixture = Fixture::new();
            let runtime = workers(1);
            let (sender, receiver) = std::sync::mpsc::channel();
            runtime.block_on(async {
                let file = match direct {
                    true => fixture.open().await,
                    false => fixture.engine.open(fixture.path()).await.unwrap(),
                };
                let task = tokio::spawn(async move {
                    let reads = Reads(file, sender);
                    if used_before {
                        reads.read().await.unwrap();
                    }
                    let again = Reads(reads.0.clone(), reads.1.clone());
                    READS.set(Some(reads));
                    again.read().await.unwrap();
                    std::mem::forget(again);
                });
                task.await.unwrap();
            });
            drop(runtime);
            receiver.recv().unwrap().unwrap();
            fixture.settled();
        }
    }
}
