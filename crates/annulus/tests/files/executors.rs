//! The same work on every executor, and without one.

use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

#[cfg(not(annulus_portable))]
use annulus::fs::Merge;
use annulus::{Backend, Engine, File, Operation};

use crate::fixtures::{Fixture, bytes, for_each_backend, for_each_fixture};
use crate::wait::{DEADLINE, in_time};

/// Writes a file and reads it back in three ways. Returns the number of bytes that differ.
#[cfg(not(annulus_portable))]
async fn work(engine: Engine, path: PathBuf, seed: u64) -> usize {
    let contents = bytes(seed, 50_000);
    let file = engine.create(&path).await.unwrap();
    file.write_all_at(contents.clone(), 0).await.unwrap();
    file.sync_data().await.unwrap();
    assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
    let file = engine.open(&path).await.unwrap();
    file.advise(0, 0, annulus::fs::Advice::DontNeed)
        .await
        .unwrap();
    let mut back = Vec::new();
    for result in file
        .read_many_at((0..50).map(|n| (vec![0; 1000], n * 1000)))
        .await
    {
        back.extend(result.unwrap().1);
    }
    let mut differing = count_differing(&back, &contents);
    let whole = file.read_exact_at(vec![0; 50_000], 0).await.unwrap();
    differing += count_differing(&whole, &contents);
    let mut into = vec![0; 50_000];
    let n = engine.timeout(DEADLINE, file.read_into(&mut into, 0)).await;
    assert_eq!(n.unwrap().unwrap(), 50_000);
    engine.nop().await.unwrap();
    differing + count_differing(&into, &contents)
}

fn count_differing(a: &[u8], b: &[u8]) -> usize {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// Returns eight of them, each on a separate file.
#[cfg(not(annulus_portable))]
fn works(fixture: &Fixture) -> Vec<Pin<Box<dyn Future<Output = usize> + Send>>> {
    (0..8)
        .map(|n| {
            let path = fixture.path(&n.to_string());
            let work = work(fixture.engine.clone(), path, n);
            Box::pin(work) as Pin<Box<dyn Future<Output = usize> + Send>>
        })
        .collect()
}

/// Unparks the waiting thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// A minimal executor.
pub(crate) fn on_this_thread<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn for_each(test: impl Fn(&Fixture)) {
    for_each_fixture(|builder| builder, test);
}

#[cfg(not(annulus_portable))]
#[test]
fn tokio_with_many_threads_runs_it() {
    for_each(|fixture| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .build()
            .unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = works(fixture).into_iter().map(tokio::spawn).collect();
            for task in tasks {
                assert_eq!(task.await.unwrap(), 0);
            }
        });
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn tokio_with_one_thread_runs_it() {
    for_each(|fixture| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = works(fixture).into_iter().map(tokio::spawn).collect();
            for task in tasks {
                assert_eq!(task.await.unwrap(), 0);
            }
        });
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn smol_runs_it() {
    for_each(|fixture| {
        smol::block_on(async {
            let tasks: Vec<_> = works(fixture).into_iter().map(smol::spawn).collect();
            for task in tasks {
                assert_eq!(task.await, 0);
            }
        });
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn pollster_runs_it() {
    for_each(|fixture| {
        for work in works(fixture) {
            assert_eq!(pollster::block_on(work), 0);
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_plain_thread_that_parks_runs_it() {
    for_each(|fixture| {
        let threads: Vec<_> = works(fixture)
            .into_iter()
            .map(|work| thread::spawn(|| on_this_thread(work)))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 0);
        }
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_task_goes_from_thread_to_thread_while_it_is_in_flight() {
    for_each(|fixture| {
        for mut work in works(fixture) {
            // Ten threads poll each future once, and the next one finishes it: the last one to poll
            // is woken.
            let mut result = Poll::Pending;
            for _ in 0..10 {
                if result.is_pending() {
                    (result, work) = in_time("one poll", move || {
                        let result = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        (result, work)
                    });
                }
            }
            let differing = match result {
                Poll::Ready(differing) => differing,
                Poll::Pending => in_time("the rest", move || on_this_thread(work)),
            };
            assert_eq!(differing, 0);
        }
    });
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_woken() {
    for_each(|fixture| {
        for _ in 0..50 {
            let engine = fixture.engine.clone();
            let mut nop = Box::pin(async move { engine.nop().await });
            let first = nop.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_pending(), "a nop goes through a driver");
            in_time("the completion", move || on_this_thread(nop)).unwrap();
        }
    });
}

#[test]
fn a_batch_moves_to_another_thread_half_way() {
    for_each(|fixture| {
        let contents = bytes(9, 100_000);
        let file = pollster::block_on(fixture.file("f", &contents));
        pollster::block_on(crate::fixtures::uncache(&file));
        let mut batch = file.read_many_at((0..100).map(|n| (vec![0; 1000], n * 1000)));
        pollster::block_on(async {
            for _ in 0..10 {
                batch.next().await.unwrap().result.unwrap();
            }
        });
        thread::scope(|scope| {
            let rest = scope.spawn(move || {
                let mut left = 0;
                while let Some(read) = on_this_thread(batch.next()) {
                    let expected = &contents[read.offset as usize..][..1000];
                    assert_eq!(read.result.unwrap().1, expected);
                    left += 1;
                }
                left
            });
            assert_eq!(rest.join().unwrap(), 90);
        });
    });
}

fn send<T: Send>(value: T) -> T {
    value
}

fn sync<T: Sync>(value: T) -> T {
    value
}

#[cfg(not(annulus_portable))]
#[test]
fn handles_and_futures_may_go_to_other_threads() {
    for_each_backend(async |fixture| {
        let engine: Engine = send(sync(fixture.engine.clone()));
        let file: File = send(sync(fixture.file("f", b"abc").await));
        let read: Operation<'_, _> = send(sync(file.read_at(vec![0; 3], 0)));
        read.await.unwrap();
        send(engine.open(fixture.path("f"))).await.unwrap();
        send(engine.read_dir(fixture.path(""))).await.unwrap();
        send(file.read_exact_at(vec![0; 3], 0)).await.unwrap();
        send(file.read_into(&mut [0; 3], 0)).await.unwrap();
        send(file.write_vectored_all_at(vec!["a", "b"], 0))
            .await
            .unwrap();
        let mut batch = send(file.read_many_at(vec![(vec![0; 3], 0)]));
        send(batch.next()).await.unwrap();
        drop(batch);
        let merged = file.read_many_at(vec![(vec![0; 3], 0)]);
        send(merged.merge(Merge::default())).await;
        send(engine.timeout(DEADLINE, engine.nop()))
            .await
            .unwrap()
            .unwrap();
        send(file.close()).await.unwrap();
    });
}

/// The enter that submits the operation also waits for it. The driver does not enter while nothing is in flight.
#[cfg(not(annulus_portable))]
#[test]
fn an_operation_alone_on_a_driver_thread_needs_one_enter() {
    let engine = match Engine::builder().backend(Backend::Uring).build() {
        Ok(engine) => engine,
        Err(error) => return annulus_testing::skip::skip(error),
    };
    let operations: u64 = 200;
    for _ in 0..operations {
        pollster::block_on(engine.nop()).unwrap();
    }
    let metrics = engine.metrics();
    assert!(metrics.wakeups <= operations, "{metrics:?}");
    // A signal can add some.
    assert!(
        metrics.enters <= operations * 5 / 4,
        "{} enters for {operations} operations",
        metrics.enters
    );
}
