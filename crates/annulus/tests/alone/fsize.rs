//! The limit on the size of files (RLIMIT_FSIZE). For a write beyond it the kernel sends SIGXFSZ, which kills the
//! process, and returns EFBIG. Operations of the library only return the error, on every backend and thread.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use annulus::buf::AlignedBuf;
use annulus::fs::AllocateMode;
use annulus::runtime::{self, Runtime};
use annulus::{Backend, Engine, File, OpenOptions};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

const LIMIT: u64 = 1 << 20;

/// Lowers the limit for this process, after the test has created its files.
fn limit_file_size() {
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: reads the given struct.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// The disk of temporary files, where a ring's buffered writes go to worker threads on ext4, and memory, where they are
/// made during the submission.
fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().unwrap()];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => folders.push(folder),
        Err(error) => skip(format_args!("/dev/shm: {error}")),
    }
    folders
}

fn assert_too_big<T>(result: Result<T, impl Into<io::Error>>, what: &str) {
    let error = result.map(drop).map_err(Into::into).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{what}: {error}");
}

async fn everything_beyond_is_refused(file: &File) {
    file.write_all_at(vec![1; 100], LIMIT - 100).await.unwrap();
    assert_too_big(file.write_at(vec![1; 100], LIMIT).await, "write");
    let several = vec![vec![1; 100], vec![2; 100]];
    assert_too_big(file.write_vectored_at(several, LIMIT).await, "vectored");
    assert_too_big(file.write_all_at(vec![1; 200], LIMIT - 100).await, "all");
    assert_too_big(file.set_len(LIMIT + 1).await, "truncate");
    match file.allocate(LIMIT, 4096, AllocateMode::Extend).await {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        result => assert_too_big(result, "allocate"),
    }
    assert_eq!(file.metadata().await.unwrap().len(), LIMIT);
}

/// Direct writes: a ring carries them out while it takes the entry, on the submitting thread.
async fn everything_beyond_is_refused_past_the_cache(file: &File) {
    let buf = |bytes| AlignedBuf::with_len(bytes, 4096);
    let at_limit = file.write_at(buf(4096), LIMIT).await;
    assert_too_big(at_limit, "direct");
    let (n, _) = file.write_at(buf(8192), LIMIT - 4096).await.unwrap();
    assert_eq!(n, 4096, "what is below the limit");
}

async fn check(engine: &Engine, folders: &[impl AsRef<Path>]) {
    for folder in folders {
        let file = engine.create(folder.as_ref().join("f")).await.unwrap();
        everything_beyond_is_refused(&file).await;
    }
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).create(true).direct(true);
    match engine
        .open_with(&direct, folders[0].as_ref().join("d"))
        .await
    {
        Ok(file) => everything_beyond_is_refused_past_the_cache(&file).await,
        Err(error) => skip(format_args!("direct: {error}")),
    }
}

#[test]
fn a_write_beyond_the_file_size_limit_is_efbig_on_every_engine_backend() {
    in_child(
        "fsize::a_write_beyond_the_file_size_limit_is_efbig_on_every_engine_backend",
        || {
            let folders = folders();
            limit_file_size();
            for backend in [Backend::Uring, Backend::Fallback] {
                let engine = match Engine::builder().backend(backend).build() {
                    Ok(engine) => engine,
                    Err(error) => {
                        skip(format_args!("{backend:?}: {error}"));
                        continue;
                    }
                };
                pollster::block_on(check(&engine, &folders));
                println!("{backend:?}");
                if backend == Backend::Uring {
                    let driver = engine.current_thread_driver().unwrap();
                    driver.block_on(check(&engine, &folders));
                    println!("current-thread driver");
                }
            }
        },
    );
}

#[test]
fn a_write_beyond_the_file_size_limit_is_efbig_on_every_runtime_backend() {
    in_child(
        "fsize::a_write_beyond_the_file_size_limit_is_efbig_on_every_runtime_backend",
        || {
            let folders: &'static [tempfile::TempDir] = folders().leak();
            limit_file_size();
            for backend in [annulus::Backend::Uring, annulus::Backend::Fallback] {
                let builder = Runtime::builder().backend(backend);
                let run = builder.block_on(async move {
                    for folder in folders {
                        let file = runtime::engine()
                            .create(folder.path().join("f"))
                            .await
                            .unwrap();
                        everything_beyond_is_refused(&file).await;
                    }
                });
                match run {
                    Ok(()) => println!("{backend:?}"),
                    Err(error) => skip(format_args!("{backend:?}: {error}")),
                }
            }
            folders
                .iter()
                .for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        },
    );
}

/// Returns whether SIGXFSZ is blocked on the calling thread, and whether one is pending.
fn signal_state() -> (bool, bool) {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let has = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let set = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
        set & 1 << (libc::SIGXFSZ - 1) != 0
    };
    (has("SigBlk:"), has("SigPnd:"))
}

#[test]
fn a_thread_lent_to_a_runtime_gets_its_signals_back() {
    in_child(
        "fsize::a_thread_lent_to_a_runtime_gets_its_signals_back",
        || {
            let folders = folders();
            let path = folders[0].path().join("f");
            limit_file_size();
            for backend in [annulus::Backend::Uring, annulus::Backend::Fallback] {
                let path = path.clone();
                let run = Runtime::builder().backend(backend).block_on(async move {
                    let mut file = std::fs::File::create(&path).unwrap();
                    // A task may also write without the library.
                    io::Seek::seek(&mut file, io::SeekFrom::Start(LIMIT)).unwrap();
                    assert_too_big(io::Write::write(&mut file, b"x"), "std's");
                    assert_eq!(signal_state(), (true, true));
                });
                if let Err(error) = run {
                    skip(format_args!("{backend:?}: {error}"));
                }
                assert_eq!(signal_state(), (false, false), "{backend:?}");
            }
            match Engine::builder().backend(Backend::Uring).build() {
                Ok(engine) => {
                    let driver = engine.current_thread_driver().unwrap();
                    driver.block_on(check(&engine, &folders));
                    assert_eq!(signal_state(), (false, false), "current-thread driver");
                }
                Err(error) => skip(format_args!("io_uring: {error}")),
            }
        },
    );
}
