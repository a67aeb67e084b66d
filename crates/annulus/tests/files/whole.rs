//! Reads of whole files: by one task, and by many tasks of a thread, which submit them together.

use std::future::Future;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::task::Poll;
use std::thread;

#[cfg(not(annulus_portable))]
use annulus::BackendInUse;
use annulus::Engine;

use crate::fixtures::{Fixture, bytes, for_each_backend};
#[cfg(not(annulus_portable))]
use crate::local::{is_local, warm_up};
use crate::wait::{eventually, eventually_on};

/// More than share one submission.
const TASKS: usize = 40;
/// Enough for each task to learn that there are others.
const READS: usize = 30;
/// The lengths around those of the first buffer and of the kernel's pages.
const LENGTHS: [usize; 8] = [0, 1, 511, 4096, 16_384, 16_385, 16_386, 100_000];

/// Runs futures at the same time, and returns their results in order.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, result) in futures.iter_mut().filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *result = Some(output);
            }
        }
        match futures.iter().all(|(_, result)| result.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, result)| result)
        .collect()
}

/// Reads `path` in many tasks at the same time, and returns each result.
async fn read_together(fixture: &Fixture, path: &Path) -> Vec<io::Result<Vec<u8>>> {
    let reads = |_| async {
        let mut results = Vec::new();
        for _ in 0..READS {
            results.push(fixture.engine.read(path).await);
        }
        results
    };
    let results = join_all((0..TASKS).map(reads)).await;
    results.into_iter().flatten().collect()
}

#[cfg(not(annulus_portable))]
#[test]
fn a_file_of_any_length_is_read_whole() {
    for_each_backend(async |fixture| {
        warm_up(fixture).await;
        for length in LENGTHS {
            let contents = bytes(length as u64, length);
            fixture.put("f", &contents);
            let path = fixture.path("f");
            for _ in 0..3 {
                assert_eq!(fixture.engine.read(&path).await.unwrap(), contents);
            }
            for read in read_together(fixture, &path).await {
                assert!(read.unwrap() == contents, "{length}");
            }
        }
        eventually("all are closed", || fixture.descriptors("f") == 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn an_error_of_a_whole_read_is_that_of_the_kernel() {
    for_each_backend(async |fixture| {
        warm_up(fixture).await;
        fixture.engine.create_dir(fixture.path("d")).await.unwrap();
        for (name, errno) in [
            ("d", libc::EISDIR),
            ("missing", libc::ENOENT),
            ("f/x", libc::ENOTDIR),
        ] {
            let path = fixture.path(name);
            let error = fixture.engine.read(&path).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{name}");
            for read in read_together(fixture, &path).await {
                assert_eq!(read.unwrap_err().raw_os_error(), Some(errno), "{name}");
            }
        }
        eventually("all are closed", || fixture.descriptors("d") == 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn tasks_of_a_thread_share_the_enters_of_their_whole_reads() {
    for_each_backend(async |fixture| {
        if !fixture.has_own_ring || !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        let path = fixture.path("f");
        read_together(fixture, &path).await;
        let (counts, reads) = fixture.counts(read_together(fixture, &path)).await;
        let (enters, reads) = (counts.enters, reads.len() as u64);
        assert!(enters * 10 < reads * 3, "{enters} enters for {reads} files");
        // No request of these is a repetition.
        assert_eq!(counts.resubmitted, 0);
    });
}

/// A file whose path never counts as cached, because it is on another mount than the root directory.
#[cfg(not(annulus_portable))]
const ELSEWHERE: &str = "/proc/version";

#[cfg(not(annulus_portable))]
#[test]
fn a_file_whose_path_is_not_cached_is_read_in_one_job() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("/proc") {
            return;
        }
        warm_up(fixture).await;
        let expected = std::fs::read(ELSEWHERE).unwrap();
        let read = async {
            for _ in 0..READS {
                assert_eq!(fixture.engine.read(ELSEWHERE).await.unwrap(), expected);
            }
        };
        let (counts, ()) = fixture.counts(read).await;
        // Opened, read and closed by one hand-off.
        let reads = READS as u64;
        assert_eq!((counts.blocking, counts.submitted), (reads, reads));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn files_whose_paths_are_not_cached_are_read_by_a_ring_if_there_are_many() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("/proc") {
            return;
        }
        warm_up(fixture).await;
        let read = read_together(fixture, Path::new(ELSEWHERE));
        let (counts, reads) = fixture.counts(read).await;
        let (jobs, reads) = (usize::try_from(counts.blocking).unwrap(), reads.len());
        match fixture.engine.backend() {
            // The first ones, and those of the last four tasks.
            BackendInUse::Uring(_) => {
                assert!(jobs <= 3 + 4 * READS, "{jobs} jobs for {reads} files");
            }
            _ => assert_eq!(jobs, reads),
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_file_of_any_length_is_read_whole_if_its_path_is_not_cached() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("second mount") {
            return;
        }
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return annulus_testing::skip::skip("no directory /dev/shm");
        };
        let path = dir.path().join("f");
        for length in [0, 1, 4096, 65_537, 1 << 20, (1 << 20) + 1, 3_000_000] {
            let contents = bytes(length as u64, length);
            std::fs::write(&path, &contents).unwrap();
            assert!(fixture.engine.read(&path).await.unwrap() == contents);
        }
        for (path, errno) in [("", libc::ENOENT), ("/dev/shm", libc::EISDIR)] {
            let error = fixture.engine.read(path).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{path}");
        }
        make_pipe(&dir.path().join("pipe"));
        let writer = write_pipe(dir.path().join("pipe"), bytes(5, 100_000));
        let read = fixture.engine.read(dir.path().join("pipe")).await;
        assert!(read.unwrap() == bytes(5, 100_000));
        writer.join().unwrap();
    });
}

/// Drops reads after any number of polls, while the ring has requests of them.
#[cfg(not(annulus_portable))]
#[test]
fn a_whole_read_that_is_dropped_at_any_point_leaves_no_descriptor() {
    for_each_backend(async |fixture| {
        warm_up(fixture).await;
        fixture.put("large", &bytes(1, 100_000));
        let mut names = vec!["f".to_owned(), "large".to_owned()];
        // On another mount, so that a blocking thread opens and reads them.
        let is_real = fixture.is_real();
        let elsewhere = is_real
            .then(|| tempfile::tempdir_in("/dev/shm").ok())
            .flatten();
        for (dir, length) in elsewhere
            .iter()
            .flat_map(|dir| [(dir, 4096), (dir, 1_100_000)])
        {
            let path = dir.path().join(length.to_string());
            std::fs::write(&path, bytes(1, length)).unwrap();
            names.push(path.to_str().unwrap().to_owned());
        }
        for round in 0..2 * names.len() {
            let path = fixture.path(&names[round % names.len()]);
            let reads = |task: usize| {
                let path = &path;
                async move {
                    for _ in 0..READS {
                        let mut read = pin!(fixture.engine.read(path));
                        // Some are dropped before their first poll, others while they wait.
                        let mut polls = (round + task) % 4;
                        std::future::poll_fn(|context| {
                            let is_over = polls == 0 || read.as_mut().poll(context).is_ready();
                            polls = polls.saturating_sub(1);
                            if is_over {
                                return Poll::Ready(());
                            }
                            context.waker().wake_by_ref();
                            Poll::Pending
                        })
                        .await;
                    }
                }
            };
            join_all((0..TASKS).map(reads)).await;
            // Completions of dropped reads arrive later.
            for _ in 0..3 {
                assert!(fixture.engine.read(fixture.path("f")).await.is_ok());
            }
            fixture.engine.nop().await.unwrap();
        }
        for name in &names {
            // A blocking thread may open the file of a dropped read late, and the caller's driver closes it.
            eventually_on(fixture, "all are closed", || fixture.descriptors(name) == 0).await;
        }
    });
}

/// Reads that have begun, but are polled no more, do not count on the turns of others.
#[cfg(not(annulus_portable))]
#[test]
fn a_whole_read_that_is_polled_no_more_holds_up_no_other() {
    for_each_backend(async |fixture| {
        warm_up(fixture).await;
        let path = fixture.path("f");
        let mut kept = Vec::new();
        for _ in 0..10 * TASKS {
            let mut read = Box::pin(fixture.engine.read(&path));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
            if polled.is_pending() {
                kept.push(read);
            }
        }
        let shares = fixture.has_own_ring && is_local(fixture);
        assert!(!shares || !kept.is_empty(), "every read ended at once");
        for _ in 0..READS {
            fixture.engine.read(&path).await.unwrap();
        }
        for read in read_together(fixture, &path).await {
            read.unwrap();
        }
        drop(kept);
        fixture.engine.read(&path).await.unwrap();
    });
}

/// Creates a pipe with a name.
fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Writes `contents` to a pipe in several parts, on another thread.
fn write_pipe(path: PathBuf, contents: Vec<u8>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        for part in contents.chunks(30_000) {
            pipe.write_all(part).unwrap();
        }
    })
}

#[cfg(not(annulus_portable))]
#[test]
fn a_pipe_is_read_to_its_end_as_std_does() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("pipes") {
            return;
        }
        warm_up(fixture).await;
        make_pipe(&fixture.path("pipe"));
        let path = fixture.path("pipe");
        for length in [0, 5, 16_385, 100_000] {
            let writer = write_pipe(path.clone(), bytes(3, length));
            assert!(fixture.engine.read(&path).await.unwrap() == bytes(3, length));
            writer.join().unwrap();
        }
        // While others use the ring of the thread.
        fixture.put("other", b"other");
        let other = fixture.path("other");
        for length in [5, 100_000] {
            let writer = write_pipe(path.clone(), bytes(4, length));
            let reads = |task| {
                let (path, other) = (&path, &other);
                async move {
                    for _ in 0..READS {
                        assert_eq!(fixture.engine.read(other).await.unwrap(), b"other");
                    }
                    match task {
                        0 => fixture.engine.read(path).await.unwrap(),
                        _ => Vec::new(),
                    }
                }
            };
            let read = join_all((0..TASKS).map(reads)).await;
            assert!(read.concat() == bytes(4, length));
            writer.join().unwrap();
        }
        assert_eq!(fixture.descriptors("pipe"), 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn files_of_proc_and_devices_are_read_whole() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("/proc") {
            return;
        }
        warm_up(fixture).await;
        for path in ["/proc/version", "/proc/cpuinfo", "/dev/null"].map(Path::new) {
            // The frequencies of processors change.
            let kind = |bytes: &[u8]| bytes.iter().take(100).copied().collect::<Vec<_>>();
            let expected = kind(&std::fs::read(path).unwrap());
            assert_eq!(kind(&fixture.engine.read(path).await.unwrap()), expected);
            for read in read_together(fixture, path).await {
                assert_eq!(kind(&read.unwrap()), expected, "{}", path.display());
            }
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_file_that_grows_while_it_is_read_gives_a_correct_beginning() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("a second process") {
            return;
        }
        warm_up(fixture).await;
        let whole = bytes(9, 200_000);
        fixture.put("grows", &whole[..100]);
        let path = fixture.path("grows");
        let writer = {
            let (path, rest) = (path.clone(), whole[100..].to_vec());
            thread::spawn(move || {
                let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
                for part in rest.chunks(500) {
                    file.write_all(part).unwrap();
                }
            })
        };
        while !writer.is_finished() {
            for read in read_together(fixture, &path).await {
                let read = read.unwrap();
                assert!(read.len() >= 100 && read == whole[..read.len()]);
            }
        }
        writer.join().unwrap();
        assert!(fixture.engine.read(&path).await.unwrap() == whole);
    });
}

#[test]
fn a_pipe_is_written_as_std_does() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("pipes") {
            return;
        }
        let path = fixture.path("pipe");
        make_pipe(&path);
        // More than a pipe holds.
        let contents = bytes(5, 300_000);
        fixture.put("file", &contents);
        let read = || {
            let path = path.clone();
            thread::spawn(move || std::fs::read(path).unwrap())
        };
        let reader = read();
        fixture.engine.write(&path, contents.clone()).await.unwrap();
        assert!(reader.join().unwrap() == contents);
        let reader = read();
        let copied = fixture.engine.copy(fixture.path("file"), &path).await;
        assert_eq!(copied.unwrap(), 300_000);
        assert!(reader.join().unwrap() == contents);
    });
}

/// A future with a literal is `Send`, also within another future.
#[test]
fn a_literal_is_written_by_a_task() {
    #[allow(clippy::manual_async_fn)]
    fn task(engine: Engine, path: PathBuf) -> impl Future<Output = io::Result<()>> + Send {
        async move {
            engine.write(&path, "text").await?;
            Ok(())
        }
    }
    for_each_backend(async |fixture| {
        let path = fixture.path("f");
        task(fixture.engine.clone(), path).await.unwrap();
        assert_eq!(fixture.contents("f").unwrap(), b"text");
    });
}
