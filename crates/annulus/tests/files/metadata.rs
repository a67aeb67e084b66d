//! Metadata of files.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

#[cfg(not(annulus_portable))]
use annulus::fs::{AllocateMode, FileKind, Metadata};

use crate::fixtures::{bytes, for_each_backend};

#[cfg(not(annulus_portable))]
fn same_as_stds(ours: &Metadata, theirs: &std::fs::Metadata) {
    assert_eq!(ours.len(), theirs.len());
    assert_eq!(ours.mode(), theirs.mode() & 0o7777);
    assert_eq!(ours.inode(), theirs.ino());
    assert_eq!(u64::from(ours.links()), theirs.nlink());
    assert_eq!((ours.uid(), ours.gid()), (theirs.uid(), theirs.gid()));
    assert_eq!(ours.allocated_bytes(), theirs.blocks() * 512);
    assert_eq!(u64::from(ours.block_bytes()), theirs.blksize());
    assert_eq!(ours.modified(), theirs.modified().unwrap());
    assert_eq!(ours.accessed(), theirs.accessed().unwrap());
    assert_eq!(ours.created(), theirs.created().ok());
    let changed = Duration::new(theirs.ctime() as u64, theirs.ctime_nsec() as u32);
    assert_eq!(ours.changed(), std::time::UNIX_EPOCH + changed);
    let (major, minor) = (ours.device().major, ours.device().minor);
    assert_eq!(libc::makedev(major, minor), theirs.dev());
    assert_eq!(ours.is_file(), theirs.is_file());
    assert_eq!(ours.is_dir(), theirs.is_dir());
}

#[cfg(not(annulus_portable))]
#[test]
fn metadata_by_path_and_by_descriptor_agree_with_stds() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 12_345)).await;
        file.sync_all().await.unwrap();
        let (open, named) = (
            file.metadata().await.unwrap(),
            fixture.engine.metadata(fixture.path("f")).await.unwrap(),
        );
        for ours in [&open, &named] {
            assert_eq!((ours.len(), ours.kind()), (12_345, FileKind::File));
            assert!(ours.is_file() && !ours.is_dir());
            assert_eq!(ours.links(), 1);
        }
        assert_eq!(open.inode(), named.inode());
        let dir = fixture.engine.metadata(fixture.path("")).await.unwrap();
        assert_eq!(dir.kind(), FileKind::Dir);
        if fixture.machine_has("owners and times to compare with std's") {
            let theirs = std::fs::metadata(fixture.path("f")).unwrap();
            same_as_stds(&open, &theirs);
            same_as_stds(&named, &theirs);
            same_as_stds(&dir, &std::fs::metadata(fixture.path("")).unwrap());
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn the_descriptor_of_a_file_can_be_used_for_other_calls() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 12_345)).await;
        let stat = rustix::fs::fstat(&file);
        if fixture.is_real() {
            let stat = stat.unwrap();
            assert_eq!(stat.st_size, 12_345);
            assert_eq!(stat.st_ino, file.metadata().await.unwrap().inode());
        } else {
            assert_eq!(stat.unwrap_err(), rustix::io::Errno::BADF);
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn links_are_followed_or_examined_as_requested() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("symbolic links") {
            return;
        }
        fixture.put("f", b"12345");
        std::os::unix::fs::symlink("f", fixture.path("link")).unwrap();
        std::os::unix::fs::symlink("gone", fixture.path("dangling")).unwrap();
        std::fs::hard_link(fixture.path("f"), fixture.path("second")).unwrap();
        let engine = &fixture.engine;
        let target = engine.metadata(fixture.path("link")).await.unwrap();
        assert_eq!((target.len(), target.kind()), (5, FileKind::File));
        assert_eq!(target.links(), 2);
        let link = engine.symlink_metadata(fixture.path("link")).await.unwrap();
        assert_eq!((link.len(), link.kind()), (1, FileKind::Symlink));
        let dangling = fixture.path("dangling");
        let error = engine.metadata(&dangling).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let link = engine.symlink_metadata(&dangling).await.unwrap();
        assert_eq!(link.kind(), FileKind::Symlink);
        let device = engine.metadata("/dev/null").await.unwrap();
        assert_eq!(device.kind(), FileKind::Other);
    });
}

#[test]
fn the_length_follows_what_is_done_to_the_file() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"").await;
        let length = async || file.metadata().await.unwrap().len();
        assert_eq!(length().await, 0);
        file.write_all_at(bytes(2, 10_000), 0).await.unwrap();
        assert_eq!(length().await, 10_000);
        file.set_len(10).await.unwrap();
        assert_eq!(length().await, 10);
        assert_eq!(fixture.contents("f").unwrap(), bytes(2, 10));
        file.set_len(1 << 33).await.unwrap();
        assert_eq!(length().await, 1 << 33);
        let hole = file.read_exact_at(vec![1; 100], 1 << 32).await.unwrap();
        assert!(hole.iter().all(|&byte| byte == 0));
        file.set_len(0).await.unwrap();
        assert_eq!(length().await, 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn storage_is_reserved_zeroed_and_released() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(3, 65_536)).await;
        file.sync_all().await.unwrap();
        let stat = async || file.metadata().await.unwrap();
        file.allocate(65_536, 65_536, AllocateMode::KeepLength)
            .await
            .unwrap();
        assert_eq!(stat().await.len(), 65_536);
        file.allocate(0, 1 << 20, AllocateMode::Extend)
            .await
            .unwrap();
        let full = stat().await;
        assert_eq!(full.len(), 1 << 20);
        assert!(full.allocated_bytes() >= 1 << 20, "{full:?}");
        file.allocate(4096, 8192, AllocateMode::PunchHole)
            .await
            .unwrap();
        assert!(stat().await.allocated_bytes() <= full.allocated_bytes() - 8192);
        file.allocate(20_480, 4096, AllocateMode::Zero)
            .await
            .unwrap();
        let mut expected = bytes(3, 65_536);
        expected[4096..12_288].fill(0);
        expected[20_480..24_576].fill(0);
        expected.resize(1 << 20, 0);
        assert!(fixture.contents("f").unwrap() == expected);
        let error = file.allocate(0, 0, AllocateMode::Extend).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    });
}
