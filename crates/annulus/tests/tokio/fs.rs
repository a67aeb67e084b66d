//! `annulus::tokio::fs` does what `tokio::fs` does, on io_uring and on blocking threads.

use std::cell::Cell;
use std::fs::{self as std_fs, Permissions};
use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, UNIX_EPOCH};

use annulus::tokio::fs;
use annulus::{Backend, Engine};
use annulus_testing::child_process::in_child;
use tempfile::TempDir;
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWrite, AsyncWriteExt, ReadBuf,
};

use crate::tokio_runtimes::{several, single};

/// Runs `body` with the default engine, and in another process on blocking threads, in runtimes of both kinds. `test`
/// is the name of the calling test.
fn on_each_engine(test: &str, body: impl AsyncFn(PathBuf)) {
    let run = || {
        for runtime in [single(), several(2)] {
            let dir = TempDir::new().unwrap();
            runtime.block_on(body(dir.path().to_owned()));
        }
    };
    in_child(&format!("fs::{test}"), || {
        let engine = Engine::builder().backend(Backend::Fallback);
        fs::set_engine(engine.build().unwrap()).unwrap();
        run();
    });
    run();
}

/// Waits for a condition.
async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

/// Polls once, and drops the future.
fn once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Compares a result with that of Tokio. `Err` for an error.
fn same<T>(what: &str, ours: io::Result<T>, theirs: io::Result<T>) {
    match (ours, theirs) {
        (Err(ours), Err(theirs)) => assert_eq!(
            (ours.kind(), ours.raw_os_error()),
            (theirs.kind(), theirs.raw_os_error()),
            "{what}: {ours}, Tokio: {theirs}"
        ),
        (ours, theirs) => panic!("{what}: {:?}, Tokio: {:?}", ours.err(), theirs.err()),
    }
}

#[test]
fn functions_on_paths_do_what_those_of_std_do() {
    on_each_engine("functions_on_paths_do_what_those_of_std_do", async |dir| {
        let path = |name: &str| dir.join(name);
        fs::write(path("a"), vec![7; 100_000]).await.unwrap();
        fs::write(path("a"), "text").await.unwrap();
        assert_eq!(std_fs::read(path("a")).unwrap(), b"text");
        for bytes in [0, 1, 20_000, 300_000] {
            let contents = vec![b'x'; bytes];
            std_fs::write(path("b"), &contents).unwrap();
            assert!(fs::read(path("b")).await.unwrap() == contents);
            assert_eq!(fs::read_to_string(path("b")).await.unwrap().len(), bytes);
            std_fs::set_permissions(path("b"), Permissions::from_mode(0o640)).unwrap();
            assert_eq!(fs::copy(path("b"), path("c")).await.unwrap(), bytes as u64);
            assert!(std_fs::read(path("c")).unwrap() == contents);
            let mode = std_fs::metadata(path("c")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o640);
        }
        let status = fs::read_to_string("/proc/self/status").await.unwrap();
        assert!(status.starts_with("Name:"));

        fs::rename(path("c"), path("b")).await.unwrap();
        assert!(!fs::try_exists(path("c")).await.unwrap());
        fs::hard_link(path("b"), path("d")).await.unwrap();
        fs::symlink("d", path("link")).await.unwrap();
        assert_eq!(fs::read_link(path("link")).await.unwrap(), Path::new("d"));
        let canonical = std_fs::canonicalize(path("d")).unwrap();
        assert_eq!(fs::canonicalize(path("./link")).await.unwrap(), canonical);
        fs::set_permissions(path("link"), Permissions::from_mode(0o600))
            .await
            .unwrap();

        for (one, other) in [
            (
                fs::metadata(path("link")).await,
                std_fs::metadata(path("link")),
            ),
            (
                fs::symlink_metadata(path("link")).await,
                std_fs::symlink_metadata(path("link")),
            ),
            (fs::metadata(&dir).await, std_fs::metadata(&dir)),
            (fs::metadata(".").await, std_fs::metadata(".")),
            (
                fs::metadata("/proc/self/exe").await,
                std_fs::metadata("/proc/self/exe"),
            ),
        ] {
            assert_eq!(
                format!("{:?}", one.unwrap()),
                format!("{:?}", other.unwrap())
            );
        }

        fs::remove_file(path("b")).await.unwrap();
        fs::create_dir(path("dir")).await.unwrap();
        fs::create_dir_all(path("dir/1/2/3")).await.unwrap();
        fs::create_dir_all(path("dir/1/2/3")).await.unwrap();
        fs::remove_dir(path("dir/1/2/3")).await.unwrap();
        fs::symlink(&dir, path("dir/1/link")).await.unwrap();
        fs::remove_dir_all(path("dir")).await.unwrap();
        let mut left: Vec<_> = names(&dir).await;
        left.sort();
        assert_eq!(left, ["a", "d", "link"]);
    });
}

async fn names(dir: &Path) -> Vec<String> {
    let mut entries = fs::read_dir(dir).await.unwrap();
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        names.push(entry.file_name().into_string().unwrap());
    }
    names
}

#[test]
fn errors_are_those_of_tokio() {
    on_each_engine("errors_are_those_of_tokio", async |dir| {
        let (none, below) = (&dir.join("missing"), &dir.join("file/below"));
        let (file, full) = (&dir.join("file"), &dir.join("full"));
        std_fs::write(file, b"\xff").unwrap();
        std_fs::create_dir_all(full.join("sub")).unwrap();
        let (nul, mode) = (Path::new("a\0b"), Permissions::from_mode(0o600));
        macro_rules! same {
            ($($name:ident($($argument:expr),*),)*) => {
                $(same(
                    stringify!($name($($argument),*)),
                    fs::$name($($argument),*).await,
                    tokio::fs::$name($($argument),*).await,
                );)*
            };
        }
        same! {
            read(none), read(&dir), read(below), read(nul),
            read_to_string(none), read_to_string(file),
            write(full, "x"), write(below, "x"), write(nul, "x"),
            copy(none, file), copy(full, none), copy(file, full), copy(nul, file),
            rename(none, file), rename(file, full), rename(full, file),
            remove_file(none), remove_file(full), remove_file(nul),
            remove_dir(none), remove_dir(file), remove_dir(full),
            remove_dir_all(none), remove_dir_all(file),
            create_dir(full), create_dir(below), create_dir_all(file), create_dir_all(below),
            metadata(none), metadata(below), metadata(nul), symlink_metadata(none),
            try_exists(below), try_exists(nul),
            set_permissions(none, mode.clone()), set_permissions(nul, mode.clone()),
            hard_link(none, file), hard_link(file, full), symlink(file, full), symlink(nul, none),
            read_link(file), read_link(none), canonicalize(none), canonicalize(nul),
        }
        same(
            "read_dir",
            fs::read_dir(file).await.map(drop),
            tokio::fs::read_dir(file).await.map(drop),
        );
        same(
            "File::open",
            fs::File::open(none).await.map(drop),
            tokio::fs::File::open(none).await.map(drop),
        );
        for set in [
            |options: &mut std_fs::OpenOptions| _ = options.create(true),
            |options: &mut std_fs::OpenOptions| _ = options.read(true).truncate(true),
            |options: &mut std_fs::OpenOptions| _ = options.append(true).truncate(true),
            |options: &mut std_fs::OpenOptions| _ = options.write(true).create_new(true),
        ] {
            let mut options = std_fs::OpenOptions::new();
            set(&mut options);
            let theirs = tokio::fs::OpenOptions::from(options.clone())
                .open(file)
                .await
                .map(drop);
            same(
                "open",
                fs::OpenOptions::from(options).open(file).await.map(drop),
                theirs,
            );
        }
        let error = fs::copy(file, file).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(std_fs::read(file).unwrap(), b"\xff", "not truncated");
    });
}

#[test]
fn options_open_as_those_of_std_do() {
    on_each_engine("options_open_as_those_of_std_do", async |dir| {
        let path = dir.join("f");
        let mut options = fs::OpenOptions::new();
        options
            .write(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        drop(options.open(&path).await.unwrap());
        let mode = std_fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::symlink(&path, dir.join("link")).await.unwrap();
        let error = options.open(dir.join("link")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));

        let mut std = std_fs::OpenOptions::new();
        std.append(true);
        let mut options = fs::OpenOptions::from(std);
        let mut file = options.read(true).open(&path).await.unwrap();
        file.write_all(b"ab").await.unwrap();
        file.rewind().await.unwrap();
        file.write_all(b"cd").await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(fs::read(&path).await.unwrap(), b"abcd");

        let mut new = fs::File::create_new(dir.join("new")).await.unwrap();
        new.write_all(b"ab").await.unwrap();
        new.rewind().await.unwrap();
        assert_eq!(new.read_u8().await.unwrap(), b'a');
        let error = fs::File::create_new(dir.join("new")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);

        let builder = &mut fs::DirBuilder::new();
        let below = dir.join("1/2");
        let error = builder.create(&below).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        builder
            .recursive(true)
            .mode(0o700)
            .create(&below)
            .await
            .unwrap();
        let mode = std_fs::metadata(&below).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    });
}

#[test]
fn a_listing_has_each_entry_once_although_futures_are_dropped() {
    on_each_engine(
        "a_listing_has_each_entry_once_although_futures_are_dropped",
        async |dir| {
            let expected: Vec<_> = (0..3000).map(|n| format!("{n:04}")).collect();
            for name in &expected {
                std_fs::write(dir.join(name), name).unwrap();
            }
            let mut entries = fs::read_dir(&dir).await.unwrap();
            let mut found = Vec::new();
            loop {
                let polled = match once(entries.next_entry()) {
                    Poll::Ready(entry) => entry,
                    Poll::Pending => entries.next_entry().await,
                };
                let Some(entry) = polled.unwrap() else { break };
                let name = entry.file_name().into_string().unwrap();
                assert_eq!(entry.path(), dir.join(&name));
                if name.ends_with("00") {
                    assert!(entry.file_type().await.unwrap().is_file());
                    assert_eq!(entry.metadata().await.unwrap().len(), 4);
                    use std::os::unix::fs::MetadataExt;
                    assert_eq!(entry.ino(), entry.metadata().await.unwrap().ino());
                }
                found.push(name);
            }
            assert!(entries.next_entry().await.unwrap().is_none());
            found.sort();
            assert!(found == expected, "{} entries", found.len());
        },
    );
}

/// The longest read or write of a step: more than a block.
const STEP_BYTES_MAX: usize = 300 << 10;

async fn read_the_same(file: &mut fs::File, std: &mut std_fs::File, random: &mut fastrand::Rng) {
    let mut buf = vec![0; random.usize(..STEP_BYTES_MAX)];
    let count = file.read(&mut buf).await.unwrap();
    let wanted = count.max(usize::from(!buf.is_empty() && count == 0));
    let mut expected = vec![0; wanted];
    let at = std.stream_position().unwrap();
    assert_eq!(std.read(&mut expected).unwrap(), count, "at {at}");
    assert!(buf[..count] == expected[..count], "{count} bytes at {at}");
}

async fn seek_the_same(file: &mut fs::File, std: &mut std_fs::File, random: &mut fastrand::Rng) {
    let by = random.i64(-200_000..600_000);
    let to = match random.u8(..3) {
        0 => SeekFrom::Start(by.unsigned_abs()),
        1 => SeekFrom::End(by / 4),
        _ => SeekFrom::Current(by / 10),
    };
    match (file.seek(to).await, std.seek(to)) {
        (Ok(one), Ok(other)) => assert_eq!(one, other, "{to:?}"),
        (Err(one), Err(other)) => assert_eq!(one.kind(), other.kind(), "{to:?}"),
        (one, other) => panic!("{to:?}: {one:?}, std: {other:?}"),
    }
}

/// Does the same with a file, with clones of it, and with a file of std.
async fn random_steps(dir: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let path = dir.join("f");
    let contents: Vec<u8> = (0..500_000).map(|_| random.u8(..)).collect();
    std_fs::write(&path, &contents).unwrap();
    let mut std = tempfile::tempfile().unwrap();
    std.write_all(&contents).unwrap();
    std.rewind().unwrap();
    let mut options = fs::OpenOptions::new();
    let mut files = vec![options.read(true).write(true).open(&path).await.unwrap()];
    for step in 0..300 {
        let nth = random.usize(..files.len());
        let handles = files.len();
        let file = &mut files[nth];
        match random.u8(..12) {
            0..3 => read_the_same(file, &mut std, &mut random).await,
            3..6 => {
                let bytes: Vec<u8> = (0..random.usize(..STEP_BYTES_MAX))
                    .map(|n| n as u8)
                    .collect();
                file.write_all(&bytes).await.unwrap();
                std.write_all(&bytes).unwrap();
                // So that the next step, of another clone, sees it.
                file.flush().await.unwrap();
            }
            6..8 => seek_the_same(file, &mut std, &mut random).await,
            8 => {
                let length = random.u64(..700_000);
                file.set_len(length).await.unwrap();
                std.set_len(length).unwrap();
            }
            9 => {
                let at = random.u64(..500_000);
                file.flush().await.unwrap();
                file.write_all_at("positional", at).await.unwrap();
                std.write_all_at(b"positional", at).unwrap();
                let read = file.read_exact_at(vec![0; 10], at).await.unwrap();
                assert_eq!(read, b"positional");
            }
            10 if handles < 3 => {
                let clone = file.try_clone().await.unwrap();
                files.push(clone);
            }
            _ => {
                let std = files.swap_remove(nth).into_std().await;
                files = vec![fs::File::from_std(std)];
            }
        }
        let length = files[0].metadata().await.unwrap().len();
        assert_eq!(length, std.metadata().unwrap().len(), "step {step}");
    }
    files[0].flush().await.unwrap();
    let mut expected = Vec::new();
    std.rewind().unwrap();
    std.read_to_end(&mut expected).unwrap();
    assert!(std_fs::read(&path).unwrap() == expected);
}

#[test]
fn random_steps_of_a_file_and_its_clones_are_those_of_std() {
    let seed =
        std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("repeat with SEED={seed}");
    on_each_engine(
        "random_steps_of_a_file_and_its_clones_are_those_of_std",
        async |dir| {
            random_steps(&dir, seed).await;
        },
    );
}

#[test]
fn a_first_read_takes_no_more_pages_than_it_asks_for() {
    on_each_engine(
        "a_first_read_takes_no_more_pages_than_it_asks_for",
        async |dir| {
            let path = dir.join("f");
            std_fs::write(&path, [b'a'; 20_000]).unwrap();
            let std = std_fs::File::options().write(true).open(&path).unwrap();
            let mut file = fs::File::open(&path).await.unwrap();
            let mut page = [0; 4096];
            for at in [0, 8192] {
                file.seek(SeekFrom::Start(at)).await.unwrap();
                file.read_exact(&mut page).await.unwrap();
                assert!(page == [b'a'; 4096]);
                // The change is behind the page that was read.
                std.write_all_at(b"b", at + 4096).unwrap();
                assert_eq!(file.read_u8().await.unwrap(), b'b', "at {at}");
            }
        },
    );
}

#[test]
fn the_position_passes_to_and_from_std() {
    on_each_engine("the_position_passes_to_and_from_std", async |dir| {
        let path = dir.join("f");
        std_fs::write(&path, "0123456789").unwrap();
        let mut std = std_fs::File::open(&path).unwrap();
        std.seek(SeekFrom::Start(2)).unwrap();
        let mut file = fs::File::from_std(std);
        assert_eq!(file.read_u8().await.unwrap(), b'2');
        // A child that inherits the descriptor goes on there.
        let mut inherited = std_fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(inherited.stream_position().unwrap(), 3);
        file.seek(SeekFrom::Current(2)).await.unwrap();
        let mut std = file.try_into_std().unwrap();
        let mut rest = String::new();
        std.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "56789");

        let mut file = fs::File::create(&path).await.unwrap();
        file.write_all(b"abc").await.unwrap();
        let mut std = file.into_std().await;
        std.write_all(b"def").unwrap();
        assert_eq!(std_fs::read(&path).unwrap(), b"abcdef");
    });
}

#[test]
fn clones_that_write_at_the_same_time_lose_nothing() {
    on_each_engine(
        "clones_that_write_at_the_same_time_lose_nothing",
        async |dir| {
            let file = fs::File::create(dir.join("f")).await.unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..4_u8 {
                let mut clone = file.try_clone().await.unwrap();
                tasks.spawn(async move {
                    for _ in 0..50 {
                        clone.write_all(&[task; 100]).await.unwrap();
                    }
                    clone.flush().await.unwrap();
                });
            }
            tasks.join_all().await;
            let bytes = std_fs::read(dir.join("f")).unwrap();
            assert_eq!(bytes.len(), 4 * 50 * 100);
            for task in 0..4 {
                assert_eq!(bytes.iter().filter(|&&byte| byte == task).count(), 50 * 100);
            }
        },
    );
}

#[test]
fn a_failed_write_is_reported_once_by_whichever_call_comes_next() {
    on_each_engine(
        "a_failed_write_is_reported_once_by_whichever_call_comes_next",
        async |dir| {
            let path = dir.join("f");
            std_fs::write(&path, "contents").unwrap();
            for by in 0..7 {
                let mut file = fs::File::open(&path).await.unwrap();
                file.seek(SeekFrom::Start(4)).await.unwrap();
                // Taken before its result is known, unless it fails immediately.
                let mut reported = file.write_all(b"no").await;
                if reported.is_ok() {
                    reported = match by {
                        0 => file.flush().await,
                        1 => file.shutdown().await,
                        2 => file.sync_all().await,
                        3 => file.sync_data().await,
                        4 => file.set_len(2).await,
                        5 => file.read_u8().await.map(drop),
                        _ => file.seek(SeekFrom::Start(0)).await.map(drop),
                    };
                }
                let error = reported.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{by}");
                file.flush().await.unwrap();
                let mut rest = String::new();
                file.read_to_string(&mut rest).await.unwrap();
                assert_eq!(rest, "ents", "{by}: behind the last byte that was written");
            }
            assert_eq!(std_fs::read(&path).unwrap(), b"contents");
        },
    );
}

#[test]
fn written_bytes_reach_the_file_without_a_further_call() {
    on_each_engine(
        "written_bytes_reach_the_file_without_a_further_call",
        async |dir| {
            for drops in [true, false] {
                let path = dir.join("f");
                let mut file = fs::File::create(&path).await.unwrap();
                let bytes = vec![7; 700_000];
                for piece in bytes.chunks(10_000) {
                    file.write_all(piece).await.unwrap();
                }
                let kept = (!drops).then_some(file);
                let is_whole = || std_fs::read(&path).unwrap() == bytes;
                eventually("all bytes are in the file", is_whole).await;
                drop(kept);
            }
        },
    );
}

#[test]
fn a_dropped_write_takes_all_or_nothing() {
    on_each_engine("a_dropped_write_takes_all_or_nothing", async |dir| {
        let mut file = fs::File::create(dir.join("f")).await.unwrap();
        let mut expected = Vec::new();
        for n in 0..200_u8 {
            let bytes = [n; 40_000];
            let polled = once(poll_fn(|context| {
                Pin::new(&mut file).poll_write(context, &bytes)
            }));
            if let Poll::Ready(count) = polled {
                expected.extend_from_slice(&bytes[..count.unwrap()]);
            }
        }
        file.flush().await.unwrap();
        assert!(std_fs::read(dir.join("f")).unwrap() == expected);
        // A seek that was begun takes effect with the next call.
        Pin::new(&mut file).start_seek(SeekFrom::Start(3)).unwrap();
        assert_eq!(file.stream_position().await.unwrap(), 3);
    });
}

#[test]
fn a_pipe_is_read_and_written_in_order() {
    on_each_engine("a_pipe_is_read_and_written_in_order", async |dir| {
        let path = dir.join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let written = vec![7; 300_000];
        let (bytes, to) = (written.clone(), path.clone());
        let writer = tokio::spawn(async move {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).open(to).await.unwrap();
            file.write_all(&bytes).await.unwrap();
            file.flush().await.unwrap();
            let error = file.seek(SeekFrom::Start(0)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
        });
        let mut file = fs::File::open(&path).await.unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).await.unwrap();
        assert!(read == written, "{} bytes", read.len());
        let error = file.seek(SeekFrom::Current(0)).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESPIPE));
        writer.await.unwrap();
    });
}

#[test]
fn times_permissions_and_lengths_are_set_on_the_open_file() {
    on_each_engine(
        "times_permissions_and_lengths_are_set_on_the_open_file",
        async |dir| {
            let path = dir.join("f");
            let mut file = fs::File::create(&path).await.unwrap();
            file.write_all(b"0123456789").await.unwrap();
            fs::rename(&path, dir.join("renamed")).await.unwrap();
            file.set_permissions(Permissions::from_mode(0o604))
                .await
                .unwrap();
            let time = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            file.set_modified(time).await.unwrap();
            file.sync_all().await.unwrap();
            let metadata = file.metadata().await.unwrap();
            assert_eq!(metadata.len(), 10);
            assert_eq!(metadata.permissions().mode() & 0o777, 0o604);
            assert_eq!(metadata.modified().unwrap(), time);
            file.set_len(4).await.unwrap();
            file.write_all(b"x").await.unwrap();
            file.sync_data().await.unwrap();
            let expected = b"0123\0\0\0\0\0\0x";
            assert_eq!(std_fs::read(dir.join("renamed")).unwrap(), expected);
        },
    );
}

#[test]
fn a_buffer_size_limits_each_read_and_write() {
    on_each_engine("a_buffer_size_limits_each_read_and_write", async |dir| {
        let path = dir.join("f");
        let mut file = fs::File::create(&path).await.unwrap();
        assert_eq!(file.max_buf_size(), 2 << 20);
        file.set_max_buf_size(3);
        assert_eq!(file.write(b"0123456789").await.unwrap(), 3);
        file.write_all(b"3456789").await.unwrap();
        file.flush().await.unwrap();
        let mut file = fs::File::open(&path).await.unwrap();
        // Limits the use of a block, too.
        assert_eq!(file.read_u8().await.unwrap(), b'0');
        file.set_max_buf_size(4);
        let mut buf = [0; 10];
        assert_eq!(file.read(&mut buf).await.unwrap(), 4);
        assert_eq!(file.try_clone().await.unwrap().max_buf_size(), 4);
        assert_eq!(&buf[..4], b"1234");
    });
}

#[test]
fn a_file_outlives_its_runtime() {
    on_each_engine("a_file_outlives_its_runtime", async |dir| {
        let path = dir.join("f");
        let bytes = vec![7; 500_000];
        let (to, written) = (path.clone(), bytes.clone());
        let first = std::thread::spawn(move || {
            single().block_on(async {
                let mut file = fs::File::create(to).await.unwrap();
                file.write_all(&written).await.unwrap();
                file
            })
        });
        let mut file = first.join().unwrap();
        // Here the runtime with the ring of the write is gone.
        file.write_all(b"end").await.unwrap();
        file.flush().await.unwrap();
        let expected = [&bytes[..], b"end"].concat();
        assert!(std_fs::read(&path).unwrap() == expected);
        // And without any runtime.
        let read = std::thread::spawn(move || pollster::block_on(fs::read(path)));
        assert!(read.join().unwrap().unwrap() == expected);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn calls_on_cached_paths_use_the_calling_thread_from_the_first_on() {
    let test = "fs::calls_on_cached_paths_use_the_calling_thread_from_the_first_on";
    in_child(test, || {
        let dir = TempDir::new().unwrap();
        let path = dir.path().canonicalize().unwrap().join("f");
        std_fs::write(&path, "0123").unwrap();
        // Where pages are larger than blocks, the page has only the block that was written, until a read needs more.
        // Until then a longer read that must not block fails.
        let file = std_fs::File::open(&path).unwrap();
        assert_eq!(file.read_at(&mut vec![0; 128 << 10], 0).unwrap(), 4);
        // Puts it into the cache of paths.
        let missing = path.with_file_name("missing");
        assert!(!missing.exists());
        single().block_on(async {
            let before = fs::engine().metrics();
            for _ in 0..100 {
                assert_eq!(fs::metadata(&path).await.unwrap().len(), 4);
                assert!(!fs::try_exists(&missing).await.unwrap());
                let metadata = fs::engine().metadata(&path).await;
                assert_eq!(metadata.unwrap().len(), 4);
                assert_eq!(fs::read(&path).await.unwrap(), b"0123");
            }
            let after = fs::engine().metrics();
            // Opens learn the same.
            drop(fs::File::open(&path).await.unwrap());
            let opened = fs::engine().metrics().submitted;
            drop(fs::File::open(&path).await.unwrap());
            if fs::engine().metrics().submitted > opened {
                return annulus_testing::skip::skip(
                    "the files are on no file system that is known to be local",
                );
            }
            let here = after.fast_path - before.fast_path;
            assert_eq!((here, after.submitted), (400, before.submitted));
        });
    });
}

/// Compiles if the value is `Send` and `Sync`, as those of Tokio are.
fn is_shared<T: Send + Sync>(_: T) {}

#[test]
fn futures_and_types_are_send_and_sync() {
    let path = "path";
    is_shared(fs::canonicalize(path));
    is_shared(fs::copy(path, path));
    is_shared(fs::create_dir(path));
    is_shared(fs::create_dir_all(path));
    is_shared(fs::hard_link(path, path));
    is_shared(fs::metadata(path));
    is_shared(fs::read(path));
    is_shared(fs::read_dir(path));
    is_shared(fs::read_link(path));
    is_shared(fs::read_to_string(path));
    is_shared(fs::remove_dir(path));
    is_shared(fs::remove_dir_all(path));
    is_shared(fs::remove_file(path));
    is_shared(fs::rename(path, path));
    is_shared(fs::set_permissions(path, Permissions::from_mode(0o600)));
    is_shared(fs::symlink(path, path));
    is_shared(fs::symlink_metadata(path));
    is_shared(fs::try_exists(path));
    is_shared(fs::write(path, "text"));
    is_shared(fs::File::open(path));
    is_shared(fs::File::create(path));
    is_shared(fs::OpenOptions::new().open(path));
    is_shared(fs::DirBuilder::new().create(path));
    fn of_file(file: &fs::File) {
        is_shared(file);
        is_shared(file.sync_all());
        is_shared(file.set_len(0));
        is_shared(file.metadata());
        is_shared(file.try_clone());
        is_shared(file.write_all_at("text", 0));
    }
    fn of_listing(entries: &mut fs::ReadDir, entry: &fs::DirEntry) {
        is_shared(entries.next_entry());
        is_shared(entry.metadata());
        is_shared(entry.file_type());
    }
    let _ = (of_file, of_listing);
}

/// Returns the most `done` that a poll of `task` adds.
async fn most_in_a_poll(done: &Cell<usize>, task: impl Future<Output = ()>) -> usize {
    let (mut task, mut most) = (pin!(task), 0);
    poll_fn(|context| {
        let before = done.get();
        let polled = task.as_mut().poll(context);
        most = most.max(done.get() - before);
        polled
    })
    .await;
    most
}

#[test]
fn a_task_that_only_reads_or_writes_lets_others_run() {
    on_each_engine(
        "a_task_that_only_reads_or_writes_lets_others_run",
        async |dir| {
            let path = dir.join("data");
            for (bytes, writes) in [(1, 20_000), (100, 20_000), (100_000, 200)] {
                let mut file = fs::File::create(&path).await.unwrap();
                let (data, done) = (vec![7; bytes], Cell::new(0));
                let task = async {
                    for _ in 0..writes {
                        file.write_all(&data).await.unwrap();
                        done.set(done.get() + 1);
                    }
                    file.flush().await.unwrap();
                };
                let most = most_in_a_poll(&done, task).await;
                // 1 MiB, in which short writes count for more, with one that began before and one that goes beyond.
                assert!(
                    most <= (1 << 20) / (bytes + 256) + 2,
                    "{most} writes of {bytes}"
                );
                assert_eq!(
                    std_fs::metadata(&path).unwrap().len(),
                    (bytes * writes) as u64
                );
            }
            let mut file = fs::File::open(&path).await.unwrap();
            let done = Cell::new(0);
            let task = async {
                for _ in 0..20_000 {
                    assert_eq!(file.read_u8().await.unwrap(), 7);
                    done.set(done.get() + 1);
                }
            };
            let most = most_in_a_poll(&done, task).await;
            assert!(most <= 4097, "{most} reads");
        },
    );
}

/// Polls a clone of a file where it wakes.
struct PollsClone {
    clone: Mutex<fs::File>,
    polls: AtomicU32,
}

impl Wake for PollsClone {
    fn wake(self: Arc<Self>) {
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        // The poll of the clone may wake the other file's task, which is this one.
        if let Ok(mut clone) = self.clone.try_lock() {
            let mut context = Context::from_waker(Waker::noop());
            let _ = Pin::new(&mut *clone).poll_read(&mut context, &mut buf);
            self.polls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_waker_may_poll_a_clone_of_the_file_whose_poll_calls_it() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("f");
        std_fs::write(&path, vec![7; 1 << 20]).unwrap();
        let (mut file, clone) = pollster::block_on(async {
            let file = fs::File::open(&path).await.unwrap();
            let clone = file.try_clone().await.unwrap();
            (file, clone)
        });
        let wake = Arc::new(PollsClone {
            clone: Mutex::new(clone),
            polls: AtomicU32::new(0),
        });
        let waker = Waker::from(Arc::clone(&wake));
        let mut context = Context::from_waker(&waker);
        // Data in the page cache is ready, until the task has to yield: its waker is called inside of the poll.
        while wake.polls.load(Ordering::Relaxed) == 0 {
            let mut bytes = vec![0; 16 << 10];
            let mut buf = ReadBuf::new(&mut bytes);
            let _ = Pin::new(&mut file).poll_read(&mut context, &mut buf);
        }
        done.send(()).unwrap();
    });
    let deadlock = ended.recv_timeout(Duration::from_secs(60));
    assert!(deadlock.is_ok(), "the poll waits for itself");
}

#[test]
fn a_clone_that_waits_for_its_turn_is_woken() {
    // Each thread polls its clone; a read takes the next byte of all.
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f");
    std_fs::write(&path, (0..=255).cycle().take(4096).collect::<Vec<u8>>()).unwrap();
    let file = pollster::block_on(fs::File::open(&path)).unwrap();
    let read = |mut file: fs::File| {
        pollster::block_on(async {
            let mut sum = 0;
            for _ in 0..1024 {
                sum += u64::from(file.read_u8().await.unwrap());
            }
            sum
        })
    };
    let clones = (0..4).map(|_| pollster::block_on(file.try_clone()).unwrap());
    let clones: Vec<_> = clones.collect();
    let threads: Vec<_> = (clones.into_iter())
        .map(|clone| std::thread::spawn(move || read(clone)))
        .collect();
    let sum: u64 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert_eq!(sum, 4096 / 256 * (0..=255).sum::<u64>());
}
