//! Counters of files: on a ring with a thread, on a ring of the caller, on blocking threads, on simulated kernels.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use annulus::fs::CachedReads;
use annulus::metrics::{self, Source, SourceKind, snapshot};
use annulus::{Backend, Engine, File, OpenOptions};
use annulus_testing::skip::skip;

use crate::{alone, count, counted, of_kind, since};

const READS: u64 = 40;

fn engines() -> Vec<(SourceKind, Engine)> {
    let mut engines = Vec::new();
    match Engine::builder().backend(Backend::Uring).build() {
        Ok(engine) => engines.push((SourceKind::Driver, engine)),
        Err(error) => skip(error),
    }
    let blocking = Engine::builder().backend(Backend::Fallback).build();
    engines.push((SourceKind::Threads, blocking.unwrap()));
    #[cfg(feature = "test-util")]
    {
        let config = annulus::sim::SimConfig::new(1);
        let simulated = Engine::builder().backend(Backend::Sim(config)).build();
        engines.push((SourceKind::Driver, simulated.unwrap()));
    }
    engines
}

async fn create(engine: &Engine, path: &Path, cached: CachedReads) -> File {
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .write(true)
        .create(true)
        .cached_reads(cached);
    engine.open_with(options, path).await.unwrap()
}

/// Creates, writes twice, reads, syncs and closes one file, and opens one that does not exist.
async fn work(engine: &Engine, dir: &Path) {
    let file = create(engine, &dir.join("data"), CachedReads::Never).await;
    for block in 0..2 {
        file.write_all_at(vec![7; 8192], block * 8192)
            .await
            .unwrap();
    }
    for read in 0..READS {
        let (bytes, _) = file.read_at(vec![0; 4096], read % 4 * 4096).await.unwrap();
        assert_eq!(bytes, 4096);
    }
    file.sync_all().await.unwrap();
    file.close().await.unwrap();
    assert!(engine.open(dir.join("no such file")).await.is_err());
}

#[test]
fn a_known_load_is_counted_exactly_on_every_backend() {
    let _alone = alone();
    for (kind, engine) in engines() {
        let dir = tempfile::tempdir().unwrap();
        let simulated = engine.backend().to_string().contains("simulated");
        let path = if simulated {
            Path::new("/")
        } else {
            dir.path()
        };
        let before = snapshot();
        pollster::block_on(work(&engine, path));
        let between = since(&before);
        // Operations without an opcode, or that a ring would do badly, run on blocking threads.
        let mut total = between.total();
        assert_eq!(
            counted(&total),
            [
                ("close", 1),
                ("fsync", 1),
                ("open", 2),
                ("read_at", READS),
                ("write_at", 2)
            ],
            "{kind:?}"
        );
        assert_eq!(count(&total, "open"), (2, 1));
        let errors = total.errors.iter().map(|error| (error.errno, error.count));
        assert_eq!(errors.collect::<Vec<_>>(), [(libc::ENOENT, 1)]);
        let counters = &mut total.counters;
        assert_eq!(
            (counters.submitted, counters.completed),
            (READS + 6, READS + 6)
        );
        assert_eq!((counters.failed, counters.in_flight), (1, 0));
        assert_eq!(
            (counters.cancelled, counters.timeouts, counters.short),
            (0, 0, 0)
        );
        let [source] = of_kind(&between, kind)[..] else {
            panic!("one source of {kind:?}: {between:?}");
        };
        assert_eq!(source.backend, engine.backend().to_string());
        assert_eq!(source.fallback, None);
        if kind == SourceKind::Driver && !simulated {
            // Creating a file may block, so a kernel worker did it, and still exists.
            assert!(between.kernel_workers > 0);
        }
        let rings = kind == SourceKind::Driver;
        assert_eq!((counters.enters > 0, counters.entries > 0), (rings, rings));
    }
}

#[test]
fn reads_from_the_page_cache_are_counted_by_the_source_that_completes_them() {
    let _alone = alone();
    for backend in [Backend::Uring, Backend::Fallback] {
        let engine = match Engine::builder().backend(backend).build() {
            Ok(engine) => engine,
            Err(error) => return skip(error),
        };
        let dir = tempfile::tempdir().unwrap();
        let before = snapshot();
        let fast_path = pollster::block_on(async {
            let file = create(&engine, &dir.path().join("data"), CachedReads::Always).await;
            file.write_all_at(vec![7; 16384], 0).await.unwrap();
            for read in 0..READS {
                file.read_at(vec![0; 4096], read % 4 * 4096).await.unwrap();
            }
            engine.metrics().fast_path
        });
        let between = since(&before);
        assert_eq!(count(&between.total(), "read_at"), (READS, 0));
        let by_fast_path: u64 = of_kind(&between, SourceKind::FastPath)
            .iter()
            .map(|source| source.counters.completed)
            .sum();
        assert_eq!(by_fast_path, fast_path);
        if fast_path == 0 {
            skip("this file system does not say what is in the page cache");
        }
    }
}

#[test]
fn several_entries_of_a_batch_go_into_one_enter() {
    let _alone = alone();
    let engine = match Engine::builder().backend(Backend::Uring).build() {
        Ok(engine) => engine,
        Err(error) => return skip(error),
    };
    let driver = engine.current_thread_driver().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let before = snapshot();
    driver.block_on(async {
        let file = create(&engine, &dir.path().join("data"), CachedReads::Never).await;
        file.write_all_at(vec![7; 65536], 0).await.unwrap();
        for _ in 0..10 {
            let reads = (0..64).map(|read| (vec![0; 1024], read * 1024));
            let results = file.read_many_at(reads).await;
            assert!(results.into_iter().all(|result| result.is_ok()));
        }
    });
    let between = since(&before);
    let [own] = of_kind(&between, SourceKind::OwnRing)[..] else {
        panic!("{between:?}");
    };
    assert_eq!(count(own, "read_at"), (640, 0));
    let (entries, enters) = (own.counters.entries, own.counters.enters);
    assert!(entries >= 640 && entries > enters, "{entries} in {enters}");
}

#[test]
fn an_operation_is_timed_while_a_reader_is_attached_and_its_parts_add_up() {
    let _alone = alone();
    for (_, engine) in engines() {
        let dir = tempfile::tempdir().unwrap();
        let simulated = engine.backend().to_string().contains("simulated");
        let path = if simulated {
            Path::new("/")
        } else {
            dir.path()
        };
        let before = snapshot();
        pollster::block_on(work(&engine, path));
        let unwatched = snapshot();
        let watch = metrics::watch();
        pollster::block_on(work(&engine, path));
        drop(watch);
        let watched = snapshot();
        pollster::block_on(work(&engine, path));
        for (now, then, timed) in [
            (&unwatched, &before, false),
            (&watched, &unwatched, true),
            (&snapshot(), &watched, false),
        ] {
            let total = now.since(then).total();
            let reads = total.operation("read_at").unwrap();
            let counts = [&reads.latency, &reads.queue, &reads.device].map(|one| one.count());
            // Fewer reads than may be timed at once, so each is timed.
            let timed = if timed { READS } else { 0 };
            assert_eq!((reads.completed, counts), (READS, [timed; 3]), "{engine:?}");
            assert_eq!(
                reads.queue.sum_ns() + reads.device.sum_ns(),
                reads.latency.sum_ns()
            );
        }
    }
}

#[test]
fn the_counts_of_ended_sources_are_kept() {
    let _alone = alone();
    let before = snapshot();
    let dir = tempfile::tempdir().unwrap();
    let (mut alive, mut timed) = (0, 0);
    {
        let _watch = metrics::watch();
        for (_, engine) in engines() {
            if engine.backend().to_string().contains("simulated") {
                continue;
            }
            pollster::block_on(work(&engine, dir.path()));
            alive += 1;
            let total = since(&before).total();
            assert_eq!(count(&total, "read_at"), (alive * READS, 0));
            timed = total.operation("read_at").unwrap().latency.count();
        }
    }
    assert!(timed > 0);
    // A thread of an engine may end after its last handle.
    let is_ended = |source: &Source| {
        source.kind == SourceKind::Ended && count(source, "read_at").0 == alive * READS
    };
    let after = loop {
        let after = since(&before);
        if after.sources.last().is_some_and(is_ended) {
            break after;
        }
        std::thread::yield_now();
    };
    let total = after.total();
    assert_eq!(count(&total, "read_at"), (alive * READS, 0));
    assert_eq!(count(&total, "open"), (alive * 2, alive));
    assert_eq!(total.errors[0].count, alive);
    assert_eq!(total.operation("read_at").unwrap().latency.count(), timed);
    assert_eq!(total.counters.in_flight, 0);
}

/// Returns whether a thread of this process waits in the system call that opens a file.
fn is_a_thread_in_an_open() -> bool {
    let opens = [libc::SYS_openat, libc::SYS_openat2].map(|number| format!("{number} "));
    std::fs::read_dir("/proc/self/task").unwrap().any(|thread| {
        // The file is gone if the thread has ended.
        let call = std::fs::read_to_string(thread.unwrap().path().join("syscall"));
        call.is_ok_and(|call| opens.iter().any(|number| call.starts_with(number)))
    })
}

#[test]
fn operations_leaked_at_the_end_of_an_engine_are_counted_once() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let before = snapshot();
    let engine = Engine::builder().backend(Backend::Fallback);
    let engine = engine.drain_timeout(Duration::from_millis(10));
    let engine = engine.build().unwrap();
    // No process opens it for reading, so the open blocks.
    let mut options = OpenOptions::new();
    let mut opening = engine.open_with(options.write(true), &path);
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut opening).poll(&mut context).is_pending());
    // An operation that is dropped before its system call begins does not run.
    while !is_a_thread_in_an_open() {
        thread::yield_now();
    }
    drop(opening);
    drop(engine);
    assert_eq!(since(&before).total().counters.leaked, 1);
    // Lets the blocking thread continue and end.
    drop(std::fs::File::open(&path).unwrap());
}
