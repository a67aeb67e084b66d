//! Times and extended attributes.

use std::ffi::OsString;
use std::time::{Duration, UNIX_EPOCH};

use annulus::fs::FileTimes;
use annulus_testing::skip::skip;
use futures_lite::future::poll_once;

use crate::fixtures::{Fixture, bytes, for_each_backend};

#[test]
fn times_are_set_by_path_and_on_an_open_file() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("f", b"").await;
        let early = UNIX_EPOCH - Duration::from_millis(1_500);
        let late = UNIX_EPOCH + Duration::new(2_000_000_000, 123_456_789);
        let times = FileTimes::new().set_accessed(early).set_modified(late);
        engine.set_times(fixture.path("f"), times).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.accessed(), metadata.modified()), (early, late));
        let only = FileTimes::new().set_modified(early);
        file.set_times(only).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.accessed(), metadata.modified()), (early, early));
        file.set_times(FileTimes::new()).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.accessed(), metadata.modified()), (early, early));
        file.write_all_at("x", 0).await.unwrap();
        assert!(file.metadata().await.unwrap().modified() > UNIX_EPOCH);
        let error = engine.set_times(fixture.path("gone"), only).await;
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        // Dropped before its end, it is either made or not.
        drop(poll_once(file.set_times(times)).await);
        file.metadata().await.unwrap();
    });
}

/// Returns whether files of the fixture have extended attributes; otherwise notes a skip.
async fn has_attributes(fixture: &Fixture) -> bool {
    fixture.put("probe", b"");
    let set = fixture
        .engine
        .set_xattr(fixture.path("probe"), "user.p", "");
    match set.await {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            skip(format_args!("no extended attributes here: {error}"));
            false
        }
        other => {
            other.unwrap();
            true
        }
    }
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    for_each_backend(async |fixture| {
        if !has_attributes(fixture).await {
            return;
        }
        let engine = &fixture.engine;
        let file = fixture.file("f", b"").await;
        let path = fixture.path("f");
        // The second value is longer than the first buffer of the library.
        for (name, length) in [("user.short", 5), ("user.long", 2000), ("user.empty", 0)] {
            let value = bytes(1, length);
            engine.set_xattr(&path, name, value.clone()).await.unwrap();
            assert_eq!(engine.get_xattr(&path, name).await.unwrap(), value);
            assert_eq!(file.get_xattr(name).await.unwrap(), value);
        }
        file.set_xattr("user.short", "changed").await.unwrap();
        assert_eq!(
            engine.get_xattr(&path, "user.short").await.unwrap(),
            b"changed"
        );
        for listed in [file.list_xattrs().await, engine.list_xattrs(&path).await] {
            let mut names = listed.unwrap();
            names.retain(|name| name.to_string_lossy().starts_with("user."));
            names.sort();
            assert_eq!(names, ["user.empty", "user.long", "user.short"]);
        }
        file.remove_xattr("user.short").await.unwrap();
        engine.remove_xattr(&path, "user.empty").await.unwrap();
        for name in ["user.short", "user.empty"] {
            let error = engine.get_xattr(&path, name).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODATA));
            let error = file.remove_xattr(name).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODATA));
        }
        // Dropped before its end, it is either made or not.
        drop(poll_once(file.set_xattr("user.long", "x")).await);
        drop(poll_once(file.get_xattr("user.long")).await);
        drop(file);
        let value = engine.get_xattr(&path, "user.long").await.unwrap();
        assert!(value == bytes(1, 2000) || value == b"x");
    });
}

#[test]
fn a_list_longer_than_the_first_buffer_is_complete() {
    for_each_backend(async |fixture| {
        if !has_attributes(fixture).await {
            return;
        }
        let file = fixture.file("f", b"").await;
        let names: Vec<OsString> = (0..50)
            .map(|n| format!("user.number-{n:02}").into())
            .collect();
        for name in &names {
            file.set_xattr(name, "").await.unwrap();
        }
        let mut listed = file.list_xattrs().await.unwrap();
        listed.retain(|name| name.to_string_lossy().starts_with("user."));
        listed.sort();
        assert_eq!(listed, names);
    });
}

#[test]
fn attributes_that_cannot_be_set_are_errors() {
    for_each_backend(async |fixture| {
        if !has_attributes(fixture).await {
            return;
        }
        let engine = &fixture.engine;
        let file = fixture.file("f", b"").await;
        let long = "user.".repeat(60);
        for (name, errno) in [
            ("nowhere.a", libc::EOPNOTSUPP),
            ("", libc::ERANGE),
            (long.as_str(), libc::ERANGE),
        ] {
            let error = file.set_xattr(name, "x").await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{name}");
        }
        let error = file.set_xattr("user.a", vec![0; 65_537]).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::E2BIG));
        let error = file.get_xattr("user.a\0b").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let gone = engine.get_xattr(fixture.path("gone"), "user.a").await;
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    });
}
