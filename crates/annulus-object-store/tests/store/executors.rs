//! Calls whose futures another executor polls inside a Tokio runtime. They complete although no worker of the runtime
//! is free, or nothing drives the runtime, as those of `LocalFileSystem` do.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Fails the test instead of the whole run if a call never completes.
const COMPLETES_WITHIN: Duration = Duration::from_secs(5);

/// Returns a runtime with this number of workers; 0 for that of one thread.
fn runtime(workers: usize) -> Runtime {
    match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    }
    .worker_threads(workers.max(1))
    .enable_all()
    .build()
    .unwrap()
}

/// Runs `work` on another thread inside a runtime that nothing drives. Returns its messages.
fn on_an_idle_runtime<T: Send + 'static>(
    work: impl FnOnce(Handle) -> T + Send + 'static,
) -> Receiver<T> {
    let (done, result) = channel();
    let runtime = runtime(0);
    thread::spawn(move || {
        let _ = done.send(work(runtime.handle().clone()));
    });
    result
}

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use super::{COMPLETES_WITHIN, on_an_idle_runtime, runtime};
        use crate::errors::mounts_or_skip;
        use annulus_object_store::$store::LocalFileSystem;
        use annulus_testing::child_process::{in_child, in_fork};
        use annulus_testing::hung_fs::{FrozenFs, HungFs};
        use futures_util::future::FutureExt;
        use futures_util::stream::{self, StreamExt, TryStreamExt};
        use std::path::Path as FilePath;
        use std::sync::mpsc::channel;
        use std::time::Duration;
        use tokio::runtime::Runtime;
        use tokio::task::JoinHandle;
        use $object_store::path::Path;
        use $object_store::{ObjectStore, ObjectStoreExt, PutMode, Result};

        /// The bytes of an object whose ranges several workers read.
        const BIG: u64 = 40 << 20;

        /// Makes a call of each method in `folder`. `called` receives the name of each that returned.
        async fn every_method(
            folder: std::path::PathBuf,
            fsync: bool,
            called: impl FnMut(&'static str),
        ) -> Result<()> {
            let store = LocalFileSystem::new_with_prefix(&folder)?.with_fsync(fsync);
            store.remove_staged(Duration::ZERO).await?;
            every_method_below(&store, "", called).await
        }

        /// Makes a call of each method on the objects below `prefix`.
        async fn every_method_below(
            store: &LocalFileSystem,
            prefix: &str,
            mut called: impl FnMut(&'static str),
        ) -> Result<()> {
            let at = |name: &str| Path::from(format!("{prefix}/{name}"));
            let folder = Path::from(prefix);
            let folder = Some(&folder);
            store.put(&at("a"), "small".into()).await?;
            called("put");
            store.put(&at("large"), vec![1; 2 << 20].into()).await?;
            called("put of a large object");
            store
                .put_opts(&at("new"), "x".into(), PutMode::Create.into())
                .await?;
            called("create");
            let mut upload = store.put_multipart(&at("upload")).await?;
            upload.put_part(vec![1; 100_000].into()).await?;
            upload.complete().await?;
            let mut upload = store.put_multipart(&at("upload")).await?;
            upload.put_part("x".into()).await?;
            upload.abort().await?;
            called("upload");
            store.head(&at("a")).await?;
            store.get_range(&at("a"), 0..3).await?;
            store.get(&at("large")).await?.bytes().await?;
            called("get");
            let ranges: Vec<_> = (0..BIG >> 19)
                .map(|n| n << 19..(n << 19) + 500_000)
                .collect();
            let read = store.get_ranges(&at("big"), &ranges).await?;
            assert!(read.iter().all(|bytes| bytes.len() == 500_000));
            called("get_ranges");
            store.list(folder).try_collect::<Vec<_>>().await?;
            store
                .list_with_offset(folder, &at("b"))
                .try_collect::<Vec<_>>()
                .await?;
            store.list_with_delimiter(folder).await?;
            called("lists");
            store.copy(&at("a"), &at("folder/copy")).await?;
            store.copy_if_not_exists(&at("a"), &at("copy")).await?;
            called("copy");
            store.rename(&at("copy"), &at("renamed")).await?;
            store
                .rename_if_not_exists(&at("renamed"), &at("copy"))
                .await?;
            called("rename");
            store.delete(&at("copy")).await?;
            let several = ["a", "large", "new"].map(|name| Ok(at(name)));
            let deleted = store.delete_stream(stream::iter(several).boxed());
            assert_eq!(deleted.try_collect::<Vec<_>>().await?.len(), 3);
            called("delete");
            Ok(())
        }

        /// Starts calls below `folder` on the worker of a runtime. Returns once each was polled, and hangs.
        fn start_calls(
            runtime: &Runtime,
            store: &LocalFileSystem,
            folder: &FilePath,
            count: usize,
            changes_only: bool,
        ) -> Vec<JoinHandle<Result<()>>> {
            let (messages, polled) = channel();
            let start = |number: usize| {
                let (store, messages) = (store.clone(), messages.clone());
                let kind = number % if changes_only { 6 } else { 9 };
                let at = format!("{}/{number}", folder.display());
                let (at, to) = (Path::from(at.as_str()), Path::from(format!("{at}-to")));
                let mut call = async move {
                    match kind {
                        0 => store.put(&at, "small".into()).await.map(drop),
                        1 => store.put(&at, vec![1; 100_000].into()).await.map(drop),
                        2 => store.put_multipart(&at).await.map(drop),
                        3 => store.delete(&at).await,
                        4 => store.copy(&at, &to).await,
                        5 => store.rename(&at, &to).await,
                        6 => store.get(&at).await.map(drop),
                        7 => store
                            .list(Some(&at))
                            .try_collect::<Vec<_>>()
                            .await
                            .map(drop),
                        _ => store.list_with_delimiter(Some(&at)).await.map(drop),
                    }
                }
                .boxed();
                runtime.spawn(async move {
                    let hangs = (&mut call).now_or_never().is_none();
                    messages.send((kind, hangs)).unwrap();
                    call.await
                })
            };
            let calls = (0..count).map(start).collect();
            for (kind, hangs) in polled.iter().take(count) {
                assert!(hangs, "kind {kind}");
            }
            calls
        }

        /// Makes calls of each method on a file system that does not hang, through `everything` and other stores.
        fn others_complete(runtime: &Runtime, everything: &LocalFileSystem) {
            let folder = folder();
            let path = folder.path().to_owned();
            let prefix = path.to_str().unwrap().to_owned();
            let everything = everything.clone();
            let (messages, received) = channel();
            runtime.spawn(async move {
                for fsync in [false, true] {
                    let called = |name| messages.send(Ok(name)).unwrap();
                    let all = every_method(path.clone(), fsync, called).await;
                    messages.send(Err(all)).unwrap();
                    let store = everything.clone().with_fsync(fsync);
                    let called = |name| messages.send(Ok(name)).unwrap();
                    let all = every_method_below(&store, &prefix, called).await;
                    messages.send(Err(all)).unwrap();
                }
            });
            let (mut last, mut done) = ("start", 0);
            while done < 4 {
                match received.recv_timeout(COMPLETES_WITHIN) {
                    Ok(Ok(name)) => last = name,
                    Ok(Err(all)) => {
                        all.unwrap();
                        done += 1;
                    }
                    Err(_) => panic!("a call after `{last}` hangs"),
                }
            }
        }

        /// Returns stores of `/`: with a ring, durable, and without a ring.
        fn stores_of_everything() -> [LocalFileSystem; 3] {
            let store = LocalFileSystem::new;
            let fallback = store().with_engine(crate::fallback());
            [store(), store().with_fsync(true), fallback]
        }

        #[test]
        fn calls_on_a_fuse_that_hangs_stop_no_others_and_no_end() {
            let test = concat!(
                module_path!(),
                "::calls_on_a_fuse_that_hangs_stop_no_others_and_no_end"
            );
            in_child(test.split_once("::").unwrap().1, || {
                if !mounts_or_skip() {
                    return;
                }
                for count in [16, 64, 300] {
                    let folder = tempfile::tempdir().unwrap();
                    let _hung = HungFs::mount(folder.path()).unwrap();
                    for number in 0..3 {
                        // The child ends while the calls hang.
                        in_fork(|| {
                            let runtime = runtime(1);
                            let everything = &stores_of_everything()[number];
                            let calls =
                                start_calls(&runtime, everything, folder.path(), count, false);
                            others_complete(&runtime, everything);
                            assert!(calls.iter().all(|call| !call.is_finished()));
                            std::mem::forget(runtime); // It would wait for the calls.
                        });
                    }
                }
            });
        }

        /// Needs a loop device.
        #[test]
        #[ignore = "ci/hostile runs it"]
        fn changes_on_a_frozen_disk_stop_no_others() {
            let test = concat!(module_path!(), "::changes_on_a_frozen_disk_stop_no_others");
            in_child(test.split_once("::").unwrap().1, || {
                if !mounts_or_skip() {
                    return;
                }
                let folder = tempfile::tempdir().unwrap();
                let image = tempfile::NamedTempFile::new().unwrap();
                let disk = FrozenFs::mount(folder.path(), image.path()).unwrap();
                for count in [16, 64, 300] {
                    for everything in stores_of_everything() {
                        let runtime = runtime(1);
                        for number in 0..count {
                            std::fs::write(folder.path().join(number.to_string()), "x").unwrap();
                        }
                        // Thawed before the runtime ends, which waits for the calls.
                        let frozen = disk.freeze().unwrap();
                        let calls = start_calls(&runtime, &everything, folder.path(), count, true);
                        others_complete(&runtime, &everything);
                        assert!(calls.iter().all(|call| !call.is_finished()));
                        drop(frozen);
                        for call in calls {
                            runtime.block_on(call).unwrap().unwrap();
                        }
                    }
                }
            });
        }

        /// Returns a folder with an object of many bytes.
        fn folder() -> tempfile::TempDir {
            let folder = tempfile::tempdir().unwrap();
            let big = std::fs::File::create(folder.path().join("big")).unwrap();
            big.set_len(BIG).unwrap();
            folder
        }

        /// Blocks every worker of a runtime on the calls of a task.
        fn block_workers(workers: usize, fsync: bool) {
            let (messages, received) = channel();
            let runtime = runtime(workers);
            let folders: Vec<_> = (0..workers.max(1)).map(|_| folder()).collect();
            for folder in &folders {
                let (messages, folder) = (messages.clone(), folder.path().to_owned());
                runtime.spawn(async move {
                    let all = every_method(folder, fsync, |name| {
                        messages.send(Ok(name)).unwrap();
                    });
                    // A future of this size does not fit on a worker's stack together with that of the task.
                    messages
                        .send(Err(pollster::block_on(Box::pin(all))))
                        .unwrap();
                });
            }
            if workers == 0 {
                std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
            } else {
                std::mem::forget(runtime); // Its workers would be waited for.
            }
            drop(messages);
            let mut last = "start";
            for _ in 0..folders.len() {
                loop {
                    match received.recv_timeout(COMPLETES_WITHIN) {
                        Ok(Ok(name)) => last = name,
                        Ok(Err(all)) => break all.unwrap(),
                        Err(_) => panic!("{workers} workers: a call after `{last}` hangs"),
                    }
                }
            }
        }

        #[test]
        fn calls_complete_while_every_worker_is_blocked_on_them() {
            for workers in [0, 1, 2, 4] {
                block_workers(workers, false);
                block_workers(workers, true);
            }
        }

        #[test]
        fn a_new_store_works_in_a_forked_child() {
            let test = concat!(module_path!(), "::a_new_store_works_in_a_forked_child");
            in_child(test.split_once("::").unwrap().1, || {
                // The shared engine is that of the parent first.
                let use_all = |fsync| {
                    let folder = folder();
                    let all = every_method(folder.path().to_owned(), fsync, |_| {});
                    runtime(1).block_on(all).unwrap();
                };
                use_all(false);
                in_fork(|| {
                    use_all(false);
                    use_all(true);
                    in_fork(|| use_all(false));
                });
                use_all(false);
            });
        }

        #[test]
        fn calls_complete_in_a_runtime_that_nothing_drives() {
            let folder = folder();
            let path: &FilePath = folder.path();
            for blocks_on_handle in [false, true] {
                let all = every_method(path.to_owned(), false, |_| {});
                let done = on_an_idle_runtime(move |handle| match blocks_on_handle {
                    true => handle.block_on(all),
                    false => {
                        let _inside = handle.enter();
                        pollster::block_on(all)
                    }
                });
                let result = done.recv_timeout(COMPLETES_WITHIN);
                result.expect("a call hangs").unwrap();
                for name in ["folder/copy", "upload"] {
                    std::fs::remove_file(path.join(name)).unwrap();
                }
            }
        }
    };
}
crate::for_each_version!(tests);
