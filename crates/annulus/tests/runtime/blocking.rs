//! Blocking work on separate threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use annulus::runtime;

use crate::ways::{Drops, each_way};

#[test]
fn blocking_work_runs_off_the_core_and_a_panic_is_reported_by_its_handle() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let here = thread::current().id();
            let there = runtime::spawn_blocking(|| thread::current().id())
                .await
                .unwrap();
            assert_ne!(here, there);
            let broken = runtime::spawn_blocking(|| panic!("on purpose"));
            let error = broken.await.unwrap_err();
            assert_eq!(error.to_string(), "the task panicked: on purpose");
            let panic = error.into_panic().unwrap();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
            runtime::spawn_blocking(|| vec![1, 2]).await.unwrap()
        });
        assert_eq!(ended.unwrap(), [1, 2]);
    });
}

#[test]
fn no_more_work_runs_at_a_time_than_the_limit_on_threads() {
    each_way(|builder| {
        let running = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (running2, most2) = (Arc::clone(&running), Arc::clone(&most));
        let ended = builder.blocking_threads(2).block_on(async move {
            let mut tasks = Vec::new();
            for number in 0..24 {
                let (running, most) = (Arc::clone(&running2), Arc::clone(&most2));
                tasks.push(runtime::spawn_blocking(move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    running.fetch_sub(1, Ordering::SeqCst);
                    number
                }));
            }
            let mut sum = 0;
            for task in tasks {
                sum += task.await.unwrap();
            }
            sum
        });
        assert_eq!(ended.unwrap(), 23 * 24 / 2);
        assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
        assert_eq!(running.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn work_that_is_aborted_before_it_starts_never_runs() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let seen = drops.clone();
        let ended = builder.blocking_threads(1).block_on(async move {
            let gate = Arc::new((Mutex::new(false), Condvar::new()));
            let opens = Arc::clone(&gate);
            let first = runtime::spawn_blocking(move || {
                let (open, changed) = &*opens;
                drop(
                    changed
                        .wait_while(open.lock().unwrap(), |open| !*open)
                        .unwrap(),
                );
            });
            let ran = Arc::new(AtomicBool::new(false));
            let runs = Arc::clone(&ran);
            let second = runtime::spawn_blocking(move || {
                let _guard = guard;
                runs.store(true, Ordering::SeqCst);
            });
            runtime::yield_now().await;
            second.abort();
            assert!(second.await.unwrap_err().is_aborted());
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
            first.await.unwrap();
            // Queued after it: when it completes, the aborted work has been skipped.
            runtime::spawn_blocking(|| ()).await.unwrap();
            assert!(!ran.load(Ordering::SeqCst));
            assert_eq!(seen.count(), 1, "what it held is gone");
        });
        ended.unwrap();
    });
}

#[test]
fn the_end_waits_for_work_that_has_started() {
    each_way(|builder| {
        let (started, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let (starts, finishes) = (Arc::clone(&started), Arc::clone(&done));
        #[expect(
            clippy::async_yields_async,
            reason = "it is awaited when the runtime has ended"
        )]
        let ended = builder.block_on(async move {
            let task = runtime::spawn_blocking(move || {
                starts.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(50));
                finishes.store(true, Ordering::SeqCst);
            });
            while !started.load(Ordering::SeqCst) {
                runtime::yield_now().await;
            }
            task
        });
        assert!(
            done.load(Ordering::SeqCst),
            "the runtime ended before its work"
        );
        let error = pollster::block_on(ended.unwrap()).unwrap_err();
        assert!(error.is_aborted(), "{error}");
    });
}
