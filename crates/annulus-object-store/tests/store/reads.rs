//! Reads of all sizes, and of files that change meanwhile.

macro_rules! tests {
    ($store:ident, $object_store:ident) => {
        use std::ops::Range;

        use annulus_object_store::$store::LocalFileSystem;
        use bytes::Bytes;
        use futures_util::{StreamExt, TryStreamExt};
        use $object_store::path::Path;
        use $object_store::{GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt};

        /// Bytes that tell their place.
        fn contents(bytes: usize) -> Bytes {
            annulus_testing::pattern::bytes(0, 0, bytes).into()
        }

        fn store() -> (tempfile::TempDir, LocalFileSystem) {
            let root = tempfile::tempdir().unwrap();
            let store = LocalFileSystem::new_with_prefix(root.path()).unwrap();
            (root, store)
        }

        #[tokio::test]
        async fn objects_of_every_size_are_read_whole() {
            let (_root, store) = store();
            let location = Path::from("object");
            for bytes in [0, 1, 4096, 1 << 20, (1 << 20) + 1, (6 << 20) + 7] {
                let expected = contents(bytes);
                store.put(&location, expected.clone().into()).await.unwrap();
                let got = store.get(&location).await.unwrap();
                assert_eq!(
                    (got.meta.size, got.range.clone()),
                    (bytes as u64, 0..bytes as u64)
                );
                assert_eq!(got.bytes().await.unwrap(), expected);
                let chunks = store.get(&location).await.unwrap().into_stream();
                let chunks: Vec<Bytes> = chunks.try_collect().await.unwrap();
                assert!(chunks.iter().all(|chunk| !chunk.is_empty()));
                assert_eq!(chunks.concat(), expected);
            }
        }

        #[tokio::test]
        async fn ranges_beyond_a_reported_length_of_zero_fail() {
            let store = LocalFileSystem::new_with_prefix("/proc/self").unwrap();
            let (at, ranges) = (Path::from("status"), [0..4]);
            assert_eq!(store.head(&at).await.unwrap().size, 0);
            let error = store.get_ranges(&at, &ranges).await.unwrap_err();
            assert!(error.to_string().contains("has 0 bytes"), "{error}");
        }

        #[tokio::test]
        async fn a_range_is_cut_at_the_end_and_must_not_start_there() {
            let (_root, store) = store();
            let location = Path::from("object");
            let expected = contents(3 << 20);
            store.put(&location, expected.clone().into()).await.unwrap();
            let end = 3 << 20;
            for range in [0..10, end - 10..end, end - 5..end + 5, 7..2 << 20] {
                let got = store.get_range(&location, range.clone()).await.unwrap();
                assert_eq!(
                    got,
                    expected[range.start as usize..range.end.min(end) as usize]
                );
            }
            for range in [end..end + 1, end + 1..end + 2] {
                store.get_range(&location, range).await.unwrap_err();
            }
        }

        #[tokio::test]
        async fn many_ranges_come_in_their_order() {
            let (_root, store) = store();
            let location = Path::from("object");
            let expected = contents(1 << 20);
            store.put(&location, expected.clone().into()).await.unwrap();
            let mut random = fastrand::Rng::with_seed(7);
            let mut ranges: Vec<Range<u64>> = (0..3000)
                .map(|_| {
                    let start = random.u64(0..1 << 20);
                    start..(start + random.u64(0..3000)).min(1 << 20)
                })
                .collect();
            ranges.extend([0..1 << 20, 0..0, 5..5, 0..100, 100..200]);
            for engine in [None, Some(crate::fallback())] {
                let store = match engine {
                    Some(engine) => store.clone().with_engine(engine),
                    None => store.clone(),
                };
                let got = store.get_ranges(&location, &ranges).await.unwrap();
                assert_eq!(got.len(), ranges.len());
                for (range, bytes) in ranges.iter().zip(got) {
                    let expected = &expected[range.start as usize..range.end as usize];
                    assert!(bytes == expected, "{range:?}");
                }
            }
            assert!(store.get_ranges(&location, &[]).await.unwrap().is_empty());
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
        async fn the_workers_share_a_long_batch() {
            let (root, store) = store();
            let location = Path::from("object");
            let end = 40 << 20;
            let expected = contents(end as usize);
            store.put(&location, expected.clone().into()).await.unwrap();
            let mut random = fastrand::Rng::with_seed(7);
            let ranges: Vec<Range<u64>> = (0..1500)
                .map(|_| {
                    let start = random.u64(0..end);
                    start..(start + random.u64(0..60_000)).min(end)
                })
                .collect();
            let got = store.get_ranges(&location, &ranges).await.unwrap();
            assert_eq!(got.len(), ranges.len());
            for (range, bytes) in ranges.iter().zip(got) {
                let expected = &expected[range.start as usize..range.end as usize];
                assert!(bytes == expected, "{range:?}");
            }
            // The checked length is that of an open file, which another program makes shorter during the reads.
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(root.path().join("object"))
                .unwrap();
            let shorten = tokio::task::spawn_blocking(move || file.set_len(5).unwrap());
            if let Ok(got) = store.get_ranges(&location, &ranges).await {
                let lengths = got.iter().map(|bytes| bytes.len() as u64);
                assert!(lengths.eq(ranges.iter().map(|range| range.end - range.start)));
            }
            shorten.await.unwrap();
            store.get_ranges(&location, &ranges).await.unwrap_err();
        }

        #[tokio::test]
        async fn one_bad_range_fails_the_batch() {
            let (_root, store) = store();
            let location = Path::from("object");
            store.put(&location, contents(100).into()).await.unwrap();
            #[allow(clippy::reversed_empty_ranges)] // A mistake of a caller.
            for bad in [100..101, 50..101, 200..300, 0..u64::MAX, 60..50] {
                let error = store.get_ranges(&location, &[0..10, bad.clone()]).await;
                assert!(error.is_err(), "{bad:?}");
            }
        }

        #[tokio::test]
        async fn a_file_that_becomes_shorter_fails_the_read() {
            let (root, store) = store();
            let location = Path::from("object");
            store
                .put(&location, contents(16 << 20).into())
                .await
                .unwrap();
            let mut chunks = store.get(&location).await.unwrap().into_stream();
            chunks.next().await.unwrap().unwrap();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(root.path().join("object"));
            file.unwrap().set_len(5 << 20).unwrap();
            let rest: Vec<_> = chunks.collect().await;
            assert!(rest.iter().rev().skip(1).all(Result::is_ok));
            assert!(rest.last().unwrap().is_err());
        }

        #[tokio::test]
        async fn a_head_reads_nothing_but_the_object_can_be_read() {
            let (_root, store) = store();
            let location = Path::from("object");
            store.put(&location, contents(100).into()).await.unwrap();
            let options = GetOptions {
                head: true,
                ..GetOptions::default()
            };
            let got = store.get_opts(&location, options).await.unwrap();
            assert!(matches!(got.payload, GetResultPayload::Stream(_)));
            assert_eq!(got.bytes().await.unwrap(), contents(100));
        }

        #[tokio::test]
        async fn slices_that_are_kept_do_not_starve_the_arena() {
            for engine in [annulus::Engine::new().unwrap(), crate::fallback()] {
                let arena = engine
                    .register_buffers(annulus::buf::BufferLayout::new(16, 64 << 10))
                    .unwrap();
                let (_root, store) = store();
                let store = store.with_engine(engine).with_arena(arena.clone(), 4);
                let location = Path::from("object");
                let expected = contents(2 << 20);
                store.put(&location, expected.clone().into()).await.unwrap();
                let mut kept = Vec::new();
                for start in 0..8_u64 {
                    let range = start * 1000..start * 1000 + 5000;
                    kept.push((
                        range.clone(),
                        store.get_range(&location, range).await.unwrap(),
                    ));
                }
                assert_eq!((arena.free(), store.heap_reads()), (8, 0));
                // Apart, so that each needs its own read.
                let ranges: Vec<_> = (0..20_u64)
                    .map(|at| at * 100_000..at * 100_000 + 60_000)
                    .collect();
                let got = store.get_ranges(&location, &ranges).await.unwrap();
                kept.extend(ranges.into_iter().zip(got));
                assert_eq!((arena.free(), store.heap_reads()), (4, 16));
                // Longer than a buffer.
                assert_eq!(
                    store.get(&location).await.unwrap().bytes().await.unwrap(),
                    expected
                );
                for (range, bytes) in &kept {
                    assert_eq!(*bytes, expected[range.start as usize..range.end as usize]);
                }
                let last = kept.pop().unwrap().1.slice(10..20);
                drop(kept);
                assert_eq!(arena.free(), 16);
                drop(last);
                let first = store.get_range(&location, 0..10).await.unwrap().slice(1..2);
                assert_eq!(arena.free(), 15);
                drop(first);
                assert_eq!(arena.free(), 16);
            }
        }

        #[tokio::test]
        async fn ranges_beyond_four_gib_are_read() {
            let (root, store) = store();
            let file = std::fs::File::create(root.path().join("object")).unwrap();
            let at = (5 << 30) + 17;
            std::os::unix::fs::FileExt::write_all_at(&file, b"far away", at).unwrap();
            let location = Path::from("object");
            assert_eq!(store.head(&location).await.unwrap().size, at + 8);
            assert_eq!(
                store.get_range(&location, at..at + 8).await.unwrap(),
                "far away"
            );
            let got = store
                .get_ranges(&location, &[at + 4..at + 8, 0..2])
                .await
                .unwrap();
            assert_eq!(got, [Bytes::from("away"), Bytes::from(vec![0; 2])]);
        }
    };
}
crate::for_each_version!(tests);
