//! A runtime that its owner keeps.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use annulus::net::UnixStream;
use annulus::runtime;

use crate::ways::{Drops, each_way};

#[test]
fn tasks_and_their_core_outlive_the_calls_of_block_on() {
    thread_local! {
        static ON_THE_CORE: Cell<u32> = const { Cell::new(0) };
    }

    each_way(|builder| {
        let runtime = builder.cores(2).start().unwrap();
        assert_eq!(runtime.handle().cores(), 2);
        let first = runtime.block_on(|| async {
            ON_THE_CORE.set(7);
            let (near, far) = UnixStream::pair()?;
            runtime::spawn(async move {
                let bytes = near.recv_exact(vec![0; 5]).await?;
                io::Result::Ok(near.send_all(bytes).await.map(drop)?)
            });
            far.send_all("hello").await?;
            io::Result::Ok(far.recv_exact(vec![0; 5]).await?)
        });
        assert_eq!(first.unwrap().unwrap(), b"hello");
        let again = runtime.block_on(|| async { ON_THE_CORE.get() });
        assert_eq!(again.unwrap(), 7);
        runtime.shutdown().unwrap();
    });
}

#[test]
fn several_threads_may_wait_for_a_kept_runtime() {
    each_way(|builder| {
        let sum = AtomicUsize::new(0);
        let runtime = builder.start().unwrap();
        std::thread::scope(|scope| {
            for number in 0..10 {
                let (runtime, sum) = (&runtime, &sum);
                scope.spawn(move || {
                    let value = runtime.block_on(move || async move { number });
                    sum.fetch_add(value.unwrap(), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(sum.into_inner(), 45);
    });
}

#[test]
fn dropping_a_kept_runtime_drops_its_tasks() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let runtime = builder.start().unwrap();
        let handle = runtime.handle().clone();
        let started = runtime.block_on(move || async move {
            runtime::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
        });
        started.unwrap();
        drop(runtime);
        assert_eq!(drops.count(), 1);
        assert!(handle.spawn_on(0, || async {}).is_finished());
    });
}

#[test]
fn a_kept_runtime_may_be_dropped_on_each_of_its_cores() {
    each_way(|builder| {
        for core in [0, 1] {
            let runtime = builder.clone().cores(2).start().unwrap();
            let handle = runtime.handle().clone();
            // The task may end before the runtime, or be dropped with it.
            let (sender, receiver) = std::sync::mpsc::channel();
            drop(handle.spawn_on(core, move || async move {
                drop(runtime);
                sender.send(()).unwrap();
            }));
            receiver.recv().unwrap();
        }
    });
}

#[test]
fn waiting_on_a_core_is_an_error_and_a_panic_goes_to_the_caller() {
    each_way(|builder| {
        let runtime = builder.clone().start().unwrap();
        let nested = builder.block_on(async move {
            let error = runtime.block_on(|| async {}).unwrap_err().to_string();
            (error, runtime)
        });
        let (error, runtime) = nested.unwrap();
        assert!(error.contains("would block a core"), "{error}");
        let panics =
            std::panic::AssertUnwindSafe(|| runtime.block_on(|| async { panic!("for the test") }));
        let panic: Result<io::Result<()>, _> = std::panic::catch_unwind(panics);
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"for the test"));
    });
}
