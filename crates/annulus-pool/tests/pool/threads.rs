//! Several threads on one small pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annulus::Engine;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::{OnDisk, PAGE, pool};

/// With two pools on two engines, in the same threads.
#[test]
fn threads_that_read_beside_eviction_never_see_other_bytes() {
    read_beside_eviction();
}

/// Readers execute fences then, and the end of each guard does.
#[test]
fn a_filter_that_refuses_membarrier_changes_nothing() {
    annulus_testing::child_process::in_child(
        "threads::a_filter_that_refuses_membarrier_changes_nothing",
        || {
            let rules = [(libc::SYS_membarrier, Vec::new())].into_iter().collect();
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let refused = SeccompAction::Errno(libc::EPERM as u32);
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
            seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
            read_beside_eviction();
            let on_disk = OnDisk::new(4 * PAGE);
            let pool = pool(&Engine::new().unwrap(), 1);
            let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
            let guard = file.page_blocking(0).unwrap();
            let mut waits = std::pin::pin!(file.page(1));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waits.as_mut().poll(&mut context).is_pending());
            // The only frame: its end evicts for the one who waits.
            drop(guard);
            assert!(*pollster::block_on(waits).unwrap() == *on_disk.page(1));
        },
    );
}

fn read_beside_eviction() {
    let on_disk = Arc::new(OnDisk::new(256 * PAGE));
    let pools = [(); 2].map(|()| pool(&Engine::new().unwrap(), 32));
    let files = pools
        .each_ref()
        .map(|pool| pollster::block_on(pool.open(&on_disk.path)).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    // Hits only: each compares what it finds.
    let readers: Vec<_> = (0..2)
        .map(|seed| {
            let (files, on_disk, stop) = (files.clone(), Arc::clone(&on_disk), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut found = 0_u64;
                let mut held = None;
                while !stop.load(Ordering::Relaxed) {
                    let number = rng.u64(..256);
                    if let Some(page) = files[rng.usize(..2)].try_page(number) {
                        assert!(*page == *on_disk.page(number), "page {number}");
                        found += 1;
                        held = Some((page, number));
                    }
                    if let Some((page, number)) = &held {
                        assert!(**page == *on_disk.page(*number), "page {number}, held");
                    }
                }
                found
            })
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|seed| {
            let (files, on_disk) = (files.clone(), Arc::clone(&on_disk));
            runtime.spawn(async move {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..600 {
                    let number = rng.u64(..256);
                    let page = files[rng.usize(..2)].page(number).await.unwrap();
                    assert!(*page == *on_disk.page(number), "page {number}");
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    stop.store(true, Ordering::Relaxed);
    let found: u64 = readers
        .into_iter()
        .map(|reader| reader.join().unwrap())
        .sum();
    let stats = pools.map(|pool| pool.stats());
    let evicted = stats.each_ref().map(|stats| stats.evicted > 1000);
    assert!(found > 0 && evicted == [true; 2], "{found} {stats:?}");
}

#[test]
fn a_guard_outlives_its_thread_and_keeps_its_slot() {
    let on_disk = OnDisk::new(64 * PAGE);
    let engine = Engine::new().unwrap();
    let pool = pool(&engine, 4);
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    // The first access of each thread is a hit, with the slots of the thread before it.
    let taken = |number| {
        drop(file.page_blocking(number).unwrap());
        let hit = || file.try_page(number).unwrap();
        std::thread::scope(|scope| scope.spawn(hit).join().unwrap())
    };
    let guards = [taken(0), taken(1), taken(2)];
    for number in 3..64 {
        assert!(*file.page_blocking(number).unwrap() == *on_disk.page(number));
    }
    for (number, guard) in guards.iter().enumerate() {
        assert!(**guard == *on_disk.page(number as u64), "page {number}");
    }
}

/// Pages with guards are unlinked by those who evict, and linked again in a moment. An invalidation waits for that.
#[test]
fn pages_that_are_invalidated_beside_eviction_leave_memory() {
    let on_disk = OnDisk::new(64 * PAGE);
    let engine = Engine::new().unwrap();
    let pool = pool(&engine, 4);
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in (3..64).cycle() {
                drop(file.page_blocking(number).unwrap());
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut left = 0;
        for _ in 0..2000 {
            let guards = pollster::block_on(file.pages(&[0, 1, 2])).unwrap();
            file.invalidate(0..3 * PAGE as u64);
            left += (0..3)
                .filter(|number| file.try_page(*number).is_some())
                .count();
            drop(guards);
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(left, 0);
    });
}

/// The only frame has a page that was read ahead. A thread that reads ahead looks at its load, and puts it back.
#[test]
fn one_who_waits_for_a_frame_gets_that_of_a_page_that_was_read_ahead() {
    let on_disk = OnDisk::new(4 * PAGE);
    let engine = Engine::new().unwrap();
    let pool = pool(&engine, 1);
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    for _ in 0..2000 {
        file.invalidate(0..u64::MAX);
        file.prefetch(0..1);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| file.prefetch(PAGE as u64..PAGE as u64 + 1)));
            // It would wait indefinitely.
            drop(file.page_blocking(2).unwrap());
        });
    }
}
