//! A program that reads only from threads of Tokio runtimes starts no driver thread. Alone, because the
//! test checks all of its threads.

use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Backend, Engine, OpenOptions};
use annulus_testing::child_process::in_child;
use rustix::process::{Resource, Rlimit};
use tokio::runtime::{Builder, Runtime};

/// Returns the names of the library's threads.
fn ours() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("annulus")).collect()
}

/// Returns the targets of all descriptors of this process.
fn descriptors() -> Vec<String> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    targets.map(|target| target.display().to_string()).collect()
}

async fn read_much(engine: Engine, path: std::path::PathBuf) {
    let mut options = OpenOptions::new();
    let file = match engine
        .open_with(options.read(true).direct(true), &path)
        .await
    {
        Ok(file) => file,
        Err(_) => engine.open(&path).await.unwrap(),
    };
    let tasks = (0..64u64).map(|n| {
        let file = file.clone();
        tokio::spawn(async move {
            let (count, page) = file.read_at(vec![0; 4096], n * 4096).await.unwrap();
            assert_eq!((count, page[0]), (4096, n as u8));
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let reads = (0..64).map(|n| (vec![0; 4096], n * 4096));
    for (n, page) in file.read_many_at(reads).await.into_iter().enumerate() {
        assert_eq!(page.unwrap().1[4095], n as u8);
    }
    assert_eq!(file.metadata().await.unwrap().len(), 64 * 4096);
    assert!(file.close().await.is_ok());
}

fn check(runtime: &Runtime, spawned: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let contents: Vec<u8> = (0..64u8).flat_map(|n| [n; 4096]).collect();
    fs::write(&path, contents).unwrap();
    let engine = Engine::builder().backend(Backend::Uring).build().unwrap();
    let work = read_much(engine.clone(), path);
    if spawned {
        runtime.block_on(runtime.spawn(work)).unwrap();
    } else {
        runtime.block_on(work);
    }
    let metrics = engine.metrics();
    assert!(
        metrics.submitted > 0 && metrics.submitted == metrics.completed,
        "{metrics:?}"
    );
    assert!(engine.thread_ring_refusal().is_none());
    // A thread gets its name when it first runs, which takes a while on a busy machine.
    let until = Instant::now() + Duration::from_secs(60);
    while ours().is_empty() && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(ours(), ["annulus-watch\n"], "no driver thread");
}

#[test]
fn rings_of_many_threads_leave_three_quarters_of_the_descriptors_to_the_program() {
    const LIMIT: usize = 256;
    const THREADS: usize = 100;
    let test = "tokio_threads::rings_of_many_threads_leave_three_quarters_of_the_descriptors_to_the_program";
    in_child(test, || {
        rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(LIMIT as u64),
                maximum: Some(LIMIT as u64),
            },
        )
        .unwrap();
        for backend in [Backend::Uring, Backend::Fallback] {
            let runtime = Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            let engine = Engine::builder().backend(backend).build().unwrap();
            // The engine's driver, the runtime and the test have these.
            pollster::block_on(engine.nop()).unwrap();
            let before = descriptors().len();
            let (used, end) = (
                Arc::new(Barrier::new(THREADS + 1)),
                Arc::new(Barrier::new(THREADS + 1)),
            );
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    let (engine, used, end) = (engine.clone(), Arc::clone(&used), Arc::clone(&end));
                    runtime.spawn_blocking(move || {
                        pollster::block_on(engine.nop()).unwrap();
                        used.wait();
                        end.wait();
                    })
                })
                .collect();
            used.wait();
            let names = descriptors();
            let rings = names
                .iter()
                .filter(|name| name.contains("io_uring"))
                .count();
            println!(
                "{backend:?}: {before} descriptors before, {} with rings, {rings} of rings",
                names.len()
            );
            let open = || fs::File::open("/dev/null").ok();
            let opened = std::iter::from_fn(open).collect::<Vec<_>>().len();
            end.wait();
            assert_eq!(rings > 10, backend == Backend::Uring, "{names:?}");
            assert!(before + opened >= LIMIT * 3 / 4, "{before}, {opened}");
            if backend == Backend::Uring {
                let refusal = engine.thread_ring_refusal().unwrap().to_string();
                assert!(refusal.contains("RLIMIT_NOFILE is 256"), "{refusal}");
            }
            runtime.block_on(async {
                for thread in threads {
                    thread.await.unwrap();
                }
            });
            drop(engine);
            drop(runtime);
        }
    });
}

#[test]
fn reads_on_runtimes_of_tokio_start_no_driver_thread() {
    in_child(
        "tokio_threads::reads_on_runtimes_of_tokio_start_no_driver_thread",
        || {
            let mut several = Builder::new_multi_thread();
            let several = several.worker_threads(2).enable_all().build().unwrap();
            check(&several, true);
            // From the thread in `block_on`, which is not a worker.
            check(&several, false);
            let one = Builder::new_current_thread().enable_all().build().unwrap();
            check(&one, true);
            check(&one, false);
        },
    );
}
