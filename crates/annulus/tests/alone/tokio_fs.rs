//! The engine of the process behind `annulus::tokio::fs`: forks, and the end of the process.
#![allow(unsafe_code)]

use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;

use annulus::tokio::fs;
use annulus::{Backend, Engine, EngineError};
use annulus_testing::child_process::{in_child, in_fork};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

/// Returns a path that the test and its child process share, and whether this is the child.
fn shared_path(test: &str) -> (PathBuf, bool) {
    let is_child = std::env::var_os("ANNULUS_TEST_CHILD").is_some();
    let owner = match is_child {
        true => std::os::unix::process::parent_id(),
        false => std::process::id(),
    };
    let name = format!("annulus-{test}-{owner}");
    (std::env::temp_dir().join(name), is_child)
}

/// The file that tells that the process ends.
static ENDS: OnceLock<PathBuf> = OnceLock::new();

extern "C" fn tell_the_end() {
    if let Some(path) = ENDS.get() {
        let _ = std::fs::write(path, "");
    }
}

#[test]
fn the_end_of_the_process_waits_for_written_bytes() {
    const BYTES: usize = 1_000_000;
    let (fifo, is_child) = shared_path("exit");
    let returned = fifo.with_extension("returned");
    let reader = (!is_child).then(|| {
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        let (fifo, returned) = (fifo.clone(), returned.clone());
        std::thread::spawn(move || {
            let mut pipe = std::fs::File::open(fifo).unwrap();
            // A pipe holds 64 KiB: the others wait until the child ends.
            while !returned.exists() {
                std::thread::yield_now();
            }
            let mut read = Vec::new();
            pipe.read_to_end(&mut read).unwrap();
            read
        })
    });
    in_child(
        "tokio_fs::the_end_of_the_process_waits_for_written_bytes",
        || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut pipe = fs::File::create(&fifo).await.unwrap();
                pipe.write_all(&vec![7; BYTES]).await.unwrap();
            });
            drop(runtime);
            ENDS.set(returned.clone()).unwrap();
            // Runs before the handler of the library, which the write has added.
            // SAFETY: the function expects nothing, and uses only a path that stays.
            assert_eq!(unsafe { libc::atexit(tell_the_end) }, 0);
        },
    );
    if let Some(reader) = reader {
        let read = reader.join().unwrap();
        let _ = (std::fs::remove_file(&fifo), std::fs::remove_file(&returned));
        assert!(read == [7; BYTES], "{} bytes", read.len());
    }
}

#[test]
fn a_forked_child_starts_its_own_engine() {
    in_child("tokio_fs::a_forked_child_starts_its_own_engine", || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
        let mut file = runtime.block_on(async {
            fs::write(&path, "contents").await.unwrap();
            let mut file = fs::File::options()
                .read(true)
                .write(true)
                .open(&path)
                .await
                .unwrap();
            file.write_all(b"parents_").await.unwrap();
            file.flush().await.unwrap();
            file
        });
        let child = || {
            pollster::block_on(async {
                let error = file.sync_all().await.unwrap_err();
                assert_eq!(
                    EngineError::of(&error),
                    Some(EngineError::Forked),
                    "{error}"
                );
                assert_eq!(fs::read(&path).await.unwrap(), b"parents_");
                fs::write(dir.path().join("child"), "child").await.unwrap();
                let mut file = fs::File::open(&path).await.unwrap();
                assert_eq!(file.read_u8().await.unwrap(), b'p');
                let again = Engine::builder()
                    .backend(Backend::Fallback)
                    .build()
                    .unwrap();
                assert!(fs::set_engine(again).is_err(), "the child has one already");
            });
        };
        in_fork(child);
        // One level deeper.
        in_fork(|| in_fork(child));
        // The parent's goes on.
        runtime.block_on(async {
            file.write_all(b"go on").await.unwrap();
            file.flush().await.unwrap();
            assert_eq!(fs::read(&path).await.unwrap(), b"parents_go on");
            assert_eq!(fs::read(dir.path().join("child")).await.unwrap(), b"child");
        });
    });
}
