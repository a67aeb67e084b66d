//! Invalid calls fail: the errno is kept, the buffer is given back, and nothing is created or destroyed.

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::process::Command;

#[cfg(not(annulus_portable))]
use annulus::fs::{CachedReads, Merge};
use annulus::{BufError, File, IoBuf, OpenOptions};
use annulus_testing::skip::{root_or_skip, skip};

use crate::fixtures::{Fixture, bytes, for_each_backend};

#[track_caller]
fn errno<T: Debug>(result: io::Result<T>, expected: i32) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(expected), "{error}");
}

/// Checks the error, and returns the buffer that came back with it.
#[track_caller]
fn errno_buf<T: Debug, B: Debug>(result: Result<T, BufError<B>>, expected: i32) -> B {
    let error = result.unwrap_err();
    assert_eq!(error.error().raw_os_error(), Some(expected), "{error}");
    error.into_buf().unwrap()
}

#[track_caller]
fn invalid<T: Debug, B>(result: Result<T, BufError<B>>) -> B {
    let error = result.unwrap_err();
    assert_eq!(error.error().kind(), ErrorKind::InvalidInput, "{error}");
    error.into_buf().unwrap()
}

#[test]
fn a_missing_file_is_enoent_and_is_not_created() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let gone = fixture.path("gone");
        errno(engine.open(&gone).await, libc::ENOENT);
        let mut options = OpenOptions::new();
        options.write(true).truncate(true);
        errno(engine.open_with(&options, &gone).await, libc::ENOENT);
        errno(engine.metadata(&gone).await, libc::ENOENT);
        errno(engine.symlink_metadata(&gone).await, libc::ENOENT);
        errno(engine.remove_file(&gone).await, libc::ENOENT);
        errno(engine.remove_dir(&gone).await, libc::ENOENT);
        errno(engine.read_dir(&gone).await, libc::ENOENT);
        errno(engine.create(gone.join("f")).await, libc::ENOENT);
        errno(engine.create_dir(gone.join("d")).await, libc::ENOENT);
        errno(engine.open("").await, libc::ENOENT);
        assert!(fixture.names("").is_empty());
        fixture.put("f", b"x");
        let below = fixture.path("f/below");
        errno(engine.open(&below).await, libc::ENOTDIR);
        errno(engine.create(&below).await, libc::ENOTDIR);
        assert_eq!(fixture.contents("f").unwrap(), b"x");
    });
}

#[test]
fn a_name_that_is_too_long_is_refused_by_the_kernel() {
    for_each_backend(async |fixture| {
        if fixture.machine_has("longest name") {
            let path = fixture.path(&"x".repeat(300));
            errno(fixture.engine.create(&path).await, libc::ENAMETOOLONG);
            let long = "d/".repeat(3000);
            errno(fixture.engine.open(long).await, libc::ENAMETOOLONG);
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_directory_can_be_opened_but_not_read_or_written() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        let dir = engine.open(fixture.path("d")).await.unwrap();
        for _ in 0..2 {
            let buf = errno_buf(dir.read_at(vec![7; 9], 0).await, libc::EISDIR);
            assert_eq!(buf, [7; 9]);
        }
        errno_buf(dir.read_exact_at(vec![7; 9], 0).await, libc::EISDIR);
        let bufs = vec![vec![0; 9]; 2];
        errno_buf(dir.read_vectored_at(bufs, 0).await, libc::EISDIR);
        errno(dir.read_into(&mut [0; 9], 0).await, libc::EISDIR);
        for result in dir.read_many_at((0..5).map(|_| (vec![0; 9], 0))).await {
            errno_buf(result, libc::EISDIR);
        }
        let reads = (0..5).map(|_| (vec![0; 9], 0));
        for result in dir
            .read_many_at(reads)
            .merge(annulus::fs::Merge::default())
            .await
        {
            errno_buf(result, libc::EISDIR);
        }
        errno_buf(dir.write_at("x", 0).await, libc::EBADF);
        errno(engine.create(fixture.path("d")).await, libc::EISDIR);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn offsets_that_no_file_has_are_refused_with_the_buffer() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        for offset in [i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 1, u64::MAX] {
            assert_eq!(invalid(file.read_at(vec![7; 9], offset).await), [7; 9]);
            invalid(file.read_exact_at(vec![7; 9], offset).await);
            assert_eq!(invalid(file.write_at("x", offset).await), "x");
            invalid(file.write_all_at("x", offset).await);
            invalid(file.write_all_durable_at("x", offset).await);
            invalid(file.read_vectored_at(vec![vec![0; 9]], offset).await);
            invalid(file.write_vectored_at(vec!["x"], offset).await);
            let into = file.read_into(&mut [0; 9], offset).await;
            assert_eq!(into.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        let text = file.read_at(vec![0; 9], u64::MAX).await.unwrap_err();
        let text = text.to_string();
        assert!(
            text.contains("9 bytes at offset 18446744073709551615"),
            "{text}"
        );
        file.set_len(u64::MAX).await.unwrap_err();
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
    });
}

#[test]
fn a_path_with_a_nul_byte_names_nothing() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("a", b"kept");
        let bad = fixture.path("a\0b");
        let good = fixture.path("a");
        let kinds = [
            engine.open(&bad).await.unwrap_err().kind(),
            engine.create(&bad).await.unwrap_err().kind(),
            engine.metadata(&bad).await.unwrap_err().kind(),
            engine.symlink_metadata(&bad).await.unwrap_err().kind(),
            engine.rename(&bad, &good).await.unwrap_err().kind(),
            engine.rename(&good, &bad).await.unwrap_err().kind(),
            engine.remove_file(&bad).await.unwrap_err().kind(),
            engine.remove_dir(&bad).await.unwrap_err().kind(),
            engine.create_dir(&bad).await.unwrap_err().kind(),
            engine.read_dir(&bad).await.unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidInput; 10]);
        assert_eq!(fixture.names(""), ["a"]);
        assert_eq!(fixture.contents("a").unwrap(), b"kept");
    });
}

/// A ring would ignore the offsets, and read or write the pipe.
#[cfg(not(annulus_portable))]
#[test]
fn transfers_on_a_pipe_fail_because_it_has_no_offsets() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("pipes") {
            return;
        }
        let path = fixture.path("pipe");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let mut options = OpenOptions::new();
        let opened = fixture
            .engine
            .open_with(options.read(true).write(true), &path);
        let std = std::fs::File::options().read(true).write(true).open(&path);
        let mut pipe = std.as_ref().unwrap();
        let files = [
            opened.await.unwrap(),
            File::from_std(std.as_ref().unwrap().try_clone().unwrap(), &fixture.engine).unwrap(),
        ];
        for (file, cached) in files
            .iter()
            .flat_map(|file| [CachedReads::Always, CachedReads::Never].map(|cached| (file, cached)))
        {
            file.set_cached_reads(cached);
            pipe.write_all(b"stays").unwrap();
            errno_buf(file.write_at(vec![1; 9], 0).await, libc::ESPIPE);
            errno_buf(file.write_vectored_at(vec!["x"], 0).await, libc::ESPIPE);
            errno_buf(file.read_at(vec![0; 9], 0).await, libc::ESPIPE);
            errno_buf(
                file.read_vectored_at(vec![vec![0; 9]], 0).await,
                libc::ESPIPE,
            );
            errno(file.read_into(&mut [0; 9], 0).await, libc::ESPIPE);
            for result in file.read_many_at((0..9).map(|_| (vec![0; 9], 0))).await {
                errno_buf(result, libc::ESPIPE);
            }
            let mut read = [0; 9];
            assert_eq!(
                pipe.read(&mut read).unwrap(),
                5,
                "nothing was read or written"
            );
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn the_wrong_access_is_ebadf_and_changes_nothing() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 1000);
        fixture.put("f", &contents);
        let file = fixture.engine.open(fixture.path("f")).await.unwrap();
        assert_eq!(errno_buf(file.write_at("x", 0).await, libc::EBADF), "x");
        errno_buf(file.write_all_at("x", 0).await, libc::EBADF);
        errno_buf(file.write_all_durable_at("x", 0).await, libc::EBADF);
        errno_buf(file.write_vectored_all_at(vec!["x"], 0).await, libc::EBADF);
        errno(file.set_len(0).await, libc::EINVAL);
        let punched = file.allocate(0, 1000, annulus::fs::AllocateMode::PunchHole);
        errno(punched.await, libc::EBADF);
        let mut options = OpenOptions::new();
        let options = options.write(true);
        let file = fixture.engine.open_with(options, fixture.path("f"));
        let file = file.await.unwrap();
        assert_eq!(
            errno_buf(file.read_at(vec![7; 9], 0).await, libc::EBADF),
            [7; 9]
        );
        errno_buf(file.read_exact_at(vec![7; 9], 0).await, libc::EBADF);
        errno_buf(
            file.read_vectored_at(vec![vec![0; 9]], 0).await,
            libc::EBADF,
        );
        errno(file.read_into(&mut [0; 9], 0).await, libc::EBADF);
        for result in file.read_many_at((0..9).map(|_| (vec![0; 9], 0))).await {
            errno_buf(result, libc::EBADF);
        }
        assert_eq!(fixture.contents("f").unwrap(), contents);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_device_that_is_always_full_gives_enospc_and_the_buffer_back() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("devices") {
            return;
        }
        let mut options = OpenOptions::new();
        let file = fixture.engine.open_with(options.write(true), "/dev/full");
        let file = file.await.unwrap();
        let buf = errno_buf(file.write_at(vec![7; 100], 0).await, libc::ENOSPC);
        assert_eq!(buf, [7; 100]);
        let bufs = vec![vec![7; 100]; 3];
        let bufs = errno_buf(file.write_vectored_all_at(bufs, 0).await, libc::ENOSPC);
        assert_eq!(bufs.len(), 3);
    });
}

/// A file system in memory with space for 16 pages; dropping it unmounts it.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Small> {
        if !root_or_skip("mounting a small file system") {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
        match mount.arg(dir.path()).status() {
            Ok(status) if status.success() => Some(Small(dir)),
            other => {
                skip(format_args!("a small tmpfs can't be mounted: {other:?}"));
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily, because a failing test may still have files open.
        let status = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}

#[cfg(not(annulus_portable))]
async fn fills_up(fixture: &Fixture, small: &Small) {
    let path = small.path().join("f");
    let file = fixture.engine.create(&path).await.unwrap();
    let contents = bytes(2, 1 << 20);
    let result = file.write_all_at(contents.clone(), 0).await;
    let back = errno_buf(result, libc::ENOSPC);
    assert!(back == contents, "the buffer is as it was given");
    let written = std::fs::read(&path).unwrap();
    assert!(written.len() <= 64 << 10 && contents.starts_with(&written));
    errno_buf(file.write_at("x", 1 << 20).await, libc::ENOSPC);
    let parts = vec![vec![1; 100_000]; 2];
    errno_buf(
        file.write_vectored_all_at(parts, 1 << 20).await,
        libc::ENOSPC,
    );
    let grown = file.allocate(0, 1 << 20, annulus::fs::AllocateMode::Extend);
    errno(grown.await, libc::ENOSPC);
    // With free space again, everything works.
    file.set_len(0).await.unwrap();
    file.write_all_at(vec![3; 4096], 0).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), [3; 4096]);
}

#[cfg(not(annulus_portable))]
#[test]
fn a_full_file_system_gives_enospc_and_the_buffer_back() {
    let Some(small) = Small::mount() else {
        return;
    };
    for_each_backend(async |fixture| {
        if fixture.machine_has("mounts; its own full disk has a test of its own") {
            fills_up(fixture, &small).await;
        }
    });
}

#[cfg(feature = "test-util")]
#[test]
fn a_full_simulated_disk_gives_enospc_and_the_buffer_back() {
    use annulus::sim::{Sim, SimConfig};
    let sim = Sim::new(SimConfig::new(3).capacity_bytes(64 << 10));
    sim.run(async |engine| {
        let file = engine.create("/f").await.unwrap();
        let contents = bytes(2, 1 << 20);
        let back = errno_buf(file.write_all_at(contents.clone(), 0).await, libc::ENOSPC);
        assert!(back == contents);
        assert!(contents.starts_with(&sim.contents("/f").unwrap()));
        file.set_len(0).await.unwrap();
        file.write_all_at("room again", 0).await.unwrap();
    });
    assert_eq!(sim.contents("/f").unwrap(), b"room again");
}

/// A result of 0 means the end of the file, so a read without space for data is an error.
#[cfg(not(annulus_portable))]
#[test]
fn a_read_into_a_buffer_without_space_is_refused_at_any_offset() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        for offset in [1, 99] {
            invalid(file.read_at(Vec::new(), offset).await);
            invalid(file.read_exact_at(Vec::new(), offset).await);
            let part = invalid(file.read_at(vec![1, 2, 3].subslice(2..2), offset).await);
            assert_eq!(part.into_inner(), [1, 2, 3]);
            invalid(file.read_vectored_at(vec![vec![], vec![]], offset).await);
            invalid(file.read_vectored_exact_at(vec![vec![]], offset).await);
            invalid(file.read_vectored_at(Vec::<Vec<u8>>::new(), offset).await);
            let error = file.read_into(&mut [], offset).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let reads = || file.read_many_at([(vec![], offset), (vec![0; 3], 0)]);
            for results in [reads().await, reads().merge(Merge::default()).await] {
                let [empty, whole] = results.try_into().unwrap();
                invalid(empty);
                assert_eq!(whole.unwrap(), (3, b"abc".to_vec()));
            }
        }
        // One buffer with space is enough.
        let bufs = vec![vec![], vec![0; 2]];
        let (bytes, bufs) = file.read_vectored_at(bufs, 1).await.unwrap();
        assert_eq!((bytes, &bufs[1][..]), (2, &b"bc"[..]));
    });
}
