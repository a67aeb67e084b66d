//! Few frames: eviction, waiting for frames, guards.

use std::sync::Arc;

use annulus::Engine;
use annulus_pool::PagePool;
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;

use crate::{OnDisk, PAGE, opened};

#[tokio::test]
async fn a_pool_of_one_page_serves_everyone_in_turn() {
    let on_disk = OnDisk::new(16 * PAGE);
    let (pool, file) = opened(&on_disk, 1).await;
    let on_disk = Arc::new(on_disk);
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let (file, on_disk) = (file.clone(), Arc::clone(&on_disk));
            tokio::spawn(async move {
                for step in 0..50 {
                    let number = (task * 7 + step) % 16;
                    assert_eq!(&*file.page(number).await.unwrap(), on_disk.page(number));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(pool.stats().starved > 0, "{:?}", pool.stats());
}

#[tokio::test]
async fn the_end_of_a_guard_gives_its_frame_to_one_who_waits() {
    let on_disk = OnDisk::new(4 * PAGE);
    let (_pool, file) = opened(&on_disk, 2).await;
    let held = file.pages(&[0, 1]).await.unwrap();
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.page(2).await.unwrap()[0] }
    });
    while _pool.stats().starved == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    // On another thread.
    std::thread::spawn(move || drop(held)).join().unwrap();
    assert_eq!(waiting.await.unwrap(), on_disk.page(2)[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_need_more_frames_than_there_are_do_not_wait_for_each_other() {
    let on_disk = Arc::new(OnDisk::new(64 * PAGE));
    let (_pool, file) = opened(&on_disk, 8).await;
    let tasks: Vec<_> = (0..16_u64)
        .map(|task| {
            let (file, on_disk) = (file.clone(), Arc::clone(&on_disk));
            tokio::spawn(async move {
                for step in 0..20 {
                    let numbers: Vec<u64> = (0..8)
                        .map(|at| (task * 13 + step * 5 + at * 3) % 64)
                        .collect();
                    let pages = file.pages(&numbers).await.unwrap();
                    tokio::task::yield_now().await;
                    for (page, number) in pages.iter().zip(numbers) {
                        assert_eq!(&**page, on_disk.page(number));
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn pages_that_are_used_stay_beside_a_scan() {
    let on_disk = OnDisk::new(1000 * PAGE);
    let (pool, file) = opened(&on_disk, 100).await;
    // More than the reserve is left for the scan.
    let hot: Vec<u64> = (0..60).map(|at| at * 16).collect();
    for _ in 0..4 {
        for number in &hot {
            file.page(*number).await.unwrap();
        }
    }
    let before = pool.stats();
    for number in 0..1000 {
        file.page(number).await.unwrap();
        // Each page of the hot set is used about every 60 pages of the scan.
        file.page(hot[number as usize % 60]).await.unwrap();
    }
    let after = pool.stats();
    // The scan reads 940 pages, and finds 60 in memory.
    let again = after.loads - before.loads - 940;
    assert!(
        again <= 100,
        "{again} of 1,000 point reads missed: {after:?}"
    );
    assert!(after.resident <= 100);
}

/// Returns a line of /proc/self/status in bytes.
fn memory_of_process(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find_map(|one| one.strip_prefix(line));
    let kib: u64 = found
        .unwrap()
        .trim_matches(':')
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap();
    kib << 10
}

#[test]
fn a_pool_takes_no_more_memory_than_it_was_given() {
    const MEMORY: u64 = 64 << 20;
    // The frames end in the middle of one.
    const HUGE_PAGE: u64 = 2 << 20;
    in_child(
        "memory::a_pool_takes_no_more_memory_than_it_was_given",
        || {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let path = dir.path().join("data");
            std::fs::File::create(&path)
                .unwrap()
                .set_len(3 * MEMORY)
                .unwrap();
            let read_all = |memory: u64| {
                pollster::block_on(async {
                    let pool = PagePool::builder(&Engine::new().unwrap())
                        .memory(memory as usize)
                        .build()
                        .unwrap();
                    let file = pool.open(&path).await.unwrap();
                    for first in (0..file.page_count()).step_by(64) {
                        let numbers: Vec<u64> = (first..first + 64).collect();
                        file.pages(&numbers).await.unwrap();
                    }
                    pool.stats()
                })
            };
            // Threads, rings and code are not the pool's.
            read_all(1 << 20);
            let before = memory_of_process("VmRSS");
            let stats = read_all(MEMORY);
            let grown = memory_of_process("VmHWM") - before;
            // Some frames are kept free for the next reads.
            let pages = (stats.resident * PAGE) as u64;
            assert!(stats.evicted > 0 && pages > MEMORY * 9 / 10, "{stats:?}");
            assert!(
                pages <= grown && grown <= MEMORY + MEMORY / 50 + HUGE_PAGE,
                "{grown} bytes for {pages} bytes of pages, with a limit of {MEMORY}"
            );
        },
    );
}

#[test]
fn the_metrics_of_the_process_have_the_counts_of_a_pool_also_after_its_end() {
    let name = "memory::the_metrics_of_the_process_have_the_counts_of_a_pool_also_after_its_end";
    in_child(name, || {
        let counters = || annulus::metrics::snapshot().total().counters;
        let stats = pollster::block_on(async {
            let on_disk = OnDisk::new(64 * PAGE);
            let (pool, file) = opened(&on_disk, 4).await;
            let guard = file.page(0).await.unwrap();
            for _ in 0..1500 {
                file.try_page(0).unwrap();
            }
            file.invalidate(0..1);
            for number in 1..64 {
                file.page(number).await.unwrap();
            }
            let (now, stats) = (counters(), pool.stats());
            assert_eq!((now.pool_hits, now.pool_held), (1024, 1), "{stats:?}");
            assert_eq!(now.pool_misses, 64);
            drop(guard);
            stats
        });
        let ended = counters();
        assert_eq!((ended.pool_hits, ended.pool_held), (stats.hits, 0));
        assert_eq!(
            (ended.pool_misses, ended.pool_waits),
            (stats.misses, stats.starved)
        );
        assert!(
            stats.evicted > 0 && ended.pool_evictions == stats.evicted,
            "{stats:?}"
        );
    });
}

#[tokio::test]
async fn a_forgotten_guard_takes_its_frame_and_nothing_else() {
    let on_disk = OnDisk::new(32 * PAGE);
    let (pool, file) = opened(&on_disk, 4).await;
    for number in 0..3 {
        std::mem::forget(file.page(number).await.unwrap());
    }
    for number in 3..32 {
        assert_eq!(&*file.page(number).await.unwrap(), on_disk.page(number));
    }
    assert_eq!(&*file.try_page(0).unwrap(), on_disk.page(0));
    assert!(pool.stats().evicted >= 28);
}

#[tokio::test]
async fn a_task_with_all_pages_in_memory_lets_others_run() {
    let on_disk = OnDisk::new(PAGE);
    let (_pool, file) = opened(&on_disk, 4).await;
    file.page(0).await.unwrap();
    let other = tokio::spawn(async {});
    while !other.is_finished() {
        file.page(0).await.unwrap();
    }
}

#[tokio::test]
async fn a_page_that_was_read_last_goes_if_all_others_are_held() {
    let on_disk = OnDisk::new(40 * PAGE);
    let (_pool, file) = opened(&on_disk, 24).await;
    let mut held = Vec::new();
    for number in 0..23 {
        // Used twice, so that they are in the main queue.
        file.page(number).await.unwrap();
        held.push(file.page(number).await.unwrap());
    }
    for number in 23..40 {
        assert_eq!(&*file.page(number).await.unwrap(), on_disk.page(number));
    }
}

/// The barrier of an eviction interrupts all processors, so it is not executed for each page.
#[test]
fn pages_are_evicted_many_at_a_time() {
    const PAGES: u64 = 4096;
    let on_disk = OnDisk::new(PAGES as usize * PAGE);
    let engine = Engine::new().unwrap();
    let pool = crate::pool(&engine, 1024);
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    let (mut evictions, mut before) = (0, 0);
    for number in 0..PAGES {
        drop(file.page_blocking(number).unwrap());
        let evicted = pool.stats().evicted;
        evictions += u64::from(evicted != before);
        before = evicted;
    }
    assert!(before > 3000, "{before}");
    assert!(evictions * 16 < before, "{evictions} for {before} pages");
}

#[tokio::test]
async fn a_task_whose_batches_are_all_in_memory_lets_others_run() {
    let on_disk = OnDisk::new(2 * PAGE);
    let (_pool, file) = opened(&on_disk, 4).await;
    file.pages(&[0, 1]).await.unwrap();
    let other = tokio::spawn(async {});
    for _ in 0..1000 {
        file.pages(&[0, 1]).await.unwrap();
    }
    assert!(other.is_finished());
}

#[test]
fn a_file_whose_table_finds_no_memory_is_an_error() {
    let name = "memory::a_file_whose_table_finds_no_memory_is_an_error";
    in_child(name, || {
        use nix::sys::resource::{Resource, setrlimit};

        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("data");
        let file = std::fs::File::create(&path).unwrap();
        // A table of 8 GiB.
        if let Err(error) = file.set_len(8 << 40) {
            return skip(format_args!("no file of 8 TiB: {error}"));
        }
        let pool = crate::pool(&Engine::new().unwrap(), 4);
        setrlimit(Resource::RLIMIT_AS, 4 << 30, 4 << 30).unwrap();
        let error = pollster::block_on(pool.open(&path)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory, "{error}");
    });
}

#[tokio::test]
async fn pages_that_were_invalidated_while_they_were_held_do_not_count_as_evicted() {
    let on_disk = OnDisk::new(9 * PAGE);
    let (pool, file) = opened(&on_disk, 8).await;
    let guard = file.page(0).await.unwrap();
    file.invalidate(0..1);
    drop(guard);
    for number in 1..9 {
        file.page(number).await.unwrap();
    }
    let stats = pool.stats();
    assert_eq!(stats.resident as u64 + stats.evicted, 8, "{stats:?}");
}
