//! Several cores and foreign threads: no sent task and no wake-up is lost.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use annulus::runtime::{self, Handle, RuntimeBuilder};

use crate::ways::{Tally, each_way};

/// Starts a runtime, runs `act` with its handle, and shuts it down.
pub(crate) fn beside<T>(builder: RuntimeBuilder, act: impl FnOnce(&Handle) -> T) -> T {
    let runtime = builder.start().unwrap();
    let value = act(runtime.handle());
    runtime.shutdown().unwrap();
    value
}

#[test]
fn a_task_runs_on_the_core_it_was_sent_to() {
    each_way(|builder| {
        beside(builder.cores(3), |handle| {
            assert_eq!(handle.cores(), 3);
            let mut threads = HashSet::new();
            for core in 0..3 {
                let here = || async { (thread::current().id(), runtime::handle().cores()) };
                let (id, cores) = pollster::block_on(handle.spawn_on(core, here)).unwrap();
                let again = pollster::block_on(handle.spawn_on(core, here)).unwrap();
                assert_eq!((id, cores), again);
                threads.insert(id);
            }
            assert_eq!(threads.len(), 3);
            // From one core to the others, and back.
            let relay = handle.spawn_on(0, || async {
                let mut sum = 0;
                for core in (0..3).cycle().take(300) {
                    let task = runtime::handle().spawn_on(core, move || async move { core });
                    sum += task.await.unwrap();
                }
                sum
            });
            assert_eq!(pollster::block_on(relay).unwrap(), 300);
        });
    });
}

#[test]
fn a_panic_of_a_sent_task_is_reported_by_its_handle() {
    each_way(|builder| {
        beside(builder, |handle| {
            let start = || {
                if true {
                    panic!("at the start, on purpose");
                }
                async {}
            };
            let error = pollster::block_on(handle.spawn_on(0, start)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the task panicked: at the start, on purpose"
            );
            let fine = handle.spawn_on(0, || async { 1 });
            assert_eq!(pollster::block_on(fine).unwrap(), 1);
        });
    });
}

#[test]
fn no_wake_up_from_another_thread_is_lost() {
    const CORES: usize = 3;
    const TASKS: usize = 8;
    const THREADS: usize = 4;
    const WAKES: u64 = 3000;
    each_way(|builder| {
        beside(builder.cores(CORES), |handle| {
            let mut tallies = Vec::new();
            let mut tasks = Vec::new();
            for task in 0..TASKS {
                let tally = Tally::default();
                tallies.push(tally.clone());
                tasks.push(handle.spawn_on(task % CORES, move || async move {
                    // The core falls asleep between any two wake-ups, so each of them could be lost.
                    for want in 1..=WAKES * THREADS as u64 {
                        tally.reach(want).await;
                    }
                }));
            }
            thread::scope(|scope| {
                for start in 0..THREADS {
                    let tallies = &tallies;
                    scope.spawn(move || {
                        for round in 0..WAKES as usize {
                            for task in 0..TASKS {
                                tallies[(start + task) % TASKS].raise();
                            }
                            if round % 64 == 0 {
                                // A pause, so that the cores fall asleep at times.
                                thread::sleep(std::time::Duration::from_micros(200));
                            }
                        }
                    });
                }
            });
            for task in tasks {
                pollster::block_on(task).unwrap();
            }
        });
    });
}

#[test]
fn two_cores_wake_each_other_in_turn() {
    const ROUNDS: u64 = 2000;
    each_way(|builder| {
        beside(builder.cores(2), |handle| {
            let (ping, pong) = (Tally::default(), Tally::default());
            let (ping2, pong2) = (ping.clone(), pong.clone());
            let one = handle.spawn_on(0, move || async move {
                for round in 1..=ROUNDS {
                    ping.raise();
                    pong.reach(round).await;
                }
            });
            let other = handle.spawn_on(1, move || async move {
                for round in 1..=ROUNDS {
                    ping2.reach(round).await;
                    pong2.raise();
                }
                ping2.get()
            });
            pollster::block_on(one).unwrap();
            assert_eq!(pollster::block_on(other).unwrap(), ROUNDS);
        });
    });
}

#[test]
fn an_error_of_one_core_ends_all_and_is_returned_to_the_caller() {
    each_way(|builder| {
        let error = builder.cores(3).run(|core| async move {
            if core.index() == 2 {
                return Err(io::Error::other("of core 2"));
            }
            std::future::pending().await
        });
        assert_eq!(error.unwrap_err().to_string(), "of core 2");
    });
}

#[test]
fn a_panic_of_one_core_ends_all_and_reaches_the_caller() {
    for broken in [0, 1] {
        for immediately in [true, false] {
            each_way(|builder| {
                let run = move || {
                    builder.cores(3).run(move |core| {
                        let breaks = core.index() == broken;
                        assert!(!(breaks && immediately), "on purpose");
                        async move {
                            assert!(!breaks, "on purpose");
                            std::future::pending().await
                        }
                    })
                };
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                let panic = panic.unwrap_err();
                assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
            });
        }
    }
}

#[test]
fn each_core_ends_in_its_own_time() {
    each_way(|builder| {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let late = Arc::new(AtomicUsize::new(0));
        let (seen, later) = (Arc::clone(&ended), Arc::clone(&late));
        let run = builder.cores(2).run(move |core| {
            let (ended, late) = (Arc::clone(&seen), Arc::clone(&later));
            async move {
                if core.index() == 1 {
                    // Core 0 has ended by then, or is ending: a task that is sent to it fails.
                    let handle = runtime::handle();
                    while let Ok(()) = handle.spawn_on(0, || async {}).await {
                        late.fetch_add(1, Ordering::Relaxed);
                    }
                }
                ended.lock().unwrap().push(core.index());
                Ok(())
            }
        });
        run.unwrap();
        assert_eq!(*ended.lock().unwrap(), [0, 1]);
    });
}
