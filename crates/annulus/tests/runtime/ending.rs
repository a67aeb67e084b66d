//! The end of a runtime: notifications, grace periods, and values that outlive it.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use annulus::net::TcpStream;
use annulus::runtime::{self, JoinHandle, RuntimeBuilder};
use annulus::time;

use crate::across::beside;
use crate::ways::{Drops, Tally, each_way, listener};

#[test]
fn shutdown_drops_the_main_futures_and_gives_tasks_their_grace() {
    each_way(|builder| {
        let drops = Drops::default();
        let seen = drops.clone();
        let finished = Tally::default();
        let finishes = finished.clone();
        let (sender, receiver) = mpsc::channel::<JoinHandle<()>>();
        let sender = Mutex::new(sender);
        let builder = builder.cores(2).grace(Duration::from_secs(30));
        let run = builder.run(move |_| {
            let guard = seen.guard();
            let finished = finishes.clone();
            let task = runtime::spawn(async move {
                runtime::stopping().await;
                assert!(runtime::is_stopping());
                time::sleep(Duration::from_millis(5)).await;
                finished.raise();
            });
            sender.lock().unwrap().send(task).ok();
            async move {
                let _guard = guard;
                runtime::yield_now().await;
                runtime::handle().shutdown();
                std::future::pending::<io::Result<()>>().await
            }
        });
        run.unwrap();
        assert_eq!((drops.count(), finished.get()), (2, 2));
        for task in receiver {
            pollster::block_on(task).unwrap();
        }
    });
}

#[test]
fn tasks_that_outlast_the_grace_period_are_dropped_and_their_handles_report_it() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let ended = builder
            .grace(Duration::from_millis(5))
            .block_on(async move {
                // One core, whose main future is still running.
                assert!(!runtime::is_stopping());
                let endless = runtime::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
                let receiver = runtime::spawn(async {
                    runtime::stopping().await;
                    1
                });
                (endless, receiver)
            });
        let (endless, receiver) = ended.unwrap();
        assert_eq!(drops.count(), 1);
        assert!(endless.is_finished());
        assert!(pollster::block_on(endless).unwrap_err().is_aborted());
        assert_eq!(
            pollster::block_on(receiver).unwrap(),
            1,
            "the end of main is the end"
        );
    });
}

/// Starts a task when it is dropped.
struct SpawnsWhenDropped(Arc<Mutex<Option<JoinHandle<()>>>>, Drops);

impl Drop for SpawnsWhenDropped {
    fn drop(&mut self) {
        let guard = self.1.guard();
        let task = runtime::spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        *self.0.lock().unwrap() = Some(task);
    }
}

#[test]
fn a_task_started_while_the_runtime_ends_is_dropped_as_well() {
    each_way(|builder| {
        let drops = Drops::default();
        let late = Arc::new(Mutex::new(None));
        let spawns = SpawnsWhenDropped(Arc::clone(&late), drops.clone());
        let ended = builder.block_on(async move {
            runtime::spawn(async move {
                let _spawns = spawns;
                std::future::pending::<()>().await;
            });
            runtime::yield_now().await;
        });
        ended.unwrap();
        assert_eq!(drops.count(), 1);
        let late = late.lock().unwrap().take().unwrap();
        assert!(pollster::block_on(late).unwrap_err().is_aborted());
    });
}

#[test]
fn wakers_and_handles_may_outlive_their_runtime() {
    each_way(|builder| {
        let kept: Arc<Mutex<Vec<Waker>>> = Arc::default();
        let keeps = Arc::clone(&kept);
        let ended = builder.block_on(async move {
            runtime::spawn(std::future::poll_fn(move |context| {
                keeps.lock().unwrap().push(context.waker().clone());
                Poll::<()>::Pending
            }));
            runtime::yield_now().await;
            runtime::yield_now().await;
            runtime::handle()
        });
        let handle = ended.unwrap();
        let wakers = std::mem::take(&mut *kept.lock().unwrap());
        assert!(!wakers.is_empty());
        let woken = thread::spawn(move || {
            wakers.iter().for_each(Waker::wake_by_ref);
            wakers.into_iter().for_each(Waker::wake);
        });
        woken.join().unwrap();
        let refused = handle.spawn_on(0, || async { 1 });
        assert!(pollster::block_on(refused).unwrap_err().is_aborted());
        handle.shutdown();
        assert!(handle.metrics(0).polls > 0);
        let error = handle.register_buffers(annulus::buf::BufferLayout::default());
        assert!(error.is_err(), "buffers for a runtime that has ended");
    });
}

#[test]
fn a_runtime_ends_while_other_threads_wake_its_tasks() {
    const ROUNDS: usize = 15;
    const TASKS: usize = 16;
    fn once(builder: RuntimeBuilder) {
        let tallies: Vec<Tally> = (0..TASKS).map(|_| Tally::default()).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        tallies.iter().for_each(Tally::raise);
                    }
                });
            }
            let handles = beside(builder, |handle| {
                let tasks = tallies.iter().enumerate().map(|(number, tally)| {
                    let tally = tally.clone();
                    handle.spawn_on(number % 2, move || async move {
                        for want in 1.. {
                            tally.reach(want).await;
                        }
                    })
                });
                let tasks = tasks.collect::<Vec<_>>();
                thread::sleep(Duration::from_millis(2));
                tasks
            });
            // Each task has been notified in time.
            for handle in handles {
                assert!(handle.is_finished());
                assert!(pollster::block_on(handle).unwrap_err().is_aborted());
            }
            over.store(true, Ordering::Relaxed);
        });
    }
    each_way(|builder| (0..ROUNDS).for_each(|_| once(builder.clone().cores(2))));
}

thread_local! {
    static KEPT: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_stream_may_outlive_its_runtime_and_the_thread_closes_it() {
    each_way(|builder| {
        let (sender, receiver) = mpsc::channel();
        let server = thread::spawn(move || {
            let ended = builder.block_on(async move {
                let (listener, address) = listener();
                sender.send(address).unwrap();
                let stream = listener.accept().await.unwrap();
                // With a receive in flight.
                let mut chunks = stream.recv_multishot();
                let waited = time::timeout(Duration::from_millis(2), chunks.next()).await;
                assert!(waited.is_err());
                KEPT.with(|kept| kept.borrow_mut().push(stream));
            });
            ended.unwrap();
            KEPT.with(|kept| {
                let kept = kept.borrow();
                let stream = &kept[0];
                // Without its core it fails.
                let result = pollster::block_on(stream.recv(vec![0; 8]));
                assert!(result.is_err(), "{result:?}");
            });
        });
        let mut client = std::net::TcpStream::connect(receiver.recv().unwrap()).unwrap();
        server.join().unwrap();
        // The end of the thread has closed it.
        let read = io::Read::read(&mut client, &mut [0; 8]);
        assert_eq!(read.unwrap(), 0);
    });
}

#[test]
fn runtimes_follow_one_another_on_one_thread() {
    each_way(|builder| {
        for round in 0..20 {
            let value = builder
                .clone()
                .block_on(async move { runtime::spawn(async move { round }).await.unwrap() });
            assert_eq!(value.unwrap(), round);
        }
    });
}

/// Runs a runtime when it is dropped, and sends the result.
struct Runs(
    RuntimeBuilder,
    mpsc::Sender<Result<u32, annulus::SetupError>>,
);

impl Drop for Runs {
    fn drop(&mut self) {
        let ran = self.0.clone().block_on(async {
            time::sleep(Duration::from_nanos(1)).await;
            7
        });
        let _ = self.1.send(ran);
    }
}

thread_local! {
    static RUNS: RefCell<Option<Runs>> = const { RefCell::new(None) };
}

#[test]
fn a_destructor_of_a_thread_local_runs_a_runtime_or_gets_an_error() {
    each_way(|builder| {
        for used_before in [false, true] {
            let (sender, receiver) = mpsc::channel();
            let builder = builder.clone();
            let body = move || {
                if used_before {
                    builder.clone().block_on(async {}).unwrap();
                }
                RUNS.set(Some(Runs(builder.clone(), sender)));
                builder.block_on(async {}).unwrap();
            };
            thread::spawn(body).join().unwrap();
            match receiver.recv().unwrap() {
                Ok(value) => assert_eq!((value, used_before), (7, true)),
                Err(error) => {
                    assert!(!used_before, "{error}");
                    assert!(
                        error.to_string().contains("this thread is ending"),
                        "{error}"
                    );
                }
            }
        }
    });
}
