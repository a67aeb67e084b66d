//! Reads from the page cache, by policy.

use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use annulus::fs::CachedReads;
use annulus::{File, OpenOptions};
use annulus_testing::skip;

use crate::fixtures::{Fixture, bytes, for_each_backend};
use crate::page_cache::{Pinned, reads_cached_without_waiting, uncache_surely};

const PAGES: u64 = 64;
const PAGE: usize = 4096;

/// Creates a file of 64 pages that are cached while they are pinned. Returns `None` after a skip if the file system
/// never reads from the cache without waiting, as tmpfs.
async fn hot_file(fixture: &Fixture, name: &str) -> Option<(File, Pinned)> {
    if !fixture.machine_has("page cache") {
        return None;
    }
    let file = fixture.file(name, &bytes(1, PAGES as usize * PAGE)).await;
    if !reads_cached_without_waiting(&fixture.path(name)) {
        skip::skip("the temporary directory's file system has no reads without waiting");
        return None;
    }
    Some((file, pin(fixture, name)))
}

fn pin(fixture: &Fixture, name: &str) -> Pinned {
    Pinned::new(&fixture.path(name), PAGES as usize * PAGE)
}

/// Returns the numbers of reads that hit and missed the page cache while `read` ran.
async fn attempts(fixture: &Fixture, read: impl Future<Output = ()>) -> (u64, u64) {
    let (counts, ()) = fixture.counts(read).await;
    (counts.fast_path, counts.fast_path_missed)
}

/// Reads every page in each way that can be served from the cache: three times 64 reads.
async fn read_all(file: &File) {
    let mut into = vec![0; PAGE];
    for page in 0..PAGES {
        let offset = page * PAGE as u64;
        assert_eq!(file.read_at(vec![0; PAGE], offset).await.unwrap().0, PAGE);
        assert_eq!(file.read_into(&mut into, offset).await.unwrap(), PAGE);
    }
    let reads = (0..PAGES).map(|page| (vec![0; PAGE], page * PAGE as u64));
    for result in file.read_many_at(reads).await {
        assert_eq!(result.unwrap().0, PAGE);
    }
}

/// Reads one byte at the start of the file "f", which is dropped from the cache before each read. Returns `false` if it
/// cannot be dropped.
async fn read_cold(fixture: &Fixture, file: &File, reads: usize) -> bool {
    for _ in 0..reads {
        if !uncache_surely(file, &fixture.path("f"), 1).await {
            return false;
        }
        assert_eq!(file.read_at(vec![0; 1], 0).await.unwrap().0, 1);
    }
    true
}

/// Makes `reads` reads of a page that is not cached. Returns the numbers of those that tried the cache and hit or
/// missed. A try makes the kernel start a read, and the disk may finish before the kernel checks again, for example if
/// the processor is preempted in between. Returns `None` if pages cannot be dropped.
async fn cold_attempts(fixture: &Fixture, file: &File, reads: usize) -> Option<(u64, u64)> {
    let mut cold = false;
    let read = async { cold = read_cold(fixture, file, reads).await };
    let attempts = attempts(fixture, read).await;
    cold.then_some(attempts)
}

#[test]
fn the_policy_never_tries_no_cached_read_and_always_tries_every_one() {
    for_each_backend(async |fixture| {
        let Some((file, pinned)) = hot_file(fixture, "f").await else {
            return;
        };
        file.set_cached_reads(CachedReads::Never);
        assert_eq!(attempts(fixture, read_all(&file)).await, (0, 0));
        file.set_cached_reads(CachedReads::Always);
        assert_eq!(attempts(fixture, read_all(&file)).await, (3 * PAGES, 0));
        drop(pinned);
        if let Some((hits, missed)) = cold_attempts(fixture, &file, 50).await {
            assert_eq!(hits + missed, 50, "{hits} of them were there");
        }
        file.set_cached_reads(CachedReads::Never);
        let attempts = cold_attempts(fixture, &file, 50).await;
        assert!(
            attempts.is_none_or(|attempts| attempts == (0, 0)),
            "{attempts:?}"
        );
    });
}

/// Polls once. Returns whether the future is ready.
fn is_ready(future: impl Future) -> bool {
    pin!(future)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_ready()
}

/// Checks that a read on this thread, which has its whole budget, yields once.
fn yields_once(file: &File, mut read: Pin<&mut dyn Future<Output = ()>>) {
    // As many as a thread completes without a yield.
    let others = || (0..PAGES).for_each(|_| assert!(is_ready(file.read_at(vec![0; 1], 0))));
    others();
    assert!(!is_ready(read.as_mut()));
    others();
    assert!(is_ready(read));
}

#[test]
fn a_read_yields_once_although_others_use_the_budget_up_each_time() {
    for_each_backend(async |fixture| {
        let Some((file, _pinned)) = hot_file(fixture, "f").await else {
            return;
        };
        file.set_cached_reads(CachedReads::Always);
        let file = &file;
        let one = || {
            let read = async { drop(file.read_at(vec![0; 1], 0).await) };
            yields_once(file, pin!(read));
        };
        let into = || {
            let mut into = [0];
            let read = async { drop(file.read_into(&mut into, 0).await) };
            yields_once(file, pin!(read));
        };
        let many = || {
            let read = async { drop(file.read_many_at([(vec![0; 1], 0)]).next().await) };
            yields_once(file, pin!(read));
        };
        std::thread::scope(|scope| {
            scope.spawn(one);
            scope.spawn(into);
            scope.spawn(many);
        });
    });
}

#[test]
fn the_adaptive_policy_follows_a_file_from_hot_to_cold_and_back() {
    for_each_backend(async |fixture| {
        let Some((file, pinned)) = hot_file(fixture, "f").await else {
            return;
        };
        file.set_cached_reads(CachedReads::Learn);
        read_all(&file).await;
        assert_eq!(attempts(fixture, read_all(&file)).await, (3 * PAGES, 0));
        drop(pinned);
        let Some((hits, missed)) = cold_attempts(fixture, &file, 100).await else {
            return;
        };
        // Thirty tries miss before the policy changes, then one in 2, 4, … reads; each hit is a reason for more tries.
        let most = 40 + 24 * hits;
        assert!(hits + missed > 10 && missed < most, "{hits} {missed}");
        // A hit near the end of the first hundred reads is a reason for more tries in the second.
        if let Some((late, more)) = cold_attempts(fixture, &file, 100).await {
            assert!(
                more <= 2 + 24 * (hits + late),
                "{hits} {missed}, then {late} {more}"
            );
        }
        let _pinned = pin(fixture, "f");
        // 64 pages in three ways, twice, are more than the 256 reads within which a hot file is noticed.
        read_all(&file).await;
        read_all(&file).await;
        assert_eq!(attempts(fixture, read_all(&file)).await, (3 * PAGES, 0));
    });
}

#[test]
fn files_have_their_own_policy_and_clones_share_it() {
    for_each_backend(async |fixture| {
        let Some((one, _pinned)) = hot_file(fixture, "one").await else {
            return;
        };
        let mut options = OpenOptions::new();
        options.read(true).cached_reads(CachedReads::Never);
        let path = fixture.path("one");
        let again = fixture.engine.open_with(&options, path).await.unwrap();
        assert_eq!(attempts(fixture, read_all(&one)).await, (3 * PAGES, 0));
        assert_eq!(attempts(fixture, read_all(&again)).await, (0, 0));
        let clone = again.clone();
        clone.set_cached_reads(CachedReads::Always);
        assert_eq!(attempts(fixture, read_all(&again)).await, (3 * PAGES, 0));
        assert_eq!(attempts(fixture, read_all(&one)).await, (3 * PAGES, 0));
    });
}
