//! Files on a local file system: brief calls are made on the caller's thread, without a driver.

use std::os::unix::fs::MetadataExt;
use std::task::Poll;

use annulus::OpenOptions;
use annulus::fs::{CachedReads, Closed};
use annulus::metrics::Metrics;
use annulus_testing::skip::skip;

use crate::fixtures::{Fixture, for_each_backend};
use crate::wait::eventually;

const OPENS: u64 = 20;

/// Returns whether the directory is on the mount of the root directory, that mount is local, and the kernel tells
/// mounts apart.
pub(crate) fn is_local(fixture: &Fixture) -> bool {
    if !fixture.machine_has("mounts") {
        return false;
    }
    let local = ["ext2/ext3", "xfs", "btrfs", "f2fs", "tmpfs"];
    let stat = std::process::Command::new("stat")
        .args(["-f", "-c", "%T", "/"])
        .output();
    let kind = String::from_utf8(stat.unwrap().stdout).unwrap();
    let device = |path| std::fs::metadata(path).unwrap().dev();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut release = release
        .split(['.', '-'])
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (release.next().unwrap_or(0), release.next().unwrap_or(0));
    let is_local = local.contains(&kind.trim())
        && device(fixture.path("")) == device("/".into())
        && version >= (6, 8);
    if !is_local {
        skip(
            "needs Linux 6.8, and a local file system with the root directory and the temporary files",
        );
    }
    is_local
}

/// Opens files until the engine knows the mounts.
pub(crate) async fn warm_up(fixture: &Fixture) {
    fixture.put("f", b"contents");
    for _ in 0..3 {
        let file = fixture.engine.open(fixture.path("f")).await.unwrap();
        file.read_at(vec![0; 8], 0).await.unwrap();
        file.close().await.unwrap();
    }
}

#[test]
fn a_cached_file_is_opened_queried_read_and_closed_without_a_driver() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        let use_file = async {
            for _ in 0..OPENS {
                let file = fixture.engine.open(fixture.path("f")).await.unwrap();
                assert_eq!(file.metadata().await.unwrap().len(), 8);
                // The end of the file is found without a driver, too.
                let (n, read) = file.read_at(vec![0; 20], 0).await.unwrap();
                assert_eq!((n, &read[..8]), (8, &b"contents"[..]));
                assert_eq!(file.close().await.unwrap(), Closed::Now);
                let missing = fixture.engine.open(fixture.path("missing")).await;
                assert_eq!(missing.unwrap_err().raw_os_error(), Some(libc::ENOENT));
            }
        };
        let (counts, ()) = fixture.counts(use_file).await;
        assert_eq!(fixture.descriptors("f"), 0);
        // The kernel does not know at first that a name does not exist, and may forget names.
        let (brief, others) = (counts.fast_path, counts.completed);
        assert!(
            others <= 2 && brief + others == 5 * OPENS,
            "{brief}, {others}"
        );
    });
}

#[test]
fn a_file_that_may_have_been_written_is_closed_by_a_driver() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        for _ in 0..OPENS {
            let file = fixture.engine.open_with(&options, fixture.path("f")).await;
            let file = file.unwrap();
            let (counts, closed) = fixture.counts(file.close()).await;
            assert_eq!(closed.unwrap(), Closed::Now);
            assert_eq!((counts.fast_path, counts.completed), (0, 1));
        }
    });
}

#[test]
fn the_last_close_of_a_file_without_a_name_is_made_by_a_blocking_thread() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        let mut both = OpenOptions::new();
        both.read(true).write(true);
        for options in [OpenOptions::new().read(true), &mut both] {
            fixture.put("unlinked", b"contents");
            let file = fixture.engine.open_with(options, fixture.path("unlinked"));
            let file = file.await.unwrap();
            std::fs::remove_file(fixture.path("unlinked")).unwrap();
            let (counts, closed) = fixture.counts(file.close()).await;
            assert_eq!(closed.unwrap(), Closed::Now);
            assert_closed_by_a_thread(fixture, &counts);
        }
    });
}

/// Checks that one operation has completed, on a blocking thread.
#[track_caller]
fn assert_closed_by_a_thread(fixture: &Fixture, counts: &Metrics) {
    assert_eq!((counts.fast_path, counts.completed), (0, 1));
    assert!(counts.blocking == 1 || fixture.engine.metrics().enters == 0);
}

#[test]
fn dropping_a_file_without_a_name_leaves_its_close_to_a_blocking_thread() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        for has_name in [true, false] {
            fixture.put("dropped", b"contents");
            let file = fixture.engine.open(fixture.path("dropped")).await.unwrap();
            if !has_name {
                std::fs::remove_file(fixture.path("dropped")).unwrap();
            }
            let path = fixture.path("dropped");
            let name = match has_name {
                true => path,
                false => format!("{} (deleted)", path.display()).into(),
            };
            let count = || fixture.engine.metrics().completed;
            let closed = u64::from(!has_name);
            let close = async {
                let before = count();
                drop(file);
                eventually("the file is closed", || !is_open(&name));
                eventually("the close is counted", || count() >= before + closed);
            };
            let (counts, ()) = fixture.counts(close).await;
            match has_name {
                true => assert_eq!(counts.completed, 0),
                false => assert_closed_by_a_thread(fixture, &counts),
            }
        }
    });
}

/// Returns whether a descriptor of this process refers to `path`.
fn is_open(path: &std::path::Path) -> bool {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.any(|target| target == path)
}

/// A file that was small and had a name when it was queried is closed on the caller's thread without a further query.
#[test]
fn a_large_file_is_queried_again_before_it_is_closed() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        for bytes in [1000, 2 << 20] {
            fixture.put("queried", &vec![7; bytes]);
            let file = fixture.engine.open(fixture.path("queried")).await.unwrap();
            file.metadata().await.unwrap();
            std::fs::remove_file(fixture.path("queried")).unwrap();
            let (counts, closed) = fixture.counts(file.close()).await;
            assert_eq!(closed.unwrap(), Closed::Now);
            if bytes > 1 << 20 {
                assert_closed_by_a_thread(fixture, &counts);
            } else {
                assert_eq!(counts.fast_path, 1);
            }
        }
    });
}

/// A close yields after many operations without a driver.
#[test]
fn a_close_that_is_dropped_while_it_yields_closes_the_file() {
    for_each_backend(async |fixture| {
        if !is_local(fixture) {
            return;
        }
        warm_up(fixture).await;
        let mut yielded = 0;
        for _ in 0..200 {
            let file = fixture.engine.open(fixture.path("f")).await.unwrap();
            file.metadata().await.unwrap();
            let mut close = std::pin::pin!(file.close());
            let polled = std::future::poll_fn(|context| {
                Poll::Ready(close.as_mut().poll(context).is_pending())
            });
            yielded += u32::from(polled.await);
        }
        assert!(yielded > 0);
        eventually("all are closed", || fixture.descriptors("f") == 0);
    });
}

/// The lookup follows the working directory and links as `open(2)` does.
#[test]
fn links_and_long_and_odd_paths_lead_to_the_same_files() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("links") {
            return;
        }
        warm_up(fixture).await;
        let folder = fixture.path("folder");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("g"), b"inner").unwrap();
        std::os::unix::fs::symlink("g", folder.join("link")).unwrap();
        std::os::unix::fs::symlink(fixture.path("f"), folder.join("absolute")).unwrap();
        std::os::unix::fs::symlink("/proc/self", folder.join("away")).unwrap();
        for (path, contents) in [
            ("folder/g", "inner"),
            ("folder/link", "inner"),
            ("folder/absolute", "contents"),
            ("folder/../f", "contents"),
            ("folder/.//g", "inner"),
            ("folder/away/root/dev/null", ""),
        ] {
            for _ in 0..3 {
                let file = fixture.engine.open(fixture.path(path)).await.unwrap();
                file.set_cached_reads(CachedReads::Always);
                let (n, read) = file.read_at(vec![0; 20], 0).await.unwrap();
                assert_eq!(&read[..n], contents.as_bytes(), "{path}");
                let (ours, theirs) = (
                    file.metadata().await.unwrap(),
                    std::fs::metadata(fixture.path(path)).unwrap(),
                );
                assert_eq!(ours.inode(), theirs.ino());
            }
        }
    });
}

/// An attempt on the caller's thread opens with `O_NONBLOCK`.
#[test]
fn an_open_file_has_the_flags_that_were_asked_for() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("flags") {
            return;
        }
        warm_up(fixture).await;
        for flags in [0, libc::O_NONBLOCK, libc::O_NOATIME, libc::O_PATH] {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags);
            for _ in 0..3 {
                let file = fixture.engine.open_with(&options, fixture.path("f"));
                let file = file.await.unwrap();
                let fd = rustix::io::fcntl_getfd(&file).unwrap();
                assert_eq!(fd, rustix::io::FdFlags::CLOEXEC);
                let got = rustix::fs::fcntl_getfl(&file).unwrap();
                let mask = libc::O_NONBLOCK | libc::O_NOATIME | libc::O_PATH | libc::O_ACCMODE;
                assert_eq!(got.bits().cast_signed() & mask, flags);
            }
        }
    });
}
