//! Batches of reads.

use std::io::ErrorKind;
use std::time::Duration;

use annulus::buf::AlignedBuf;
#[cfg(not(annulus_portable))]
use annulus::fs::{Advice, Completed};
use annulus::{BufResult, EngineError, File, OpenOptions};

use crate::fixtures::{bytes, for_each_backend, uncache};
use crate::wait::DEADLINE;

const BLOCK: usize = 512;

/// Returns `count` blocks and the reads for them, last first.
fn reads(count: usize) -> impl Iterator<Item = (Vec<u8>, u64)> + Clone {
    (0..count as u64)
        .rev()
        .map(|block| (vec![0; BLOCK], block * BLOCK as u64))
}

fn block(contents: &[u8], offset: u64) -> &[u8] {
    &contents[offset as usize..][..BLOCK]
}

#[cfg(not(annulus_portable))]
#[test]
fn a_stream_returns_every_read_once_with_its_index_and_offset() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 300 * BLOCK);
        let file = fixture.file("f", &contents).await;
        for cached in [false, true] {
            if !cached {
                uncache(&file).await;
            }
            let requests: Vec<_> = reads(300).collect();
            let mut seen = vec![false; 300];
            let mut batch = file.read_many_at(requests.clone());
            while let Some(Completed {
                index,
                offset,
                result,
                ..
            }) = batch.next().await
            {
                assert!(!std::mem::replace(&mut seen[index], true), "{index} twice");
                assert_eq!(offset, requests[index].1);
                let (n, buf) = result.unwrap();
                assert_eq!((n, buf.as_slice()), (BLOCK, block(&contents, offset)));
            }
            assert!(seen.iter().all(|&seen| seen), "cached: {cached}");
            assert!(batch.next().await.is_none(), "the end is the end");
        }
    });
}

#[test]
fn awaiting_a_batch_gives_the_results_in_the_order_of_requests() {
    for_each_backend(async |fixture| {
        let contents = bytes(2, 300 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        for _ in 0..2 {
            let results = file.read_many_at(reads(300)).await;
            assert_eq!(results.len(), 300);
            for (outcome, (_, offset)) in results.into_iter().zip(reads(300)) {
                let (n, buf) = outcome.unwrap();
                assert_eq!((n, buf.as_slice()), (BLOCK, block(&contents, offset)));
            }
        }
    });
}

#[test]
fn an_empty_batch_ends_immediately() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        let none = || std::iter::empty::<(Vec<u8>, u64)>();
        assert!(file.read_many_at(none()).await.is_empty());
        let mut batch = file.read_many_at(none());
        assert!(batch.next().await.is_none());
        batch.push(vec![0; 3], 0);
        assert_eq!(batch.next().await.unwrap().result.unwrap().1, b"abc");
        assert!(batch.next().await.is_none());
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn reads_are_added_while_others_complete() {
    for_each_backend(async |fixture| {
        let contents = bytes(3, 64 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let mut batch = file.read_many_at(reads(4));
        let (mut completed, mut pushed) = (0, 4);
        while let Some(Completed { offset, result, .. }) = batch.next().await {
            let (n, mut buf) = result.unwrap();
            assert_eq!((n, buf.as_slice()), (BLOCK, block(&contents, offset)));
            completed += 1;
            if pushed < 64 {
                buf.fill(0);
                batch.push(buf, pushed * BLOCK as u64);
                pushed += 1;
            }
        }
        assert_eq!(completed, 64);
    });
}

/// Pushes `pushed` reads onto a batch over `count`, `early` of them before its first result, and checks the index and
/// offset of each result.
async fn push_onto(file: &File, contents: &[u8], count: usize, pushed: usize, early: usize) {
    let expected: Vec<u64> = reads(count)
        .chain(reads(pushed))
        .map(|(_, at)| at)
        .collect();
    let mut late = reads(pushed).map(|(_, offset)| (direct_buf(), offset));
    let requests = reads(count).map(|(_, offset)| (direct_buf(), offset));
    let mut batch = file.read_many_at(requests);
    for (buf, offset) in late.by_ref().take(early) {
        batch.push(buf, offset);
    }
    let mut seen = vec![false; expected.len()];
    while let Some(done) = batch.next().await {
        let at = done.index;
        assert_eq!(done.offset, expected[at], "{at} of {count} and {pushed}");
        assert!(!std::mem::replace(&mut seen[at], true), "{at} twice");
        let (n, buf) = done.result.unwrap();
        assert!(n == BLOCK && buf[..] == *block(contents, done.offset));
        if let Some((buf, offset)) = late.next() {
            batch.push(buf, offset);
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    assert!(late.next().is_none());
}

fn direct_buf() -> AlignedBuf {
    AlignedBuf::with_len(BLOCK, 4096)
}

#[cfg(not(annulus_portable))]
#[test]
fn pushed_reads_follow_the_whole_iterator() {
    for_each_backend(async |fixture| {
        let contents = bytes(11, 2000 * BLOCK);
        let hot = fixture.file("f", &contents).await;
        let mut options = OpenOptions::new();
        let direct = options.read(true).direct(true);
        let direct = if fixture.is_real() {
            fixture
                .engine
                .open_with(direct, fixture.path("f"))
                .await
                .ok()
        } else {
            None
        };
        for file in [Some(&hot), direct.as_ref()].into_iter().flatten() {
            for count in [0, 40, 100, 2000] {
                for (pushed, early) in [(1, 1), (50, 50), (50, 0), (40, 20)] {
                    // Later ones are pushed after results, so there must be a result.
                    if count + early > 0 {
                        push_onto(file, &contents, count, pushed, early).await;
                    }
                }
            }
        }
    });
}

#[test]
fn reads_that_are_queued_behind_an_iterator_time_out() {
    for_each_backend(async |fixture| {
        let contents = bytes(12, 100 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let mut batch = file
            .read_many_at(reads(100))
            .window(1)
            .timeout(Duration::ZERO);
        for (buf, offset) in reads(7) {
            batch.push(buf, offset);
        }
        let mut seen = [false; 107];
        while let Some(done) = batch.next().await {
            assert!(!std::mem::replace(&mut seen[done.index], true));
        }
        assert_eq!(seen, [true; 107]);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_window_of_one_reads_in_order_and_never_ahead() {
    for_each_backend(async |fixture| {
        let contents = bytes(4, 50 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        for window in [0, 1] {
            let taken = std::cell::Cell::new(0);
            let counted = reads(50).inspect(|_| taken.set(taken.get() + 1));
            let mut batch = file.read_many_at(counted).window(window);
            for expected in 0..50 {
                let Completed { index, result, .. } = batch.next().await.unwrap();
                result.unwrap();
                assert_eq!(index, expected);
                assert_eq!(taken.get(), expected + 1, "read ahead of the window");
            }
            assert!(batch.next().await.is_none());
        }
    });
}

#[test]
fn five_thousand_reads_pass_through_a_batch() {
    for_each_backend(async |fixture| {
        let contents = bytes(5, 5000 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        for window in [7, 5000, 1 << 20] {
            let results = file.read_many_at(reads(5000)).window(window).await;
            assert_eq!(results.len(), 5000);
            for (outcome, (_, offset)) in results.into_iter().zip(reads(5000)) {
                assert!(outcome.unwrap().1 == block(&contents, offset));
            }
        }
    });
}

#[test]
fn one_refused_read_does_not_harm_its_neighbours() {
    for_each_backend(async |fixture| {
        let contents = bytes(6, 10 * BLOCK);
        let file = fixture.file("f", &contents).await;
        let mut requests: Vec<_> = reads(10).collect();
        requests[3].1 = u64::MAX;
        requests[5].1 = i64::MAX as u64;
        requests[6].0 = Vec::new();
        requests[7].1 = 10 * BLOCK as u64;
        for _ in 0..2 {
            uncache(&file).await;
            let results = file.read_many_at(requests.clone()).await;
            for (index, outcome) in results.into_iter().enumerate() {
                match (index, outcome) {
                    (3 | 5, outcome) => {
                        let error = outcome.unwrap_err();
                        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
                        assert_eq!(error.into_buf().unwrap().len(), BLOCK);
                    }
                    (6, outcome) => {
                        let error = outcome.unwrap_err();
                        assert_eq!(error.error().kind(), ErrorKind::InvalidInput);
                        assert!(error.into_buf().unwrap().is_empty());
                    }
                    (7, outcome) => assert_eq!(outcome.unwrap().0, 0),
                    (_, outcome) => {
                        let expected = block(&contents, requests[index].1);
                        assert_eq!(outcome.unwrap().1, expected);
                    }
                }
            }
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn cached_and_uncached_reads_mix_in_one_batch() {
    for_each_backend(async |fixture| {
        let pages = 256;
        let contents = bytes(7, pages * 4096);
        let file = fixture.file("f", &contents).await;
        file.sync_all().await.unwrap();
        // Rounds of a batch over everything, with more and more pages dropped from the cache.
        for dropped in [0, 1, 5, 64, 256] {
            for page in 0..dropped {
                let offset = (page * (pages / dropped)) as u64 * 4096;
                file.advise(offset, 4096, Advice::DontNeed).await.unwrap();
            }
            let requests = (0..pages as u64).map(|page| (vec![0; 4000], page * 4096 + 96));
            for (page, outcome) in file.read_many_at(requests).await.into_iter().enumerate() {
                let (n, buf) = outcome.unwrap();
                let expected = &contents[page * 4096 + 96..][..4000];
                assert!(n == 4000 && buf == expected, "page {page} of {dropped}");
            }
        }
    });
}

#[test]
fn a_batch_within_its_time_completes() {
    for_each_backend(async |fixture| {
        let contents = bytes(8, 100 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let results = file.read_many_at(reads(100)).timeout(DEADLINE).await;
        assert_eq!(
            results.iter().filter(|outcome| outcome.is_ok()).count(),
            100
        );
    });
}

#[test]
fn a_batch_without_time_completes_or_times_out_every_read() {
    for_each_backend(async |fixture| {
        let contents = bytes(9, 3000 * BLOCK);
        let file = fixture.file("f", &contents).await;
        uncache(&file).await;
        let check = |outcome: BufResult<usize, Vec<u8>>, offset| match outcome {
            Ok((_, buf)) => assert_eq!(buf, block(&contents, offset)),
            Err(error) => assert_eq!(
                EngineError::of(error.error()),
                Some(EngineError::TimedOut),
                "{error:?}"
            ),
        };
        let batch = || file.read_many_at(reads(3000)).timeout(Duration::ZERO);
        let outcomes = batch().await;
        assert_eq!(outcomes.len(), 3000);
        for (outcome, (_, offset)) in outcomes.into_iter().zip(reads(3000)) {
            check(outcome, offset);
        }
        for window in [4, 1 << 20] {
            let (mut batch, mut seen) = (batch().window(window), vec![false; 3000]);
            while let Some(done) = batch.next().await {
                assert!(!std::mem::replace(&mut seen[done.index], true));
                check(done.result, done.offset);
            }
            assert!(seen.iter().all(|&seen| seen), "window {window}");
        }
    });
}

#[test]
fn a_batch_can_be_dropped_half_way() {
    for_each_backend(async |fixture| {
        let contents = bytes(10, 400 * BLOCK);
        let file = fixture.file("f", &contents).await;
        for take in [0, 1, 13, 399] {
            uncache(&file).await;
            let mut batch = file.read_many_at(reads(400));
            for _ in 0..take {
                batch.next().await.unwrap().result.unwrap();
            }
            drop(batch);
            let (n, buf) = file.read_at(vec![0; BLOCK], 0).await.unwrap();
            assert_eq!((n, buf.as_slice()), (BLOCK, block(&contents, 0)));
        }
    });
}

/// With many of them in flight, kernel workers read them.
#[test]
fn large_ranges_read_together_are_whole_and_can_be_dropped() {
    for_each_backend(async |fixture| {
        let range_bytes = 96 << 10;
        let ranges = 40;
        let contents = bytes(11, ranges * range_bytes);
        let file = fixture.file("large", &contents).await;
        for kept in [ranges, 7, 0] {
            uncache(&file).await;
            let reads = (0..ranges).map(|n| (vec![0; range_bytes], (n * range_bytes) as u64));
            let mut many = file.read_many_at(reads);
            for _ in 0..kept {
                let read = many.next().await.unwrap();
                let at = usize::try_from(read.offset).unwrap();
                let (count, buf) = read.result.unwrap();
                assert_eq!(count, range_bytes);
                assert!(buf == contents[at..at + range_bytes], "range at {at}");
            }
        }
    });
}
