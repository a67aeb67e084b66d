//! Directories and names.

use std::collections::BTreeMap;
use std::ffi::OsString;

use annulus::fs::FileKind;

use crate::grounds::{Ground, bytes, for_each_backend};

async fn listed(ground: &Ground, name: &str) -> BTreeMap<OsString, (FileKind, u64)> {
    let entries = ground.engine.read_dir(ground.path(name)).await.unwrap();
    let count = entries.len();
    let map: BTreeMap<_, _> = entries
        .iter()
        .map(|entry| (entry.name().to_owned(), (entry.kind(), entry.inode())))
        .collect();
    assert_eq!(map.len(), count, "a name came twice");
    map
}

#[test]
fn a_directory_is_created_listed_and_removed() {
    for_each_backend(async |ground| {
        let engine = &ground.engine;
        engine.create_dir(ground.path("d")).await.unwrap();
        let error = engine.create_dir(ground.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(listed(ground, "d").await.is_empty(), "no . and no ..");
        engine.create_dir(ground.path("d/sub")).await.unwrap();
        ground.put("d/file", b"x");
        let entries = listed(ground, "d").await;
        assert_eq!(entries.len(), 2);
        for (name, kind) in [("sub", FileKind::Dir), ("file", FileKind::File)] {
            let path = ground.path("d").join(name);
            let inode = engine.metadata(path).await.unwrap().inode();
            assert_eq!(entries[&OsString::from(name)], (kind, inode));
        }
        let error = engine.remove_dir(ground.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(ground.names("d"), ["file", "sub"]);
        engine.remove_file(ground.path("d/file")).await.unwrap();
        engine.remove_dir(ground.path("d/sub")).await.unwrap();
        engine.remove_dir(ground.path("d")).await.unwrap();
        assert!(ground.names("").is_empty());
    });
}

#[test]
fn three_thousand_names_are_listed_once_each() {
    for_each_backend(async |ground| {
        ground.engine.create_dir(ground.path("d")).await.unwrap();
        let mut expected = Vec::new();
        for n in 0..3000 {
            let name = format!("{n:04}-{}", "x".repeat(n % 100));
            ground.put(&format!("d/{name}"), b"");
            expected.push(OsString::from(name));
        }
        let entries = listed(ground, "d").await;
        assert!(entries.keys().eq(expected.iter()));
        assert!(entries.values().all(|(kind, _)| *kind == FileKind::File));
    });
}

#[test]
fn only_a_directory_is_listed() {
    for_each_backend(async |ground| {
        ground.put("f", b"");
        let engine = &ground.engine;
        let error = engine.read_dir(ground.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        let error = engine.read_dir(ground.path("gone")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn a_rename_moves_a_file_and_replaces_an_existing_one() {
    for_each_backend(async |ground| {
        let engine = &ground.engine;
        let file = ground.file("a", &bytes(1, 100)).await;
        ground.put("b", b"old");
        engine
            .rename(ground.path("a"), ground.path("b"))
            .await
            .unwrap();
        assert_eq!(ground.names(""), ["b"]);
        assert_eq!(ground.contents("b").unwrap(), bytes(1, 100));
        file.write_all_at("!", 0).await.unwrap();
        assert_eq!(ground.contents("b").unwrap()[0], b'!');
        engine.create_dir(ground.path("d")).await.unwrap();
        engine
            .rename(ground.path("b"), ground.path("d/c"))
            .await
            .unwrap();
        engine
            .rename(ground.path("d"), ground.path("e"))
            .await
            .unwrap();
        assert_eq!(ground.names("e"), ["c"]);
        let error = engine.rename(ground.path("gone"), ground.path("e/c")).await;
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(ground.contents("e/c").unwrap().len(), 100);
    });
}

#[test]
fn a_removed_file_lives_on_while_it_is_open() {
    for_each_backend(async |ground| {
        let engine = &ground.engine;
        let file = ground.file("f", b"still here").await;
        engine.remove_file(ground.path("f")).await.unwrap();
        assert!(ground.names("").is_empty());
        let buf = file.read_exact_at(vec![0; 10], 0).await.unwrap();
        assert_eq!(buf, b"still here");
        file.write_all_at("more", 10).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.len(), metadata.links()), (14, 0));
        let error = engine.remove_file(ground.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn files_and_directories_are_removed_each_by_their_own_call() {
    for_each_backend(async |ground| {
        let engine = &ground.engine;
        ground.put("f", b"x");
        engine.create_dir(ground.path("d")).await.unwrap();
        let error = engine.remove_dir(ground.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        let error = engine.remove_file(ground.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        assert_eq!(ground.names(""), ["d", "f"]);
    });
}

#[test]
fn a_directory_can_be_opened_and_synced() {
    for_each_backend(async |ground| {
        ground.engine.create_dir(ground.path("d")).await.unwrap();
        ground.put("d/f", b"x");
        let dir = ground.engine.open(ground.path("d")).await.unwrap();
        dir.sync_all().await.unwrap();
        assert!(dir.metadata().await.unwrap().is_dir());
        assert_eq!(dir.close().await.unwrap(), annulus::fs::Closed::Now);
    });
}
