//! Paths relative to an open directory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use annulus::OpenOptions;
use annulus::fs::{FileKind, FileTimes};
use futures_lite::future::poll_once;

use crate::fixtures::{Fixture, for_each_backend};

#[test]
fn every_operation_by_path_takes_a_path_in_an_open_directory() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        let dir = engine.open_dir(fixture.path("d")).await.unwrap();
        // Its name does not matter any more.
        let moved = engine.rename(fixture.path("d"), fixture.path("moved"));
        moved.await.unwrap();
        engine.create_dir_all(dir.at("e/f")).await.unwrap();
        engine.write(dir.at("e/f/a"), "contents").await.unwrap();
        assert_eq!(fixture.contents("moved/e/f/a").unwrap(), b"contents");
        engine.rename(dir.at("e/f/a"), dir.at("b")).await.unwrap();
        engine.rename(dir.at("b"), fixture.path("b")).await.unwrap();
        engine.rename(fixture.path("b"), dir.at("b")).await.unwrap();
        engine.hard_link(dir.at("b"), dir.at("c")).await.unwrap();
        engine.symlink("c", dir.at("s")).await.unwrap();
        assert_eq!(engine.read_link(dir.at("s")).await.unwrap(), Path::new("c"));
        assert_eq!(engine.metadata(dir.at("s")).await.unwrap().links(), 2);
        let link = engine.symlink_metadata(dir.at("s")).await.unwrap();
        assert_eq!(link.kind(), FileKind::Symlink);
        let permissions = Permissions::from_mode(0o700);
        engine
            .set_permissions(dir.at("c"), permissions)
            .await
            .unwrap();
        engine
            .set_times(dir.at("c"), FileTimes::new())
            .await
            .unwrap();
        assert_eq!(engine.metadata(dir.at("b")).await.unwrap().mode(), 0o700);
        assert_eq!(engine.copy(dir.at("b"), dir.at("copy")).await.unwrap(), 8);
        engine.exchange(dir.at("copy"), dir.at("e")).await.unwrap();
        let file = engine.open(dir.at("e")).await.unwrap();
        assert_eq!(engine.read(dir.at("e")).await.unwrap(), b"contents");
        file.link_to(dir.at("linked")).await.unwrap();
        let mut names = Vec::new();
        for entry in engine.read_dir(dir.at(".")).await.unwrap() {
            names.push(entry.name().to_owned());
        }
        names.sort();
        assert_eq!(names, ["b", "c", "copy", "e", "linked", "s"]);
        for name in ["b", "c", "e", "linked", "s"] {
            engine.remove_file(dir.at(name)).await.unwrap();
        }
        let inner = engine.open_dir(dir.at("copy")).await.unwrap();
        engine.remove_dir(inner.at("f")).await.unwrap();
        engine.remove_dir(dir.at("copy")).await.unwrap();
        assert!(fixture.names("moved").is_empty());
        let gone = engine.create_dir(inner.at("x")).await.unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOENT));
        assert!(dir.file().metadata().await.unwrap().is_dir());
        dir.file().sync_all().await.unwrap();
    });
}

#[test]
fn operations_whose_call_takes_no_directory_find_the_path_too() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        let dir = engine.open_dir(fixture.path("d")).await.unwrap();
        let moved = engine.rename(fixture.path("d"), fixture.path("moved"));
        moved.await.unwrap();
        engine.write(dir.at("c"), "").await.unwrap();
        engine.symlink("c", dir.at("s")).await.unwrap();
        let found = engine.canonicalize(dir.at("s")).await.unwrap();
        let named = engine.canonicalize(fixture.path("moved/c")).await.unwrap();
        assert_eq!(found, named);
        match engine.set_xattr(dir.at("s"), "user.a", "value").await {
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP)),
            Ok(()) => {
                let value = engine.get_xattr(fixture.path("moved/c"), "user.a").await;
                assert_eq!(value.unwrap(), b"value");
                let value = engine.get_xattr(dir.at("c"), "user.a").await;
                assert_eq!(value.unwrap(), b"value");
                let names = engine.list_xattrs(dir.at("c")).await.unwrap();
                assert_eq!(names, ["user.a"]);
                engine.remove_xattr(dir.at("c"), "user.a").await.unwrap();
                assert!(engine.get_xattr(dir.at("c"), "user.a").await.is_err());
            }
        }
        let error = engine.canonicalize(dir.at("")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn only_a_directory_is_a_base() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("f", b"");
        let error = engine.open_dir(fixture.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        let dir = engine.open_dir(fixture.path("")).await.unwrap();
        let error = engine.metadata(dir.at("")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        let error = engine.metadata(dir.at("a\0b")).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        // An absolute path has no base.
        engine.metadata(dir.at(&fixture.path("f"))).await.unwrap();
    });
}

#[test]
fn a_dropped_operation_keeps_its_directory_until_it_has_ended() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        let dir = engine.open_dir(fixture.path("d")).await.unwrap();
        drop(poll_once(engine.create_dir(dir.at("made"))).await);
        drop(poll_once(engine.open_with(&create(false), dir.at("opened"))).await);
        drop(dir);
        while fixture.descriptors("d") > 0 {
            engine.nop().await.unwrap();
        }
        let names = fixture.names("d");
        assert!(
            names
                .iter()
                .all(|name| ["made", "opened"].contains(&name.as_str()))
        );
    });
}

fn create(beneath: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).beneath(beneath);
    options
}

/// Returns the errno of an open of `name` in the directory `d`.
async fn errno(fixture: &Fixture, options: &OpenOptions, name: &Path) -> Option<i32> {
    let engine = &fixture.engine;
    let dir = engine.open_dir(fixture.path("d")).await.unwrap();
    let opened = engine.open_with(options, dir.at(name)).await;
    opened.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_lookup_stays_beneath_the_directory_if_requested() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("d/e/inside", b"x");
        fixture.put("outside", b"x");
        let dir = engine.open_dir(fixture.path("d")).await.unwrap();
        let outside = fixture.path("outside");
        engine.symlink(&outside, dir.at("absolute")).await.unwrap();
        engine.symlink("../outside", dir.at("up")).await.unwrap();
        engine.symlink("e/../e/inside", dir.at("in")).await.unwrap();
        engine.symlink("..", dir.at("e/above")).await.unwrap();
        let mut read = OpenOptions::new();
        read.read(true);
        let leaving = [
            "../outside",
            "absolute",
            "up",
            "e/../../outside",
            "e/above/../outside",
        ];
        for name in leaving
            .map(Path::new)
            .into_iter()
            .chain([outside.as_path()])
        {
            for options in [read.clone(), create(false)] {
                assert_eq!(errno(fixture, &options, name).await, None, "{name:?}");
            }
            for options in [read.clone().beneath(true), &mut create(true)] {
                let error = errno(fixture, options, name).await;
                assert_eq!(error, Some(libc::EXDEV), "{name:?}");
            }
        }
        for name in ["e/inside", "in", "e/../in", "e/above/in", "."].map(Path::new) {
            let error = errno(fixture, read.clone().beneath(true), name).await;
            assert_eq!(error, None, "{name:?}");
        }
        let created = errno(fixture, create(true).mode(0o600), Path::new("e/new")).await;
        assert_eq!(created, None);
        let mode = engine.metadata(dir.at("e/new")).await.unwrap().mode();
        assert_eq!(mode, 0o600);
    });
}
