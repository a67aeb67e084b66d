//! Copies between files.

use futures_lite::future::poll_once;

use annulus::OpenOptions;
use annulus::fs::SyncRangeMode;

use crate::fixtures::{bytes, for_each_backend};

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

#[test]
fn a_copy_of_several_pieces_is_complete() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, (33 << 20) + 17);
        let from = fixture.file("from", &contents).await;
        let into = fixture.file("into", b"").await;
        let copied = from.copy_range_to(0, &into, 0, 1 << 40).await.unwrap();
        assert_eq!(copied, contents.len() as u64);
        assert!(fixture.contents("into").unwrap() == contents);
    });
}

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

#[test]
fn a_dropped_copy_leaves_a_prefix() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 20 << 20);
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
            file.sync_range(mode, 4096, 8192).await.unwrap();
            file.sync_range(mode, 0, 0).await.unwrap();
            file.sync_range(mode, 0, 5 << 30).await.unwrap();
        }
        let error = file.sync_range(SyncRangeMode::Start, 1, u64::MAX).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        drop(poll_once(file.sync_range(SyncRangeMode::Start, 0, 0)).await);
        assert_eq!(&fixture.contents("file").unwrap()[5000..5007], b"changed");
    });
}
