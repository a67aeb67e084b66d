//! Futures and streams that are dropped: descriptors and staged files go away.

use std::path::Path as FilePath;

use crate::crash::staged_among;
use crate::open_files::descriptors_in;

/// Waits until no descriptor leads into `folder`, and no file in it is staged. Work that has started runs to its end.
fn wait_until_clean(folder: &FilePath) {
    let staged = || staged_among(std::fs::read_dir(folder).unwrap());
    while descriptors_in(folder) > 0 || staged() > 0 {
        std::thread::yield_now();
    }
}

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use super::wait_until_clean;
        use annulus_object_store::$store::LocalFileSystem;
        use futures_util::{FutureExt, StreamExt};
        use $object_store::ObjectStoreExt;
        use $object_store::path::Path;

        fn store(fallback: bool) -> (tempfile::TempDir, LocalFileSystem) {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            match fallback {
                true => (root, store.with_engine(crate::fallback())),
                false => (root, store),
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_stream_dropped_halfway_closes_its_file() {
            for fallback in [false, true] {
                let (root, store) = store(fallback);
                let location = Path::from("object");
                store
                    .put(&location, vec![7; 10 << 20].into())
                    .await
                    .unwrap();
                for chunks in 0..6 {
                    let mut stream = store.get(&location).await.unwrap().into_stream();
                    for _ in 0..chunks {
                        stream.next().await.unwrap().unwrap();
                    }
                    // Reads ahead are in flight.
                    let _ = stream.next().now_or_never();
                }
                store.close_files();
                wait_until_clean(root.path());
            }
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn an_upload_that_is_dropped_or_aborted_leaves_nothing() {
            for fallback in [false, true] {
                let (root, store) = store(fallback);
                let location = Path::from("object");
                for ending in 0..4 {
                    let mut upload = store.put_multipart(&location).await.unwrap();
                    upload.put_part(vec![1; 100_000].into()).await.unwrap();
                    let mut part = upload.put_part(vec![2; 8 << 20].into());
                    let _ = (&mut part).now_or_never();
                    match ending {
                        0 => {}
                        1 => upload.abort().await.unwrap(),
                        // Its second part may not be complete.
                        2 => drop(upload.complete().await),
                        _ => drop(upload.complete().now_or_never()),
                    }
                    drop((part, upload));
                }
                wait_until_clean(root.path());
            }
        }

        #[tokio::test]
        async fn an_upload_with_an_unwritten_part_is_not_completed() {
            let (root, store) = store(false);
            let location = Path::from("object");
            let mut upload = store.put_multipart(&location).await.unwrap();
            drop(upload.put_part("never written".into()));
            upload.put_part("written".into()).await.unwrap();
            upload.complete().await.unwrap_err();
            store.head(&location).await.unwrap_err();
            drop(upload);
            wait_until_clean(root.path());
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_dropped_put_is_made_or_leaves_nothing() {
            let (root, store) = store(false);
            let location = Path::from("object");
            // A put that is dropped before it begins is not made, which may be all of them.
            store
                .put(&location, vec![50; 100_000].into())
                .await
                .unwrap();
            for round in 0..50 {
                let contents = vec![round; 100_000];
                let _ = store.put(&location, contents.into()).now_or_never();
            }
            wait_until_clean(root.path());
            let got = store.get(&location).await.unwrap().bytes().await.unwrap();
            assert!(got.len() == 100_000 && got.iter().all(|byte| *byte == got[0]));
        }

        #[test]
        fn a_runtime_may_end_with_reads_in_flight() {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            std::fs::write(root.path().join("object"), vec![7; 4 << 20]).unwrap();
            for _ in 0..5 {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build();
                let runtime = runtime.unwrap();
                for task in 0..1000 {
                    let store = store.clone();
                    runtime.spawn(async move {
                        let location = Path::from("object");
                        match task % 2 {
                            0 => drop(store.get(&location).await?.bytes().await?),
                            _ => drop(
                                store
                                    .get_range(&location, task << 10..task + 300_000)
                                    .await?,
                            ),
                        }
                        Ok::<_, $object_store::Error>(())
                    });
                }
                runtime.block_on(tokio::task::yield_now());
                drop(runtime);
            }
            // Another runtime can use the store.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let bytes = runtime
                .block_on(store.get_range(&Path::from("object"), 0..10))
                .unwrap();
            assert_eq!(bytes, [7; 10].as_slice());
            drop(runtime);
            store.close_files();
            wait_until_clean(root.path());
        }
    };
}
crate::for_each_version!(tests);
