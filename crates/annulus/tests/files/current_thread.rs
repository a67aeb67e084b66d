//! Drivers of the calling thread; only rings have them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use annulus::buf::{Arena, BufferLayout};
use annulus::{Backend, Engine};
use annulus_testing::memory_map::until_unmapped;
use annulus_testing::skip::skip;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::wait::in_time;

/// Returns an engine with rings if io_uring is available here.
fn engine() -> Option<Engine> {
    let engine = Engine::builder().backend(Backend::Uring).build();
    engine.inspect_err(|error| skip(error)).ok()
}

/// Polls `inner` once per poll, and calls `nest` in the first one. The output is the number of polls.
fn nesting(mut nest: impl FnMut(&mut Context<'_>)) -> impl Future<Output = u32> {
    let mut polls = 0;
    poll_fn(move |context| {
        polls += 1;
        if polls == 2 {
            return Poll::Ready(polls);
        }
        nest(context);
        Poll::Pending
    })
}

#[test]
fn a_future_that_is_woken_while_its_driver_runs_another_is_polled_again() {
    let Some(engine) = engine() else { return };
    in_time("a nested call of block_on", move || {
        let driver = engine.current_thread_driver().unwrap();
        let polls = driver.block_on(nesting(|context| {
            let outer = context.waker();
            driver.block_on(async {
                outer.wake_by_ref();
                // Long enough that the inner call sees the wake-up before it returns.
                engine.nop().await.unwrap();
                engine.nop().await.unwrap();
            });
        }));
        assert_eq!(polls, 2);
    });
}

#[test]
fn a_future_that_its_last_completion_woke_enters_the_kernel_once_per_operation() {
    const CALLS: u64 = 1_000;
    let Some(engine) = engine() else { return };
    in_time("a sequence of operations", move || {
        let driver = engine.current_thread_driver().unwrap();
        let before = engine.metrics();
        // Mostly completes after the submission. The set wakes its task for each future that is added.
        let query = || engine.metadata("/proc/self/status");
        driver.block_on(async {
            let mut queries = FuturesUnordered::from_iter([query()]);
            for _ in 1..CALLS {
                queries.next().await.unwrap().unwrap();
                queries.push(query());
            }
            queries.next().await.unwrap().unwrap();
        });
        let after = engine.metrics();
        assert_eq!(after.submitted - before.submitted, CALLS);
        let enters = after.enters - before.enters;
        assert!(enters < CALLS * 5 / 4, "{enters} enters for {CALLS} calls");
    });
}

#[test]
fn an_operation_that_completes_while_its_driver_runs_another_future_wakes_its_task() {
    let Some(engine) = engine() else { return };
    in_time("a nested call of block_on", move || {
        let driver = engine.current_thread_driver().unwrap();
        for depth in 1..4 {
            let mut outer = engine.nop();
            let mut nested = false;
            driver
                .block_on(poll_fn(|context| {
                    let polled = Pin::new(&mut outer).poll(context);
                    if polled.is_pending() && !std::mem::replace(&mut nested, true) {
                        down(&engine, &driver, depth);
                    }
                    polled
                }))
                .unwrap();
        }
    });
}

/// Nests `block_on` to this depth, each level with an operation that completes further down.
fn down(engine: &Engine, driver: &annulus::engine::CurrentThreadDriver, depth: u32) {
    let mut nested = depth == 0;
    let mut operation = pin!(async {
        engine.nop().await?;
        engine.nop().await
    });
    let ended = driver.block_on(poll_fn(|context| {
        let polled = operation.as_mut().poll(context);
        if polled.is_pending() && !std::mem::replace(&mut nested, true) {
            down(engine, driver, depth - 1);
        }
        polled
    }));
    ended.unwrap();
}

#[test]
fn a_nested_call_that_panics_leaves_the_outer_future_to_be_polled() {
    let Some(engine) = engine() else { return };
    in_time("a nested call of block_on that panics", move || {
        let driver = engine.current_thread_driver().unwrap();
        let polls = driver.block_on(nesting(|context| {
            let outer = context.waker();
            let nested = std::panic::AssertUnwindSafe(|| {
                driver.block_on(async {
                    outer.wake_by_ref();
                    engine.nop().await.unwrap();
                    std::panic::resume_unwind(Box::new("of the inner future"));
                })
            });
            assert!(std::panic::catch_unwind(nested).is_err());
        }));
        assert_eq!(polls, 2);
        driver.block_on(engine.nop()).unwrap();
    });
}

/// Creates an arena that the ring of `driver` has registered. Returns its address and its size as well.
fn arena(engine: &Engine, driver: &annulus::engine::CurrentThreadDriver) -> (Arena, usize, usize) {
    let layout = BufferLayout::new(16, 1 << 20);
    let arena = engine.register_buffers(layout).unwrap();
    let rings = arena.registered().rings;
    driver.block_on(engine.nop()).unwrap();
    assert_eq!(arena.registered().rings, rings + 1, "{arena}");
    let from = arena.try_take().unwrap().as_ptr().addr();
    (arena, from, layout.count * layout.bytes)
}

#[test]
fn an_own_ring_gives_a_dropped_arena_back_while_its_thread_is_elsewhere() {
    let Some(engine) = engine() else { return };
    let driver = engine.current_thread_driver().unwrap();
    let (arena, from, bytes) = arena(&engine, &driver);
    std::thread::spawn(|| drop(arena)).join().unwrap();
    until_unmapped(from, bytes);
    driver.block_on(engine.nop()).unwrap();
}

#[test]
fn an_own_ring_gives_a_dropped_arena_back_while_its_thread_sleeps_in_it() {
    let Some(engine) = engine() else { return };
    let driver = engine.current_thread_driver().unwrap();
    let (arena, from, bytes) = arena(&engine, &driver);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let waker: std::task::Waker = receiver.recv().unwrap();
            drop(arena);
            until_unmapped(from, bytes);
            waker.wake();
        });
        driver.block_on(nesting(|context| {
            sender.send(context.waker().clone()).unwrap()
        }));
    });
}
