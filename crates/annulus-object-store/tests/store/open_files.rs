//! The cache of open files: bounded, and never wrong about which file an object is.

use std::path::Path as FilePath;

/// Returns how many descriptors of this process lead to files in `folder`.
pub(crate) fn descriptors_in(folder: &FilePath) -> usize {
    let folder = folder.canonicalize().unwrap();
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    // The descriptor of the listing itself is gone by then, and so may be others of the process.
    let targets = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(&folder)).count()
}

/// Waits until this process has no file in `folder` open. A thread closes files that have no name.
fn all_closed(folder: &FilePath) {
    while descriptors_in(folder) > 0 {
        std::thread::yield_now();
    }
}

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use super::{all_closed, descriptors_in};
        use std::time::Duration;

        use annulus_object_store::$store::LocalFileSystem;
        use annulus_testing::child_process::in_child;
        use futures_util::TryStreamExt;
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        use $object_store::path::Path;
        use $object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};

        async fn read(store: &LocalFileSystem, location: &str) -> Result<bytes::Bytes, Error> {
            store.get(&Path::from(location)).await?.bytes().await
        }

        /// Makes one of eight calls that need a descriptor.
        async fn make_call(number: usize, store: &LocalFileSystem) {
            let at = Path::from("deep/folder/object");
            let is_there = |listed: Vec<$object_store::ObjectMeta>| {
                assert!(listed.iter().any(|meta| meta.location == at));
            };
            match number {
                0 => is_there(store.list(None).try_collect().await.unwrap()),
                1 => {
                    let list = store.list_with_offset(None, &Path::from("d"));
                    is_there(list.try_collect().await.unwrap());
                }
                2 => drop(store.list_with_delimiter(None).await.unwrap()),
                3 => drop(store.remove_staged(Duration::ZERO).await.unwrap()),
                4 => drop(store.put(&at, "x".into()).await.unwrap()),
                5 => {
                    let store = store.clone().with_fsync(true);
                    drop(
                        store
                            .put(&Path::from("folder/x"), "x".into())
                            .await
                            .unwrap(),
                    );
                }
                6 => drop(store.put_multipart(&at).await.unwrap()),
                _ => drop(store.get_ranges(&at, &[0..1]).await.unwrap()),
            }
        }

        #[tokio::test]
        async fn a_file_stays_open_and_a_deletion_closes_it() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            for location in ["a", "b"] {
                store.put(&Path::from(location), "x".into()).await.unwrap();
                read(&store, location).await.unwrap();
                read(&store, location).await.unwrap();
            }
            assert_eq!(descriptors_in(root.path()), 2);
            store.delete(&Path::from("a")).await.unwrap();
            assert_eq!(descriptors_in(root.path()), 1);
            store.close_files();
            assert_eq!(descriptors_in(root.path()), 0);
            let store = store.with_open_files(0);
            read(&store, "b").await.unwrap();
            assert_eq!(descriptors_in(root.path()), 0);
        }

        #[tokio::test]
        async fn the_number_of_open_files_is_bounded() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path())
                .unwrap()
                .with_open_files(20);
            for object in 0..200 {
                let location = object.to_string();
                std::fs::write(root.path().join(&location), &location).unwrap();
                assert_eq!(read(&store, &location).await.unwrap(), location);
                assert!(descriptors_in(root.path()) <= 20);
            }
            assert!(descriptors_in(root.path()) > 0);
        }

        #[tokio::test]
        async fn a_change_by_the_store_is_found_whatever_the_store_trusts() {
            for trusted in [Duration::ZERO, Duration::MAX] {
                let root = tempfile::tempdir().unwrap();
                std::os::unix::fs::symlink(".", root.path().join("alias")).unwrap();
                let store = LocalFileSystem::new_with_prefix(root.path())
                    .unwrap()
                    .with_revalidation(trusted);
                let (a, b) = (Path::from("a"), Path::from("b"));
                let both = async |expected: Option<&str>| {
                    // The alias leads to the same file under another name.
                    for name in ["a", "alias/a"] {
                        let got = read(&store, name).await.ok();
                        assert_eq!(
                            got.as_deref(),
                            expected.map(str::as_bytes),
                            "{name}, {trusted:?}"
                        );
                    }
                };
                both(None).await;
                store.put(&a, "one".into()).await.unwrap();
                both(Some("one")).await;
                store.put(&a, "two".into()).await.unwrap();
                both(Some("two")).await;
                let mut upload = store.put_multipart(&a).await.unwrap();
                upload.put_part("three".into()).await.unwrap();
                both(Some("two")).await;
                upload.complete().await.unwrap();
                both(Some("three")).await;
                store.put(&b, "four".into()).await.unwrap();
                store.copy(&b, &a).await.unwrap();
                both(Some("four")).await;
                store.put(&b, "five".into()).await.unwrap();
                both(Some("four")).await;
                store.rename(&b, &a).await.unwrap();
                both(Some("five")).await;
                store.rename(&a, &b).await.unwrap();
                both(None).await;
                store.rename_if_not_exists(&b, &a).await.unwrap();
                both(Some("five")).await;
                store.delete(&a).await.unwrap();
                both(None).await;
            }
        }

        #[tokio::test]
        async fn a_creation_is_found_after_another_program_deleted_the_object() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let store = store.with_revalidation(Duration::MAX);
            let (at, from) = (Path::from("a"), Path::from("from"));
            for way in ["put", "copy", "rename"] {
                store.put(&from, "new".into()).await.unwrap();
                store.put(&at, "old".into()).await.unwrap();
                assert_eq!(read(&store, "a").await.unwrap(), "old");
                std::fs::remove_file(root.path().join("a")).unwrap();
                assert_eq!(read(&store, "a").await.unwrap(), "old", "it is not trusted");
                match way {
                    "put" => {
                        let created = store.put_opts(&at, "new".into(), PutMode::Create.into());
                        drop(created.await.unwrap());
                    }
                    "copy" => store.copy_if_not_exists(&from, &at).await.unwrap(),
                    _ => store.rename_if_not_exists(&from, &at).await.unwrap(),
                }
                all_closed(root.path());
                assert_eq!(read(&store, "a").await.unwrap(), "new", "{way}");
            }
        }

        #[tokio::test]
        async fn a_change_through_a_clone_is_found_whatever_its_settings() {
            let engine = annulus::Engine::new().unwrap();
            let layout = annulus::buf::BufferLayout::new(4, 4096);
            let arena = engine.register_buffers(layout).unwrap();
            let settings: [&dyn Fn(LocalFileSystem) -> LocalFileSystem; 7] = [
                &|clone| clone,
                &|clone| clone.with_engine(engine.clone()),
                &|clone| clone.with_open_files(7),
                &|clone| clone.with_open_files(0),
                &|clone| clone.with_revalidation(Duration::from_secs(7)),
                &|clone| clone.with_fsync(true),
                &|clone| clone.with_arena(arena.clone(), 1),
            ];
            for (number, setting) in settings.into_iter().enumerate() {
                let root = tempfile::tempdir().unwrap();
                let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
                let store = store.with_revalidation(Duration::MAX);
                let clone = setting(store.clone());
                let at = Path::from("a");
                for (one, other) in [(&store, &clone), (&clone, &store)] {
                    one.put(&at, "old".into()).await.unwrap();
                    for store in [one, other] {
                        assert_eq!(read(store, "a").await.unwrap(), "old", "{number}");
                    }
                    one.put(&at, "new".into()).await.unwrap();
                    // Neither keeps the space of the old file in use.
                    all_closed(root.path());
                    for store in [one, other] {
                        assert_eq!(read(store, "a").await.unwrap(), "new", "{number}");
                    }
                    one.close_files();
                    all_closed(root.path());
                }
            }
        }

        #[tokio::test]
        async fn a_change_by_another_program_is_found_at_once() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            let (path, next) = (root.path().join("a"), root.path().join("next"));
            std::fs::write(&path, "one").unwrap();
            for round in 0..50 {
                let contents = format!("{round}");
                std::fs::write(&next, &contents).unwrap();
                std::fs::rename(&next, &path).unwrap();
                assert_eq!(read(&store, "a").await.unwrap(), contents);
                // The same file with other contents.
                std::fs::write(&path, format!("{round} in place")).unwrap();
                assert_eq!(
                    read(&store, "a").await.unwrap(),
                    format!("{round} in place")
                );
                assert!(descriptors_in(root.path()) <= 1);
            }
            std::fs::remove_file(&path).unwrap();
            assert!(matches!(
                read(&store, "a").await,
                Err(Error::NotFound { .. })
            ));
            assert_eq!(descriptors_in(root.path()), 0);
            std::fs::create_dir(&path).unwrap();
            assert!(matches!(
                read(&store, "a").await,
                Err(Error::NotFound { .. })
            ));
        }

        #[tokio::test]
        async fn a_trusted_file_is_not_compared_before_its_time() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path())
                .unwrap()
                .with_revalidation(Duration::MAX);
            let path = root.path().join("a");
            std::fs::write(&path, "one").unwrap();
            assert_eq!(read(&store, "a").await.unwrap(), "one");
            std::fs::remove_file(&path).unwrap();
            assert_eq!(read(&store, "a").await.unwrap(), "one");
            let soon = store.with_revalidation(Duration::from_nanos(1));
            assert!(matches!(
                read(&soon, "a").await,
                Err(Error::NotFound { .. })
            ));
        }

        #[test]
        fn without_descriptors_the_store_closes_its_files_first() {
            let test = concat!(
                module_path!(),
                "::without_descriptors_the_store_closes_its_files_first"
            );
            let test = test.split_once("::").unwrap().1;
            in_child(test, || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(async {
                    let root = tempfile::tempdir().unwrap();
                    let store = LocalFileSystem::new_with_prefix(root.path())
                        .unwrap()
                        .with_open_files(10_000);
                    for object in 0..400 {
                        std::fs::write(root.path().join(object.to_string()), "x").unwrap();
                    }
                    std::fs::create_dir_all(root.path().join("deep/folder")).unwrap();
                    std::fs::write(root.path().join("deep/folder/object"), "x").unwrap();
                    // Creates the rings first.
                    read(&store, "0").await.unwrap();
                    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
                    setrlimit(Resource::RLIMIT_NOFILE, 100, hard).unwrap();
                    for object in 1..400 {
                        read(&store, &object.to_string()).await.unwrap();
                    }
                    let mut held = Vec::new();
                    for round in 0..20 {
                        while let Ok(file) = std::fs::File::open("/dev/null") {
                            held.push(file);
                        }
                        let contents = format!("{round}");
                        store
                            .put(&Path::from("new"), contents.clone().into())
                            .await
                            .unwrap();
                        assert_eq!(read(&store, "new").await.unwrap(), contents);
                        held.clear();
                        for object in 0..100 {
                            read(&store, &object.to_string()).await.unwrap();
                        }
                    }
                    // Each call opens something while no descriptor is free.
                    for call in 0..8 {
                        while let Ok(file) = std::fs::File::open("/dev/null") {
                            held.push(file);
                        }
                        make_call(call, &store).await;
                        held.clear();
                        for object in 0..100 {
                            read(&store, &object.to_string()).await.unwrap();
                        }
                    }
                });
            });
        }
    };
}
crate::for_each_version!(tests);
