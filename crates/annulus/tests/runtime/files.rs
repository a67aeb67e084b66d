//! Files on a runtime's cores.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::time::Duration;

use annulus::buf::{AlignedBuf, BufferLayout};
use annulus::fs::CachedReads;
use annulus::runtime;
use annulus::{EngineError, File, OpenOptions, time};
use annulus_testing::memory_map::{is_mapped, until_unmapped};
use annulus_testing::skip::skip;

use crate::across::beside;
use crate::ways::each_way;

/// Returns a directory on a real file system with direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Opens a file whose reads all go to a driver.
async fn uncached(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .cached_reads(CachedReads::Never);
    runtime::engine().open_with(&options, path).await.unwrap()
}

#[test]
fn all_path_operations_work_on_a_core() {
    each_way(|builder| {
        let dir = folder();
        let root = dir.path().to_owned();
        let ended = builder.block_on(async move {
            let engine = runtime::engine();
            let path = root.join("a");
            let file = engine.create(&path).await?;
            file.write_all_at(vec![3; 5000], 0).await?;
            assert_eq!(file.close().await?, annulus::fs::Closed::Now);
            assert_eq!(engine.metadata(&path).await?.len(), 5000);
            assert!(engine.symlink_metadata(&path).await?.is_file());
            engine.create_dir(root.join("d")).await?;
            engine.rename(&path, root.join("d/b")).await?;
            let base = engine.open_dir(&root).await?;
            let names = engine.read_dir(base.at("d")).await?;
            assert_eq!(names.len(), 1);
            assert_eq!(names[0].name(), "b");
            let file = engine.open(root.join("d/b")).await?;
            let (bytes, page) = file.read_at(vec![0; 8192], 0).await?;
            assert_eq!((bytes, page[4999]), (5000, 3));
            let loaded = engine.load_file(root.join("d/b")).await?;
            assert_eq!(loaded.len(), 5000);
            let adopted = File::from_std(std::fs::File::open(root.join("d/b"))?, &engine)?;
            assert_eq!(adopted.metadata().await?.len(), 5000);
            engine.remove_file(root.join("d/b")).await?;
            engine.remove_dir(root.join("d")).await?;
            let gone = engine.open(root.join("d")).await.unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
            let nul = engine.open("a\0b").await.unwrap_err();
            assert_eq!(nul.kind(), io::ErrorKind::InvalidInput);
            io::Result::Ok(())
        });
        ended.unwrap().unwrap();
    });
}

#[test]
fn a_file_of_one_core_is_used_on_the_others_and_on_foreign_threads() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![8; 1 << 16]).unwrap();
        let file = beside(builder.cores(2), |handle| {
            let file = handle.spawn_on(0, move || async move { uncached(&path).await });
            let file = pollster::block_on(file).unwrap();
            let mut tasks = Vec::new();
            for task in 0..64 {
                let file = file.clone();
                tasks.push(handle.spawn_on(task % 2, move || async move {
                    let mut sum = 0;
                    for page in 0..16 {
                        let (bytes, page) = file.read_at(vec![0; 4096], page * 4096).await?;
                        sum += bytes * usize::from(page[4095]);
                    }
                    io::Result::Ok(sum)
                }));
            }
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for read in 0..200 {
                            let got = file.read_at(vec![0; 4096], read % 16 * 4096);
                            let (bytes, page) = pollster::block_on(got).unwrap();
                            assert_eq!((bytes, page[0]), (4096, 8));
                        }
                    });
                }
            });
            for task in tasks {
                let sum = pollster::block_on(task).unwrap().unwrap();
                assert_eq!(sum, 16 * 4096 * 8);
            }
            file
        });
        // The runtime has ended.
        let result = pollster::block_on(file.read_at(vec![0; 4096], 0));
        assert_eq!(
            EngineError::of(&io::Error::from(result.unwrap_err())),
            Some(EngineError::Ended)
        );
    });
}

#[test]
fn a_foreign_thread_still_reaches_a_file_when_one_of_two_cores_has_ended() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![8; 1 << 16]).unwrap();
        let run = builder.cores(2).run(move |core| {
            let path = path.clone();
            async move {
                if core.index() == 0 {
                    return Ok(());
                }
                let file = uncached(&path).await;
                while runtime::handle().spawn_on(0, || async {}).await.is_ok() {}
                let reads = std::thread::spawn(move || {
                    for _ in 0..64 {
                        pollster::block_on(file.read_at(vec![0; 4096], 0))?;
                    }
                    io::Result::Ok(())
                });
                while !reads.is_finished() {
                    time::sleep(Duration::from_micros(100)).await;
                }
                reads.join().unwrap()
            }
        });
        run.unwrap();
    });
}

/// Makes 32 single reads and 32 batched ones; calls `submitted` between the first and the second poll of each.
async fn reads_in_two_steps(file: &File, submitted: impl FnOnce()) -> io::Result<()> {
    let one = || {
        file.read_at(vec![0; 4096], 4096)
            .timeout(Duration::from_secs(3600))
    };
    let mut ones: Vec<_> = std::iter::repeat_with(one).take(32).collect();
    let mut together = file.read_many_at((0..32).map(|n| (vec![0; 4096], n % 16 * 4096)));
    let mut first = Poll::Pending;
    std::future::poll_fn(|context| {
        for read in &mut ones {
            assert!(Pin::new(read).poll(context).is_pending());
        }
        first = together.poll_next(context);
        Poll::Ready(())
    })
    .await;
    submitted();
    for read in ones {
        assert_eq!(read.await?.0, 4096);
    }
    let mut next = match first {
        Poll::Ready(result) => result,
        Poll::Pending => together.next().await,
    };
    let mut results = 0;
    while let Some(read) = next {
        assert_eq!(read.result?.0, 4096);
        results += 1;
        next = together.next().await;
    }
    assert_eq!(results, 32);
    Ok(())
}

#[test]
fn operations_queued_on_a_core_that_ends_are_done_by_another() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![8; 1 << 16]).unwrap();
        let submitted = Arc::new(Barrier::new(2));
        let run = builder.cores(2).run(move |core| {
            let (path, submitted) = (path.clone(), Arc::clone(&submitted));
            async move {
                if core.index() == 0 {
                    // This core processes no submissions, and then ends.
                    submitted.wait();
                    return Ok(());
                }
                let file = uncached(&path).await;
                let reads = std::thread::spawn(move || {
                    pollster::block_on(reads_in_two_steps(&file, || {
                        submitted.wait();
                    }))
                });
                while !reads.is_finished() {
                    time::sleep(Duration::from_micros(100)).await;
                }
                reads.join().unwrap()
            }
        });
        run.unwrap();
    });
}

#[test]
fn a_file_operation_with_a_timeout_returns_the_bytes_or_times_out() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![4; 1 << 20]).unwrap();
        let ended = builder.block_on(async move {
            let file = uncached(&path).await;
            let mut completed = 0;
            for round in 0..300u64 {
                let read = file.read_at(vec![0; 4096], round % 256 * 4096);
                match read.timeout(Duration::from_micros(round)).await {
                    Ok((bytes, page)) => {
                        assert_eq!((bytes, page[0]), (4096, 4));
                        completed += 1;
                    }
                    Err(error) => {
                        let error = io::Error::from(error);
                        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
                    }
                }
                // Dropped at any stage.
                let read = file.read_at(vec![0; 4096], 0);
                let _ = time::timeout(Duration::from_micros(round % 50), read).await;
            }
            let long = Duration::from_secs(3600);
            file.read_at(vec![0; 16], 0).timeout(long).await.unwrap();
            completed
        });
        println!("{} completed in time", ended.unwrap());
    });
}

#[test]
fn direct_reads_and_writes_go_past_the_cache() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        let written = path.clone();
        let ended = builder.block_on(async move {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).direct(true);
            let file = match runtime::engine().open_with(&options, &path).await {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
                other => other?,
            };
            let mut page = AlignedBuf::with_len(8192, 4096);
            page.fill(6);
            file.write_all_at(page, 0).await?;
            let (bytes, page) = file.read_at(AlignedBuf::with_len(4096, 4096), 4096).await?;
            assert_eq!((bytes, page[0]), (4096, 6));
            io::Result::Ok(true)
        });
        if !ended.unwrap().unwrap() {
            return skip("the target directory's file system has no direct I/O");
        }
        let mut page = [0; 8192];
        std::fs::File::open(written)
            .unwrap()
            .read_exact_at(&mut page, 0)
            .unwrap();
        assert_eq!(page, [6; 8192]);
    });
}

#[test]
fn registered_buffers_are_used_by_every_core() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![9; 1 << 16]).unwrap();
        let has_ring = format!("{builder:?}").contains("Uring");
        beside(builder.cores(2), |handle| {
            let layout = BufferLayout::new(4, 4096);
            let arena = Arc::new(handle.register_buffers(layout).unwrap());
            for core in 0..2 {
                let (path, arena) = (path.clone(), Arc::clone(&arena));
                let read = handle.spawn_on(core, move || async move {
                    let file = uncached(&path).await;
                    for page in 0..16 {
                        let buffer = arena.take().await;
                        let (bytes, page) = file.read_at(buffer, page * 4096).await.unwrap();
                        assert_eq!((bytes, page[0]), (4096, 9));
                    }
                });
                pollster::block_on(read).unwrap();
            }
            let fixed = handle.file_metrics().fixed;
            println!(
                "{:?}, {fixed} reads of registered memory",
                arena.registered()
            );
            if has_ring && handle.file_metrics().blocking == 0 {
                assert_eq!(fixed, 32, "{:?}", arena.registered());
            }
        });
    });
}

#[test]
fn idle_cores_give_the_memory_of_a_dropped_arena_back() {
    each_way(|builder| {
        let has_ring = format!("{builder:?}").contains("Uring");
        beside(builder.cores(2), |handle| {
            for dropped_on_a_core in [false, true] {
                let layout = BufferLayout::new(16, 1 << 20);
                let arena = handle.register_buffers(layout).unwrap();
                while has_ring && arena.registered().rings < 2 {
                    std::thread::yield_now();
                }
                let from = arena.try_take().unwrap().as_ptr().addr();
                let bytes = layout.count * layout.bytes;
                assert!(is_mapped(from, bytes));
                if dropped_on_a_core {
                    let task = handle.spawn_on(0, move || async move { drop(arena) });
                    pollster::block_on(task).unwrap();
                } else {
                    drop(arena);
                }
                until_unmapped(from, bytes);
            }
        });
    });
}

#[test]
fn operations_in_flight_when_the_runtime_ends_are_completed() {
    each_way(|builder| {
        let dir = folder();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        for _ in 0..10 {
            let kept: Arc<Mutex<Option<File>>> = Arc::default();
            let (keeps, path) = (Arc::clone(&kept), path.clone());
            let ended = builder.clone().block_on(async move {
                let file = uncached(&path).await;
                let mut tasks = Vec::new();
                for task in 0..128u64 {
                    let file = file.clone();
                    tasks.push(runtime::spawn(async move {
                        let at = task % 16 * 65536;
                        if task % 2 == 0 {
                            file.read_at(vec![0; 65536], at).await.map(drop)
                        } else {
                            file.write_at(vec![1; 65536], at).await.map(drop)
                        }
                    }));
                }
                runtime::yield_now().await;
                *keeps.lock().unwrap() = Some(file);
                (tasks, runtime::handle())
            });
            let (tasks, handle) = ended.unwrap();
            for task in tasks {
                // Completed, refused, or dropped: but ended.
                assert!(task.is_finished());
                if let Err(error) = pollster::block_on(task) {
                    assert!(error.is_aborted(), "{error}");
                }
            }
            let files = handle.file_metrics();
            assert_eq!((files.leaked, files.stale), (0, 0));
            assert_eq!(files.submitted, files.completed, "{files:?}");
        }
    });
}

#[test]
fn the_engine_of_a_core_reports_its_backend_and_ends_with_the_runtime_only() {
    each_way(|builder| {
        let has_ring = format!("{builder:?}").contains("Uring");
        let engine = builder.cores(1).block_on(async move {
            let engine = runtime::engine();
            assert_eq!(
                engine.backend().to_string().contains("io_uring ("),
                has_ring
            );
            // On the core itself: the call must not wait for it.
            let arena = engine.register_buffers(BufferLayout::new(2, 4096)).unwrap();
            engine.nop().await.unwrap();
            assert_eq!(arena.registered().rings, usize::from(has_ring));
            engine.shutdown();
            engine.nop().await.unwrap();
            assert_eq!(engine.metrics(), runtime::handle().file_metrics());
            assert!(engine.current_thread_driver().is_err());
            engine
        });
        let engine = engine.unwrap();
        let error = pollster::block_on(engine.nop()).unwrap_err();
        assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
    });
}
