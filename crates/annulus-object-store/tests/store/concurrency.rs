//! Many tasks on one object: one creation wins, and each reader sees one complete version.

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        use annulus_object_store::$store::LocalFileSystem;
        use futures_util::future::join_all;
        use futures_util::stream::{self, StreamExt, TryStreamExt};
        use $object_store::path::Path;
        use $object_store::{Error, ObjectStore, ObjectStoreExt, PutMode};

        const TASKS: usize = 64;
        const PUTS: usize = 150;

        fn store() -> (tempfile::TempDir, LocalFileSystem) {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            (root, store)
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn deletions_are_made_at_most_nine_ahead_of_their_caller() {
            for fallback in [false, true] {
                let (root, store) = store();
                let store = match fallback {
                    true => store.with_engine(crate::fallback()),
                    false => store,
                };
                for object in 0..1000 {
                    std::fs::write(root.path().join(object.to_string()), "x").unwrap();
                }
                let taken = Arc::new(AtomicUsize::new(0));
                let count = Arc::clone(&taken);
                let locations = (0..1000).map(|object| match object {
                    99 => Ok(Path::from("missing")),
                    _ => Ok(Path::from(object.to_string())),
                });
                let locations = stream::iter(locations).inspect(move |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                });
                let mut deletions = store.delete_stream(locations.boxed());
                for object in 0..99 {
                    let deleted = deletions.next().await.unwrap().unwrap();
                    assert_eq!(deleted, Path::from(object.to_string()));
                    let taken = taken.load(Ordering::SeqCst);
                    assert!(
                        taken <= object + 10,
                        "{taken} taken, {object} returned before"
                    );
                }
                deletions.next().await.unwrap().unwrap_err();
                drop(deletions);
                let left = std::fs::read_dir(root.path()).unwrap().count();
                assert!((1000 - 99 - 9..=1000 - 99).contains(&left), "{left} left");
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_change_creates_folders_that_others_remove_as_they_become_empty() {
            let (_root, store) = store();
            let store = store.with_automatic_cleanup(true);
            let tasks = (0..16).map(|task| {
                let store = store.clone();
                tokio::spawn(async move {
                    let (from, to) = (format!("a/b/{task}"), format!("c/d/{task}"));
                    let (from, to) = (Path::from(from), Path::from(to));
                    for _ in 0..PUTS {
                        store.put(&from, "contents".into()).await.unwrap();
                        store.rename(&from, &to).await.unwrap();
                        store.delete(&to).await.unwrap();
                    }
                })
            });
            for done in join_all(tasks).await {
                done.unwrap();
            }
        }

        /// Runs a task for each number, and returns the only one that succeeded. The others found the object.
        async fn winner<F>(task: impl Fn(usize) -> F) -> usize
        where
            F: Future<Output = Result<(), Error>> + Send + 'static,
        {
            let tasks = join_all((0..TASKS).map(|number| tokio::spawn(task(number)))).await;
            let mut winners = Vec::new();
            for (number, result) in tasks.into_iter().enumerate() {
                match result.unwrap() {
                    Ok(()) => winners.push(number),
                    Err(Error::AlreadyExists { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(winners.len(), 1);
            winners[0]
        }

        async fn contents(store: &LocalFileSystem, location: &Path) -> String {
            let bytes = store.get(location).await.unwrap().bytes().await.unwrap();
            String::from_utf8(bytes.into()).unwrap()
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn one_of_many_creations_wins() {
            let (root, store) = store();
            let target = |round: usize| Path::from(format!("folder{round}/target"));
            for round in 0..5 {
                let put = winner(|number| {
                    let store = store.clone();
                    async move {
                        let contents = number.to_string().into();
                        store
                            .put_opts(&target(round), contents, PutMode::Create.into())
                            .await
                            .map(drop)
                    }
                });
                let put = put.await;
                assert_eq!(contents(&store, &target(round)).await, put.to_string());
                for number in 0..TASKS {
                    store
                        .put(&Path::from(format!("{number}")), number.to_string().into())
                        .await
                        .unwrap();
                }
                let copy = target(round + 100);
                let copied = winner(|number| {
                    let (store, copy) = (store.clone(), copy.clone());
                    async move {
                        store
                            .copy_if_not_exists(&Path::from(format!("{number}")), &copy)
                            .await
                    }
                });
                let copied = copied.await;
                assert_eq!(contents(&store, &copy).await, copied.to_string());
                let renamed = target(round + 200);
                let winner = winner(|number| {
                    let (store, renamed) = (store.clone(), renamed.clone());
                    async move {
                        store
                            .rename_if_not_exists(&Path::from(format!("{number}")), &renamed)
                            .await
                    }
                });
                let winner = winner.await;
                assert_eq!(contents(&store, &renamed).await, winner.to_string());
                for number in 0..TASKS {
                    assert_eq!(
                        root.path().join(number.to_string()).exists(),
                        number != winner
                    );
                }
            }
            assert_eq!(
                store
                    .remove_staged(std::time::Duration::ZERO)
                    .await
                    .unwrap(),
                0
            );
        }

        /// A version: its length depends on its number, and each byte is its number.
        fn version(number: u8) -> Vec<u8> {
            vec![number; 1000 * (1 + usize::from(number))]
        }

        async fn read_versions(store: LocalFileSystem, location: Path, writers: Arc<AtomicUsize>) {
            let mut reads = 0;
            while writers.load(Ordering::SeqCst) > 0 || reads == 0 {
                reads += 1;
                let got = store.get(&location).await.unwrap();
                let (size, tag) = (got.meta.size, got.meta.e_tag.clone());
                let bytes = got.bytes().await.unwrap();
                assert_eq!(bytes.len() as u64, size, "{tag:?}");
                assert_eq!(bytes, version(bytes[0]));
                let parts = store
                    .get_ranges(&location, &[0..10, 500..600, 600..1000])
                    .await
                    .unwrap();
                assert!(parts.iter().flatten().all(|byte| *byte == parts[0][0]));
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn readers_see_one_complete_version_while_writers_replace_it() {
            for trusted in [std::time::Duration::ZERO, std::time::Duration::MAX] {
                let (root, store) = store();
                let store = store.with_revalidation(trusted);
                let location = Path::from("folder/object");
                store.put(&location, version(0).into()).await.unwrap();
                let writers = Arc::new(AtomicUsize::new(4));
                let write = |number: u8| {
                    let (store, location, writers) =
                        (store.clone(), location.clone(), Arc::clone(&writers));
                    async move {
                        for round in 0..20 {
                            let contents = version(4 * round + number);
                            match round % 3 {
                                0 => drop(store.put(&location, contents.into()).await.unwrap()),
                                1 => {
                                    let mut upload = store.put_multipart(&location).await.unwrap();
                                    let (one, two) = contents.split_at(contents.len() / 3);
                                    let parts = [one, two]
                                        .map(|part| upload.put_part(part.to_vec().into()));
                                    futures_util::future::try_join_all(parts).await.unwrap();
                                    upload.complete().await.unwrap();
                                }
                                _ => {
                                    let other = Path::from(format!("other/{number}"));
                                    store.put(&other, contents.into()).await.unwrap();
                                    match number % 2 {
                                        0 => store.copy(&other, &location).await.unwrap(),
                                        _ => store.rename(&other, &location).await.unwrap(),
                                    }
                                }
                            }
                        }
                        writers.fetch_sub(1, Ordering::SeqCst);
                    }
                };
                let writes: Vec<_> = (0..4).map(|number| tokio::spawn(write(number))).collect();
                let reads: Vec<_> = (0..4)
                    .map(|_| {
                        tokio::spawn(read_versions(
                            store.clone(),
                            location.clone(),
                            Arc::clone(&writers),
                        ))
                    })
                    .collect();
                for task in writes.into_iter().chain(reads) {
                    task.await.unwrap();
                }
                let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
                assert!(
                    listed
                        .iter()
                        .all(|meta| !meta.location.as_ref().contains('#'))
                );
                assert_eq!(
                    store
                        .remove_staged(std::time::Duration::ZERO)
                        .await
                        .unwrap(),
                    0
                );
                drop(root);
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn durable_puts_at_the_same_time_succeed_or_fail_each_by_itself() {
            let (root, store) = store();
            let store = store.with_fsync(true);
            store.put(&Path::from("file"), "x".into()).await.unwrap();
            let put = |number: usize| {
                let store = store.clone();
                let location = match number % 4 {
                    0 => Path::from(format!("file/{number}")),
                    1 => Path::from("created once"),
                    folder => Path::from(format!("folder{folder}/{number}")),
                };
                let mode = match number % 4 {
                    1 => PutMode::Create,
                    _ => PutMode::Overwrite,
                };
                tokio::spawn(async move {
                    let new = number.to_string().into();
                    let put = store.put_opts(&location, new, mode.into()).await?;
                    assert_eq!(store.head(&location).await?.e_tag, put.e_tag);
                    assert_eq!(contents(&store, &location).await, number.to_string());
                    Ok::<_, Error>(())
                })
            };
            let puts = join_all((0..4 * TASKS).map(put)).await;
            let mut succeeded = [0; 4];
            for (number, put) in puts.into_iter().enumerate() {
                let kind = number % 4;
                match put.unwrap() {
                    Ok(()) => succeeded[kind] += 1,
                    Err(Error::Generic { .. }) if kind == 0 => {}
                    Err(Error::AlreadyExists { .. }) if kind == 1 => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert_eq!(succeeded, [0, 1, TASKS, TASKS]);
            let staged = crate::crash::staged_among(std::fs::read_dir(root.path()).unwrap());
            assert_eq!(staged, 0);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn a_version_that_a_put_has_returned_is_never_missed() {
            let (_root, store) = store();
            let store = store.with_revalidation(std::time::Duration::MAX);
            let location = Path::from("object");
            store.put(&location, "0".into()).await.unwrap();
            let latest = Arc::new(AtomicUsize::new(0));
            let reads: Vec<_> = (0..4)
                .map(|_| {
                    let (store, location, latest) =
                        (store.clone(), location.clone(), Arc::clone(&latest));
                    tokio::spawn(async move {
                        loop {
                            let at_least = latest.load(Ordering::SeqCst);
                            let got: usize = contents(&store, &location).await.parse().unwrap();
                            assert!(got >= at_least, "{got} after {at_least} had been put");
                            if at_least == PUTS {
                                return;
                            }
                        }
                    })
                })
                .collect();
            for number in 1..=PUTS {
                store
                    .put(&location, number.to_string().into())
                    .await
                    .unwrap();
                latest.store(number, Ordering::SeqCst);
            }
            for task in reads {
                task.await.unwrap();
            }
        }
    };
}
crate::for_each_version!(tests);
