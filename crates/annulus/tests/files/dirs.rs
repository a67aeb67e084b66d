//! Directories and names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use annulus::fs::FileKind;
use annulus_testing::skip::skip;
use futures_lite::future::poll_once;

use crate::fixtures::{Fixture, bytes, for_each_backend};

#[cfg(not(annulus_portable))]
async fn listed(fixture: &Fixture, name: &str) -> BTreeMap<OsString, (FileKind, u64)> {
    let entries = fixture.engine.read_dir(fixture.path(name)).await.unwrap();
    let count = entries.len();
    let map: BTreeMap<_, _> = entries
        .iter()
        .map(|entry| (entry.name().to_owned(), (entry.kind(), entry.inode())))
        .collect();
    assert_eq!(map.len(), count, "a name came twice");
    map
}

#[cfg(not(annulus_portable))]
#[test]
fn a_directory_is_created_listed_and_removed() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        let error = engine.create_dir(fixture.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(listed(fixture, "d").await.is_empty(), "no . and no ..");
        engine.create_dir(fixture.path("d/sub")).await.unwrap();
        fixture.put("d/file", b"x");
        let entries = listed(fixture, "d").await;
        assert_eq!(entries.len(), 2);
        for (name, kind) in [("sub", FileKind::Dir), ("file", FileKind::File)] {
            let path = fixture.path("d").join(name);
            let inode = engine.metadata(path).await.unwrap().inode();
            assert_eq!(entries[&OsString::from(name)], (kind, inode));
        }
        let error = engine.remove_dir(fixture.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(fixture.names("d"), ["file", "sub"]);
        engine.remove_file(fixture.path("d/file")).await.unwrap();
        engine.remove_dir(fixture.path("d/sub")).await.unwrap();
        engine.remove_dir(fixture.path("d")).await.unwrap();
        assert!(fixture.names("").is_empty());
    });
}

#[test]
fn only_a_directory_is_listed() {
    for_each_backend(async |fixture| {
        fixture.put("f", b"");
        let engine = &fixture.engine;
        let error = engine.read_dir(fixture.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        let error = engine.read_dir(fixture.path("gone")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_listing_of_several_pieces_has_every_name_once_also_after_dropped_calls() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        engine.create_dir(fixture.path("d")).await.unwrap();
        // 190 KB of entries: a piece has 64 KiB.
        let names: Vec<OsString> = (0..1200)
            .map(|number| format!("{number:04}-{}", "x".repeat(60 + number % 140)).into())
            .collect();
        for name in &names {
            fixture.put(&format!("d/{}", name.display()), b"");
        }
        let all = listed(fixture, "d").await;
        assert!(all.keys().eq(names.iter()));
        assert!(all.values().all(|(kind, _)| *kind == FileKind::File));
        let mut listed = Vec::new();
        let mut entries = engine.read_dir(fixture.path("d"));
        loop {
            // Dropped after one poll, in most cases before an entry is there.
            let next = match poll_once(entries.next()).await {
                Some(next) => next,
                None => entries.next().await,
            };
            let Some(entry) = next else { break };
            listed.push(entry.unwrap().name().to_owned());
        }
        assert!(entries.next().await.is_none(), "the end stays");
        listed.sort();
        assert_eq!(listed, names);
        // Dropped while a piece is read.
        let mut entries = engine.read_dir(fixture.path("d"));
        entries.next().await.unwrap().unwrap();
        drop(entries);
        let mut none = engine.read_dir(fixture.path("gone"));
        let error = none.next().await.unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(none.next().await.is_none());
    });
}

#[test]
fn a_rename_moves_a_file_and_replaces_an_existing_one() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("a", &bytes(1, 100)).await;
        fixture.put("b", b"old");
        engine
            .rename(fixture.path("a"), fixture.path("b"))
            .await
            .unwrap();
        assert_eq!(fixture.names(""), ["b"]);
        assert_eq!(fixture.contents("b").unwrap(), bytes(1, 100));
        file.write_all_at("!", 0).await.unwrap();
        assert_eq!(fixture.contents("b").unwrap()[0], b'!');
        engine.create_dir(fixture.path("d")).await.unwrap();
        engine
            .rename(fixture.path("b"), fixture.path("d/c"))
            .await
            .unwrap();
        engine
            .rename(fixture.path("d"), fixture.path("e"))
            .await
            .unwrap();
        assert_eq!(fixture.names("e"), ["c"]);
        let error = engine
            .rename(fixture.path("gone"), fixture.path("e/c"))
            .await;
        assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(fixture.contents("e/c").unwrap().len(), 100);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_name_is_not_replaced_unless_that_is_requested_and_two_names_can_be_exchanged() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("a", b"first");
        fixture.put("b", b"second");
        let (a, b, c) = (fixture.path("a"), fixture.path("b"), fixture.path("c"));
        let error = engine.rename_new(&a, &b).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert_eq!(fixture.contents("b").unwrap(), b"second");
        engine.exchange(&a, &b).await.unwrap();
        assert_eq!(fixture.contents("a").unwrap(), b"second");
        assert_eq!(fixture.contents("b").unwrap(), b"first");
        let error = engine.exchange(&a, &c).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        engine.rename_new(&a, &c).await.unwrap();
        assert_eq!(fixture.names(""), ["b", "c"]);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_link_is_another_name_of_the_same_file() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("a", b"one").await;
        let (a, b) = (fixture.path("a"), fixture.path("b"));
        engine.hard_link(&a, &b).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().links(), 2);
        engine.remove_file(&a).await.unwrap();
        file.write_all_at("two", 0).await.unwrap();
        assert_eq!(fixture.contents("b").unwrap(), b"two");
        let error = engine.hard_link(&a, fixture.path("c")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        engine.create_dir(&a).await.unwrap();
        let error = engine.hard_link(&b, &a).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        // Dropped before its end, it is either made or not.
        drop(poll_once(engine.hard_link(&b, fixture.path("d"))).await);
        engine.hard_link(&b, fixture.path("e")).await.unwrap();
        assert!(file.metadata().await.unwrap().links() >= 2);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_file_without_a_name_gets_one_when_it_is_linked() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = match engine.create_unnamed(fixture.path("")).await {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return skip(format_args!("no O_TMPFILE here: {error}"));
            }
            other => other.unwrap(),
        };
        file.write_all_at("whole", 0).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().links(), 0);
        assert!(fixture.names("").is_empty());
        fixture.put("a", b"");
        let error = file.link_to(fixture.path("a")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        file.link_to(fixture.path("b")).await.unwrap();
        assert_eq!(fixture.contents("b").unwrap(), b"whole");
        engine.remove_file(fixture.path("b")).await.unwrap();
        let error = file.link_to(fixture.path("c")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        // Dropped before its end, it is either made or not.
        let other = engine.create_unnamed(fixture.path("")).await.unwrap();
        drop(poll_once(other.link_to(fixture.path("d"))).await);
        drop(other);
        assert!(fixture.names("").len() <= 2);
    });
}

#[test]
fn a_symbolic_link_is_followed_and_its_target_can_be_read() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("a", b"contents");
        let link = fixture.path("link");
        engine.symlink("a", &link).await.unwrap();
        assert_eq!(engine.read_link(&link).await.unwrap(), Path::new("a"));
        assert_eq!(engine.metadata(&link).await.unwrap().len(), 8);
        let itself = engine.symlink_metadata(&link).await.unwrap();
        assert_eq!(itself.kind(), FileKind::Symlink);
        let error = engine.symlink("b", &link).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        let error = engine.read_link(fixture.path("a")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        engine.remove_file(&link).await.unwrap();
        assert_eq!(fixture.names(""), ["a"]);
        engine.symlink("link", &link).await.unwrap();
        let error = engine.open(&link).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    });
}

#[test]
fn permissions_are_set_by_path_and_on_an_open_file() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("a", b"").await;
        let permissions = Permissions::from_mode(0o640);
        engine
            .set_permissions(fixture.path("a"), permissions)
            .await
            .unwrap();
        assert_eq!(file.metadata().await.unwrap().mode(), 0o640);
        let permissions = Permissions::from_mode(0o600);
        file.set_permissions(permissions.clone()).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().mode(), 0o600);
        let set = engine.set_permissions(fixture.path("gone"), permissions);
        assert_eq!(set.await.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn directories_are_created_with_their_parents() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let deep = fixture.path("d").join("e").join("f");
        engine.create_dir_all(&deep).await.unwrap();
        engine.create_dir_all(&deep).await.unwrap();
        assert!(engine.metadata(&deep).await.unwrap().is_dir());
        fixture.put("d/file", b"");
        for (path, errno) in [("d/file", libc::EEXIST), ("d/file/x", libc::ENOTDIR)] {
            let error = engine.create_dir_all(fixture.path(path)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{path}");
        }
    });
}

#[test]
fn a_directory_is_removed_with_everything_in_it_and_links_are_not_followed() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("outside/kept", b"x");
        for name in ["d/a", "d/e/b", "d/e/f/g/h/c", "d/e/f/i"] {
            fixture.put(name, b"x");
        }
        // More than the 64 KiB of a piece of the listing.
        for number in 0..400 {
            fixture.put(&format!("d/many/{number:0>200}"), b"");
        }
        engine
            .create_dir_all(fixture.path("d/empty"))
            .await
            .unwrap();
        let outside = fixture.path("outside");
        engine
            .symlink(&outside, fixture.path("d/link"))
            .await
            .unwrap();
        engine
            .symlink("nowhere", fixture.path("d/e/dangling"))
            .await
            .unwrap();
        engine.symlink("d", fixture.path("link")).await.unwrap();
        // Only the link.
        engine.remove_dir_all(fixture.path("link")).await.unwrap();
        assert_eq!(fixture.names(""), ["d", "outside"]);
        // Dropped after its first step.
        drop(poll_once(engine.remove_dir_all(fixture.path("d"))).await);
        engine.remove_dir_all(fixture.path("d")).await.unwrap();
        assert_eq!(fixture.names(""), ["outside"]);
        assert_eq!(fixture.contents("outside/kept").unwrap(), b"x");
        fixture.put("f", b"x");
        for (name, errno) in [("f", libc::ENOTDIR), ("gone", libc::ENOENT)] {
            let error = engine.remove_dir_all(fixture.path(name)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{name}");
        }
        assert_eq!(fixture.contents("f").unwrap(), b"x");
    });
}

#[test]
fn a_path_is_resolved_to_an_absolute_one_without_links() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let root = engine.canonicalize(fixture.path("")).await.unwrap();
        fixture.put("d/e/file", b"x");
        engine.symlink("d/e", fixture.path("link")).await.unwrap();
        for (path, expected) in [
            ("link/file", "d/e/file"),
            ("link/../../d/./e", "d/e"),
            ("d/e/..", "d"),
        ] {
            let found = engine.canonicalize(fixture.path(path)).await.unwrap();
            assert_eq!(found, root.join(expected), "{path}");
        }
        engine.symlink("loop", fixture.path("loop")).await.unwrap();
        for (path, errno) in [
            ("gone", libc::ENOENT),
            ("d/e/file/x", libc::ENOTDIR),
            ("loop", libc::ELOOP),
        ] {
            let error = engine.canonicalize(fixture.path(path)).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{path}");
        }
        drop(poll_once(engine.canonicalize(fixture.path("link"))).await);
        let error = engine.canonicalize("a\0b").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn a_whole_file_is_written_and_read() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let path = fixture.path("f");
        assert!(!engine.try_exists(&path).await.unwrap());
        for length in [100_000, 511, 512, 0] {
            engine.write(&path, bytes(1, length)).await.unwrap();
            assert_eq!(engine.read(&path).await.unwrap(), bytes(1, length));
        }
        assert!(engine.try_exists(&path).await.unwrap());
        engine.write(&path, "text").await.unwrap();
        assert_eq!(engine.read_to_string(&path).await.unwrap(), "text");
        engine.write(&path, vec![0xff]).await.unwrap();
        let error = engine.read_to_string(&path).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        let inside = engine.try_exists(path.join("x")).await.unwrap_err();
        assert_eq!(inside.raw_os_error(), Some(libc::ENOTDIR));
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_removed_file_lives_on_while_it_is_open() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let file = fixture.file("f", b"still here").await;
        engine.remove_file(fixture.path("f")).await.unwrap();
        assert!(fixture.names("").is_empty());
        let buf = file.read_exact_at(vec![0; 10], 0).await.unwrap();
        assert_eq!(buf, b"still here");
        file.write_all_at("more", 10).await.unwrap();
        let metadata = file.metadata().await.unwrap();
        assert_eq!((metadata.len(), metadata.links()), (14, 0));
        let error = engine.remove_file(fixture.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    });
}

#[test]
fn files_and_directories_are_removed_each_by_their_own_call() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        fixture.put("f", b"x");
        engine.create_dir(fixture.path("d")).await.unwrap();
        let error = engine.remove_dir(fixture.path("f")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
        let error = engine.remove_file(fixture.path("d")).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
        assert_eq!(fixture.names(""), ["d", "f"]);
    });
}

#[test]
fn a_directory_can_be_opened_and_synced() {
    for_each_backend(async |fixture| {
        fixture.engine.create_dir(fixture.path("d")).await.unwrap();
        fixture.put("d/f", b"x");
        let dir = fixture.engine.open(fixture.path("d")).await.unwrap();
        dir.sync_all().await.unwrap();
        assert!(dir.metadata().await.unwrap().is_dir());
        assert_eq!(dir.close().await.unwrap(), annulus::fs::Closed::Now);
    });
}
