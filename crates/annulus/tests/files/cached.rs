//! What reads of buffered files do about the page cache, by policy.

use annulus::{CachedReads, File, OpenOptions};

use crate::grounds::{Ground, bytes, for_each_backend, uncache};

const PAGES: u64 = 64;
const PAGE: usize = 4096;
/// Of a hundred pages thrown out so many may stay: the kernel keeps one that something still refers to
/// at that moment, such as the completion of the read before, or the other processor's list of new pages.
const KEPT: u64 = 8;

/// A file of 64 pages that are cached.
async fn hot_file(ground: &Ground, name: &str) -> File {
    ground.file(name, &bytes(1, PAGES as usize * PAGE)).await
}

/// Reads that asked the page cache while `read` ran: those that were answered, and those that were not.
async fn asked(ground: &Ground, read: impl Future<Output = ()>) -> (u64, u64) {
    let before = ground.engine.metrics();
    read.await;
    let after = ground.engine.metrics();
    (
        after.inline - before.inline,
        after.inline_missed - before.inline_missed,
    )
}

/// Reads every page, in each of the ways that may be answered from the cache: three times 64 reads.
async fn read_all(file: &File) {
    let mut into = vec![0; PAGE];
    for page in 0..PAGES {
        let offset = page * PAGE as u64;
        assert_eq!(file.read_at(vec![0; PAGE], offset).await.unwrap().0, PAGE);
        assert_eq!(file.read_into(offset, &mut into).await.unwrap(), PAGE);
    }
    let reads = (0..PAGES).map(|page| (vec![0; PAGE], page * PAGE as u64));
    for answer in file.read_many_at(reads).await {
        assert_eq!(answer.unwrap().0, PAGE);
    }
}

/// Reads one byte at the start of a file that is thrown out of the cache before each.
async fn read_cold(file: &File, reads: usize) {
    for _ in 0..reads {
        uncache(file).await;
        assert_eq!(file.read_at(vec![0; 1], 0).await.unwrap().0, 1);
    }
}

/// Whether pages can be thrown out of the cache here, and be found missing: not on tmpfs.
async fn cache_misses(ground: &Ground, file: &File) -> bool {
    file.set_cached_reads(CachedReads::Always);
    asked(ground, read_cold(file, 1)).await == (0, 1)
}

#[test]
fn never_asks_nothing_and_always_asks_everything() {
    for_each_backend(async |ground| {
        if !ground.machine_has("page cache") {
            return;
        }
        let file = hot_file(ground, "f").await;
        file.set_cached_reads(CachedReads::Never);
        assert_eq!(asked(ground, read_all(&file)).await, (0, 0));
        file.set_cached_reads(CachedReads::Always);
        assert_eq!(asked(ground, read_all(&file)).await, (3 * PAGES, 0));
        if cache_misses(ground, &file).await {
            let (hits, missed) = asked(ground, read_cold(&file, 50)).await;
            assert!(hits <= KEPT && hits + missed == 50, "{hits} {missed}");
        }
        file.set_cached_reads(CachedReads::Never);
        assert_eq!(asked(ground, read_cold(&file, 50)).await, (0, 0));
    });
}

#[test]
fn what_is_learned_follows_the_file_from_hot_to_cold_and_back() {
    for_each_backend(async |ground| {
        if !ground.machine_has("page cache") {
            return;
        }
        let file = hot_file(ground, "f").await;
        let can_miss = cache_misses(ground, &file).await;
        file.set_cached_reads(CachedReads::Learn);
        read_all(&file).await;
        assert_eq!(asked(ground, read_all(&file)).await, (3 * PAGES, 0));
        if !can_miss {
            return;
        }
        // Thirty are wasted until it is believed, and then one in 2, 4, … reads.
        let (hits, missed) = asked(ground, read_cold(&file, 100)).await;
        assert!(
            hits <= KEPT && (11..40 + 24 * hits).contains(&missed),
            "{hits} {missed}"
        );
        // And each page that was kept is a reason to ask some more.
        let (hits, missed) = asked(ground, read_cold(&file, 100)).await;
        assert!(hits <= KEPT && missed <= 2 + 24 * hits, "{hits} {missed}");
        // 64 pages in three ways, twice, are more than the 256 within which a hot file is noticed.
        read_all(&file).await;
        read_all(&file).await;
        assert_eq!(asked(ground, read_all(&file)).await, (3 * PAGES, 0));
    });
}

#[test]
fn files_have_their_own_policy_and_clones_share_it() {
    for_each_backend(async |ground| {
        if !ground.machine_has("page cache") {
            return;
        }
        let one = hot_file(ground, "one").await;
        let mut options = OpenOptions::new();
        options.read(true).cached_reads(CachedReads::Never);
        let path = ground.path("one");
        let again = ground.engine.open_with(&options, path).await.unwrap();
        assert_eq!(asked(ground, read_all(&one)).await, (3 * PAGES, 0));
        assert_eq!(asked(ground, read_all(&again)).await, (0, 0));
        let clone = again.clone();
        clone.set_cached_reads(CachedReads::Always);
        assert_eq!(asked(ground, read_all(&again)).await, (3 * PAGES, 0));
        assert_eq!(asked(ground, read_all(&one)).await, (3 * PAGES, 0));
    });
}
