//! Batches with merged reads of neighbouring ranges.

use std::io::ErrorKind;

use annulus::OpenOptions;
use annulus::fs::Merge;

use crate::fixtures::{bytes, for_each_backend, uncache};
use crate::wait::DEADLINE;

fn merge(gap_bytes: u64, max_bytes: usize) -> Merge {
    Merge::new(gap_bytes, max_bytes)
}

#[test]
fn ranges_are_read_together_as_far_as_gap_and_cap_allow() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 100_000);
        let file = fixture.file("f", &contents).await;
        let ranges = [
            (0, 1000),
            (1000, 1000),
            (2100, 900),
            (50_000, 10),
            (3500, 500),
        ];
        for (rule, transfers) in [
            (merge(0, 1 << 20), 4),
            (merge(100, 1 << 20), 3),
            (merge(99, 1 << 20), 4),
            (merge(500, 1 << 20), 2),
            (merge(u64::MAX, 1 << 20), 1),
            (merge(u64::MAX, 2000), 3),
            (merge(u64::MAX, 1), 5),
            (Merge::default(), 2),
        ] {
            let reads = ranges.map(|(offset, count)| (vec![0; count], offset));
            uncache(&file).await;
            let batch = file.read_many_at(reads).merge(rule);
            assert_eq!(batch.transfers(), transfers, "{rule:?}");
            let results = batch.await;
            assert_eq!(results.len(), ranges.len());
            for (outcome, (offset, count)) in results.into_iter().zip(ranges) {
                let (n, buf) = outcome.unwrap();
                assert_eq!(n, count);
                assert_eq!(buf, contents[offset as usize..][..count], "{rule:?}");
            }
        }
    });
}

#[test]
fn overlapping_ranges_get_their_bytes_from_one_transfer() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, 10_000);
        let file = fixture.file("f", &contents).await;
        let ranges = [(100, 500), (0, 5000), (100, 500), (4999, 2), (400, 4600)];
        let reads = ranges.map(|(offset, count)| (vec![0; count], offset));
        let batch = file.read_many_at(reads).merge(merge(0, 1 << 20));
        assert_eq!(batch.transfers(), 1);
        for (outcome, (offset, count)) in batch.await.into_iter().zip(ranges) {
            assert_eq!(outcome.unwrap().1, contents[offset as usize..][..count]);
        }
    });
}

#[test]
fn the_end_of_the_file_inside_a_merged_range_shortens_only_what_lies_beyond() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 1000);
        let file = fixture.file("f", &contents).await;
        let ranges = [
            (0, 900, 900),
            (900, 200, 100),
            (990, 500, 10),
            (1000, 7, 0),
            (1200, 9, 0),
        ];
        let reads = ranges.map(|(offset, count, _)| (vec![0xee; count], offset));
        for _ in 0..2 {
            uncache(&file).await;
            let batch = file.read_many_at(reads.clone()).merge(Merge::default());
            assert_eq!(batch.transfers(), 1);
            for (outcome, (offset, count, expected)) in batch.await.into_iter().zip(ranges) {
                let (n, buf) = outcome.unwrap();
                assert_eq!((n, buf.len()), (expected, count), "at {offset}");
                let from = (offset as usize).min(1000);
                assert_eq!(buf[..n], contents[from..][..n]);
                assert!(buf[n..].iter().all(|&byte| byte == 0xee));
            }
        }
    });
}

#[test]
fn merged_reads_fill_buffers_that_only_have_spare_capacity() {
    for_each_backend(async |fixture| {
        let contents = bytes(4, 1000);
        let file = fixture.file("f", &contents).await;
        let reads: Vec<(Vec<u8>, u64)> = [0, 400, 900]
            .map(|offset| (Vec::with_capacity(300), offset))
            .into();
        let rooms: Vec<usize> = reads.iter().map(|(buf, _)| buf.capacity()).collect();
        let results = file.read_many_at(reads).merge(Merge::default()).await;
        for ((outcome, offset), room) in results.into_iter().zip([0, 400, 900]).zip(rooms) {
            let (n, buf) = outcome.unwrap();
            assert_eq!((n, buf.len()), (room.min(1000 - offset), n));
            assert_eq!(buf, contents[offset..][..n]);
        }
    });
}

#[test]
fn a_merged_stream_returns_every_read_once_and_refuses_bad_offsets() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 100_000);
        let file = fixture.file("f", &contents).await;
        let mut reads: Vec<_> = (0..90).map(|n| (vec![0; 100], n * 1000)).collect();
        reads[17].1 = u64::MAX;
        reads[18].0 = Vec::new();
        let offsets: Vec<u64> = reads.iter().map(|read| read.1).collect();
        let mut seen = vec![false; reads.len()];
        let mut batch = file
            .read_many_at(reads)
            .merge(merge(1000, 5000))
            .timeout(DEADLINE);
        while let Some(outcome) = batch.next().await {
            assert!(!std::mem::replace(&mut seen[outcome.index], true));
            assert_eq!(outcome.offset, offsets[outcome.index]);
            match (outcome.index, outcome.result) {
                (17, result) => {
                    let error = result.unwrap_err();
                    assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
                    assert_eq!(error.into_buf().unwrap().len(), 100);
                }
                (18, result) => {
                    let error = result.unwrap_err();
                    assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
                    assert!(error.into_buf().unwrap().is_empty());
                }
                (_, result) => {
                    let expected = &contents[outcome.offset as usize..][..100];
                    assert_eq!(result.unwrap().1, expected);
                }
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    });
}

#[test]
fn an_empty_merged_batch_and_a_dropped_one_work() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(6, 100_000)).await;
        let none = std::iter::empty::<(Vec<u8>, u64)>();
        let batch = file.read_many_at(none).merge(Merge::default());
        assert_eq!(batch.transfers(), 0);
        assert!(batch.await.is_empty());
        uncache(&file).await;
        let reads = (0..100).map(|n| (vec![0; 10], n * 1000));
        let mut batch = file.read_many_at(reads).merge(merge(0, 10));
        batch.next().await.unwrap().result.unwrap();
        drop(batch);
        file.read_exact_at(vec![0; 10], 0).await.unwrap();
    });
}

#[test]
fn neighbours_of_a_direct_file_are_merged_aligned_or_not() {
    for_each_backend(async |fixture| {
        if !fixture.machine_has("direct I/O") {
            return;
        }
        let contents = bytes(7, 100_001);
        fixture.put("f", &contents);
        let mut options = OpenOptions::new();
        options.read(true).direct(true);
        let path = fixture.path("f");
        let file = fixture.engine.open_with(&options, path).await.unwrap();
        let ranges = [
            (0, 4096),
            (4096, 4096),
            (8195, 77),
            (99_000, 5000),
            (60_000, 1),
        ];
        for max_bytes in [1, 8192, 1 << 20] {
            let reads = ranges.map(|(offset, count)| (vec![0; count], offset));
            let results = file.read_many_at(reads).merge(merge(100, max_bytes)).await;
            for (outcome, (offset, count)) in results.into_iter().zip(ranges) {
                let (n, buf) = outcome.unwrap();
                let expected = &contents[offset as usize..];
                assert_eq!(n, count.min(expected.len()));
                assert_eq!(buf[..n], expected[..n]);
            }
        }
    });
}
