//! Copies between files.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

#[cfg(not(annulus_portable))]
use annulus::fs::{Advice, SyncRangeMode};
use annulus::{Backend, Engine, OpenOptions};
use annulus_testing::skip::skip;
use futures_lite::future::poll_once;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::fixtures::{bytes, for_each_backend};

/// Returns `count` bytes, quickly.
fn long(seed: u64, count: usize) -> Vec<u8> {
    let mut long = bytes(seed, 4099).repeat(count / 4099 + 1);
    long.truncate(count);
    long
}

#[cfg(not(annulus_portable))]
#[test]
fn a_range_is_copied_up_to_the_end_of_the_file() {
    for_each_backend(async |fixture| {
        let from = fixture.file("from", &bytes(1, 100_000)).await;
        let into = fixture.file("into", b"0123456789").await;
        assert_eq!(from.copy_range_to(500, &into, 4, 3).await.unwrap(), 3);
        let expected = [b"0123", &bytes(1, 503)[500..], b"789"].concat();
        assert_eq!(fixture.contents("into").unwrap(), expected);
        assert_eq!(
            from.copy_range_to(99_990, &into, 0, 50).await.unwrap(),
            10,
            "the file ends"
        );
        assert_eq!(from.copy_range_to(100_000, &into, 0, 50).await.unwrap(), 0);
        assert_eq!(from.copy_range_to(0, &into, 0, 0).await.unwrap(), 0);
        assert_eq!(
            fixture.contents("into").unwrap(),
            bytes(1, 100_000)[99_990..]
        );
        // Within a file.
        assert_eq!(from.copy_range_to(0, &from, 100_000, 50).await.unwrap(), 50);
        let copy = from.read_exact_at(vec![0; 50], 100_000).await.unwrap();
        assert_eq!(copy, bytes(1, 50));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_copy_of_several_pieces_is_complete() {
    for_each_backend(async |fixture| {
        let contents = long(2, (16 << 20) + 17);
        let from = fixture.file("from", &contents).await;
        let into = fixture.file("into", b"").await;
        let copied = from.copy_range_to(0, &into, 0, 1 << 40).await.unwrap();
        assert_eq!(copied, contents.len() as u64);
        assert!(fixture.contents("into").unwrap() == contents);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_range_that_cannot_be_copied_is_an_error() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("file", &bytes(1, 1000)).await;
        let read_only = engine.open(fixture.path("file")).await.unwrap();
        let mut appending = OpenOptions::new();
        let appending = appending.append(true);
        let appending = engine.open_with(appending, fixture.path("file"));
        let appending = appending.await.unwrap();
        engine.create_dir(fixture.path("d")).await.unwrap();
        let dir = engine.open(fixture.path("d")).await.unwrap();
        for (from, into, errno) in [
            (&file, &file, libc::EINVAL),
            (&file, &read_only, libc::EBADF),
            (&appending, &file, libc::EBADF),
            (&file, &appending, libc::EBADF),
            (&dir, &file, libc::EISDIR),
            (&file, &dir, libc::EISDIR),
        ] {
            let error = from.copy_range_to(0, into, 999, 1000).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{from:?} {into:?}");
        }
        for (offset, into_offset) in [(u64::MAX, 0), (0, u64::MAX), (1 << 62, 1 << 62)] {
            let copy = file.copy_range_to(offset, &file, into_offset, 1 << 62);
            let error = copy.await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        }
        assert_eq!(fixture.contents("file").unwrap(), bytes(1, 1000));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_dropped_copy_leaves_a_prefix() {
    for_each_backend(async |fixture| {
        let contents = long(3, 20 << 20);
        let from = fixture.file("from", &contents).await;
        let into = fixture.file("into", b"").await;
        drop(poll_once(from.copy_range_to(0, &into, 0, 20 << 20)).await);
        drop((from, into));
        // It holds the files until it has ended.
        while fixture.descriptors("into") > 0 {
            fixture.engine.nop().await.unwrap();
        }
        let copied = fixture.contents("into").unwrap();
        assert!(copied == contents[..copied.len()]);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_range_is_written_back() {
    for_each_backend(async |fixture| {
        let file = fixture.file("file", &bytes(1, 100_000)).await;
        let modes = [
            SyncRangeMode::Start,
            SyncRangeMode::Wait,
            SyncRangeMode::StartAndWait,
        ];
        for mode in modes {
            file.write_all_at("changed", 5000).await.unwrap();
            file.sync_range(4096, 8192, mode).await.unwrap();
            file.sync_range(0, 0, mode).await.unwrap();
            file.sync_range(0, 5 << 30, mode).await.unwrap();
            file.sync_range(0, i64::MAX as u64, mode).await.unwrap();
        }
        let error = file.sync_range(1, u64::MAX, SyncRangeMode::Start).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        drop(poll_once(file.sync_range(0, 0, SyncRangeMode::Start)).await);
        assert_eq!(&fixture.contents("file").unwrap()[5000..5007], b"changed");
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_range_of_any_length_is_advised() {
    for_each_backend(async |fixture| {
        let file = fixture.file("file", &bytes(1, 100_000)).await;
        for (offset, bytes) in [(0, 0), (5000, 5 << 30), (0, u64::MAX), (i64::MAX as u64, 1)] {
            file.advise(offset, bytes, Advice::WillNeed).await.unwrap();
        }
        let error = file.advise(u64::MAX, u64::MAX, Advice::WillNeed).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn a_file_is_copied_with_its_permissions() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let (from, to) = (fixture.path("from"), fixture.path("to"));
        let permissions = Permissions::from_mode(0o750);
        for (old, length) in [(None, 100_000), (Some(200_000), 3), (Some(1), 0)] {
            fixture.put("from", &bytes(1, length));
            engine
                .set_permissions(&from, permissions.clone())
                .await
                .unwrap();
            if let Some(old) = old {
                fixture.put("to", &bytes(2, old));
            }
            assert_eq!(engine.copy(&from, &to).await.unwrap(), length as u64);
            assert_eq!(fixture.contents("to").unwrap(), bytes(1, length));
            assert_eq!(engine.metadata(&to).await.unwrap().mode(), 0o750);
        }
        engine.symlink("from", fixture.path("link")).await.unwrap();
        fixture.put("from", b"by a link");
        assert_eq!(engine.copy(fixture.path("link"), &to).await.unwrap(), 9);
        assert_eq!(fixture.contents("to").unwrap(), b"by a link");
    });
}

#[test]
fn a_copy_that_would_destroy_its_source_is_refused() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let (file, link) = (fixture.path("f"), fixture.path("link"));
        fixture.put("f", b"precious");
        engine.hard_link(&file, &link).await.unwrap();
        engine.create_dir(fixture.path("d")).await.unwrap();
        for (from, to) in [(&file, &file), (&file, &link), (&fixture.path("d"), &file)] {
            let error = engine.copy(from, to).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
        }
        let error = engine.copy(fixture.path("gone"), &file).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let error = engine.copy(&file, fixture.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        assert_eq!(fixture.contents("f").unwrap(), b"precious");
    });
}

#[test]
fn a_dropped_copy_of_a_file_leaves_a_prefix() {
    for_each_backend(async |fixture| {
        let contents = long(4, 3 << 20);
        fixture.put("from", &contents);
        for polls in 0..12 {
            let mut copy = Box::pin(
                fixture
                    .engine
                    .copy(fixture.path("from"), fixture.path("to")),
            );
            let mut copied = None;
            for _ in 0..polls {
                copied = copied.or(poll_once(&mut copy).await);
                if copied.is_some() {
                    break;
                }
                fixture.engine.nop().await.unwrap();
            }
            drop(copy);
            while fixture.descriptors("to") > 0 {
                fixture.engine.nop().await.unwrap();
            }
            let found = fixture.contents("to").unwrap_or_default();
            assert!(found == contents[..found.len()]);
            if let Some(copied) = copied {
                assert_eq!(copied.unwrap(), contents.len() as u64);
                assert_eq!(found.len(), contents.len());
            }
        }
    });
}

#[test]
fn a_file_without_a_known_length_is_copied_completely() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("/proc") {
            return;
        }
        for path in [
            "/proc/version",
            "/proc/filesystems",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ] {
            let Ok(expected) = std::fs::read(path) else {
                skip(format_args!("no {path} here"));
                continue;
            };
            // The copy is read-only, too, and only root may overwrite it. So each copy has its own name.
            let to = path.replace('/', "-");
            let copied = fixture.engine.copy(path, fixture.path(&to)).await.unwrap();
            assert_eq!(copied, expected.len() as u64, "{path}");
            assert_eq!(fixture.contents(&to).unwrap(), expected);
        }
    });
}

#[test]
fn a_file_without_a_known_length_may_be_longer_than_a_buffer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, to) = ("/proc/kallsyms", dir.path().join("to"));
    let engine = Engine::new().unwrap();
    let copied = pollster::block_on(engine.copy(path, &to)).unwrap();
    assert_eq!(copied, std::fs::read(path).unwrap().len() as u64);
}

#[test]
fn a_file_is_copied_to_another_file_system() {
    let device = |path: &Path| std::os::unix::fs::MetadataExt::dev(&path.metadata().unwrap());
    for_each_backend(async |fixture| {
        if !fixture.machine_has("second file system") {
            return;
        }
        let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
            return skip("no /dev/shm here");
        };
        if device(other.path()) == device(&fixture.path("")) {
            return skip("/dev/shm is the file system of the temporary files");
        }
        let contents = long(5, (17 << 20) + 1);
        fixture.put("from", &contents);
        let (from, there) = (fixture.path("from"), other.path().join("there"));
        fixture.engine.copy(&from, &there).await.unwrap();
        assert!(std::fs::read(&there).unwrap() == contents);
        fixture
            .engine
            .copy(&there, fixture.path("back"))
            .await
            .unwrap();
        assert!(fixture.contents("back").unwrap() == contents);
    });
}

/// Refuses system calls to the calling thread, and to those that it starts.
fn refuse(calls: &[libc::c_long], errno: i32) {
    let rules = calls.iter().map(|&call| (call, Vec::new())).collect();
    let action = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

#[cfg(not(annulus_portable))]
#[test]
fn each_refusal_of_the_kernel_leads_to_the_next_way() {
    let ways = [
        libc::SYS_ioctl,
        libc::SYS_copy_file_range,
        libc::SYS_sendfile,
    ];
    let errnos = [
        libc::EXDEV,
        libc::EOPNOTSUPP,
        libc::EINVAL,
        libc::ENOSYS,
        libc::ETXTBSY,
        libc::EPERM,
        libc::EAGAIN,
        libc::ENOMEM,
    ];
    let cases = errnos
        .iter()
        .flat_map(|&errno| (1..=3).map(move |refused| (errno, refused)));
    for (errno, refused) in cases {
        let copy = move || {
            refuse(&ways[..refused], errno);
            let builder = Engine::builder().backend(Backend::Fallback);
            let engine = builder.build().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            let contents = long(6, 3 << 20);
            std::fs::write(&from, &contents).unwrap();
            let copied = pollster::block_on(engine.copy(&from, &to)).unwrap();
            assert_eq!(
                copied,
                contents.len() as u64,
                "errno {errno}, {refused} ways"
            );
            assert!(std::fs::read(&to).unwrap() == contents);
        };
        // On a new thread, because a filter cannot be removed.
        std::thread::spawn(copy).join().unwrap();
    }
}

#[cfg(not(annulus_portable))]
#[test]
fn a_copy_keeps_the_holes() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("holes") {
            return;
        }
        const BYTES: u64 = 64 << 20;
        let from = fixture.path("sparse");
        let file = std::fs::File::create(&from).unwrap();
        for at in [0, 20 << 20, 40 << 20] {
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes(7, 9000), at).unwrap();
        }
        file.set_len(BYTES).unwrap();
        file.sync_all().unwrap();
        let stored = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
        if stored(&from) > 1 << 20 {
            return annulus_testing::skip::skip(
                "the temporary directory's file system has no holes",
            );
        }
        // On another file system, if there is one, the kernel copies in another way.
        let shared = tempfile::tempdir_in("/dev/shm");
        let mut targets = vec![fixture.path("copy")];
        targets.extend(shared.iter().map(|dir| dir.path().join("copy")));
        for to in targets {
            assert_eq!(fixture.engine.copy(&from, &to).await.unwrap(), BYTES);
            assert!(std::fs::read(&to).unwrap() == std::fs::read(&from).unwrap());
            assert!(stored(&to) < 1 << 20, "{}: {}", to.display(), stored(&to));
        }
    });
}
