//! Ends: of pools, files, engines, runtimes and futures, with reads in flight and guards held; forks.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::task::Poll;

use annulus::Engine;

use crate::{OnDisk, PAGE, opened, pool};

#[test]
fn guards_outlive_the_pool_its_file_and_the_engine() {
    let on_disk = OnDisk::new(8 * PAGE);
    let guards = pollster::block_on(async {
        let (_pool, file) = opened(&on_disk, 8).await;
        file.pages(&[0, 1, 2, 3, 4, 5, 6, 7]).await.unwrap()
    });
    std::thread::spawn({
        let pages: Vec<_> = (0..8).map(|number| on_disk.page(number).to_vec()).collect();
        move || {
            for (guard, page) in guards.into_iter().zip(pages) {
                assert_eq!(&*guard, page);
            }
        }
    })
    .join()
    .unwrap();
}

#[tokio::test]
async fn a_dropped_read_gives_its_frame_back_and_others_go_on_with_theirs() {
    let on_disk = OnDisk::new(16 * PAGE);
    let (pool, file) = opened(&on_disk, 2).await;
    for round in 0..200_u64 {
        let number = round % 16;
        let mut dropped = Box::pin(file.page(number));
        let mut kept = pin!(file.page(number));
        poll_fn(|context| {
            // The first one begins the read.
            let _ = dropped.as_mut().poll(context);
            let _ = kept.as_mut().poll(context).is_ready();
            Poll::Ready(())
        })
        .await;
        drop(dropped);
        if round % 3 != 0 {
            continue;
        }
        let again = file.page(number).await.unwrap();
        assert_eq!(&*again, on_disk.page(number));
    }
    // All frames are there.
    for number in 0..16 {
        file.page(number).await.unwrap();
    }
    assert_eq!(pool.stats().held, 0);
}

#[test]
fn a_runtime_that_ends_with_misses_in_flight_leaves_the_pool_usable() {
    let on_disk = OnDisk::new(64 * PAGE);
    let engine = Engine::new().unwrap();
    let pool = pool(&engine, 8);
    let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
    for round in 0..20 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        for task in 0..16 {
            let file = file.clone();
            runtime.spawn(async move {
                for step in 0.. {
                    let _ = file.page((task * 5 + step + round) % 64).await;
                }
            });
        }
        runtime.block_on(tokio::task::yield_now());
        drop(runtime);
        assert_eq!(&*file.page_blocking(round).unwrap(), on_disk.page(round));
    }
}

#[tokio::test]
async fn an_engine_that_ends_is_an_error_for_misses_and_not_for_hits() {
    let on_disk = OnDisk::new(4 * PAGE);
    let engine = Engine::new().unwrap();
    let pool = pool(&engine, 4);
    let file = pool.open(&on_disk.path).await.unwrap();
    file.page(0).await.unwrap();
    engine.shutdown();
    assert_eq!(&*file.page(0).await.unwrap(), on_disk.page(0));
    assert!(file.page(1).await.is_err());
    assert!(file.try_page(1).is_none());
}

#[tokio::test]
async fn a_hundred_thousand_tasks_wait_for_one_page() {
    let on_disk = OnDisk::new(2 * PAGE);
    let (pool, file) = opened(&on_disk, 1).await;
    let other = file.page(1).await.unwrap();
    let tasks: Vec<_> = (0..100_000)
        .map(|_| {
            let file = file.clone();
            tokio::spawn(async move { file.page(0).await.unwrap()[7] })
        })
        .collect();
    while pool.stats().misses < 100_001 {
        tokio::task::yield_now().await;
    }
    drop(other);
    for task in tasks {
        assert_eq!(task.await.unwrap(), on_disk.page(0)[7]);
    }
    assert_eq!(pool.stats().loads, 2);
}

#[test]
fn a_forked_child_gets_errors_and_no_faults() {
    annulus_testing::child_process::in_child(
        "ends::a_forked_child_gets_errors_and_no_faults",
        || {
            let on_disk = OnDisk::new(4 * PAGE);
            let engine = Engine::new().unwrap();
            let pool = pool(&engine, 4);
            let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
            let guard = file.page_blocking(0).unwrap();
            annulus_testing::child_process::in_fork(|| {
                assert!(guard.bytes().is_err());
                assert!(file.page_blocking(0).is_err() && file.page_blocking(1).is_err());
                assert!(file.try_page(0).is_none());
                assert!(pollster::block_on(file.pages(&[0, 1])).is_err());
                assert!(pollster::block_on(pool.open(&on_disk.path)).is_err());
                file.prefetch(0..u64::MAX);
                file.invalidate(0..u64::MAX);
                assert_eq!(pool.stats().resident, 0);
                // The last ones.
                drop((guard, file, pool));
            });
        },
    );
}

/// Threads of the parent hold locks at some of the forks.
#[test]
fn a_guard_ends_in_a_forked_child_while_threads_of_its_parent_wait_for_frames() {
    let name = "ends::a_guard_ends_in_a_forked_child_while_threads_of_its_parent_wait_for_frames";
    annulus_testing::child_process::in_child(name, || {
        let on_disk = OnDisk::new(4 * PAGE);
        let engine = Engine::new().unwrap();
        let pool = pool(&engine, 2);
        let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
        let held = Mutex::new(pollster::block_on(file.pages(&[0, 1])).unwrap());
        let poll = |number| {
            let mut waits = Box::pin(file.page(number));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waits.as_mut().poll(&mut context).is_pending());
            waits
        };
        let waits = poll(2);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        drop((poll(3), file.try_page(0)));
                    }
                });
            }
            for _ in 0..2000 {
                annulus_testing::child_process::in_fork(|| held.lock().unwrap().clear());
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(waits);
    });
}

/// The kernel gives its memory the address of the parent's, and guards of the parent's threads never end there.
#[test]
fn a_pool_of_a_forked_child_has_all_its_frames() {
    let name = "ends::a_pool_of_a_forked_child_has_all_its_frames";
    annulus_testing::child_process::in_child(name, || {
        let on_disk = OnDisk::new(4 * PAGE);
        let parents = pool(&Engine::new().unwrap(), 1);
        let file = pollster::block_on(parents.open(&on_disk.path)).unwrap();
        let (held, end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = file.page_blocking(0).unwrap();
                held.wait();
                end.wait();
            });
            held.wait();
            annulus_testing::child_process::in_fork(|| {
                let pool = pool(&Engine::new().unwrap(), 1);
                let file = pollster::block_on(pool.open(&on_disk.path)).unwrap();
                for number in 0..4 {
                    assert_eq!(&*file.page_blocking(number).unwrap(), on_disk.page(number));
                }
            });
            end.wait();
        });
    });
}
