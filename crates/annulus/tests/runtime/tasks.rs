//! Tasks: their values, panics and aborts.

use std::io;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use annulus::runtime::{self, Runtime};
use annulus::time;

use crate::ways::{DropGuard, Drops, each_way};

#[test]
fn a_task_returns_its_value_and_a_panic_is_reported_only_by_its_handle() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            let fine = runtime::spawn(async { 7 });
            let broken = runtime::spawn(async { panic!("on purpose") });
            let error = broken.await.unwrap_err();
            assert!(!error.is_aborted());
            assert_eq!(error.to_string(), "the task panicked: on purpose");
            fine.await.unwrap()
        });
        assert_eq!(ended.unwrap(), 7);
    });
}

#[test]
fn an_aborted_task_is_dropped_even_if_its_handle_is_dropped_immediately() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let seen = drops.clone();
        let ended = builder.block_on(async move {
            let endless = runtime::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            runtime::yield_now().await;
            assert_eq!(seen.count(), 0);
            endless.abort();
            drop(endless);
            runtime::yield_now().await;
            runtime::yield_now().await;
            assert_eq!(seen.count(), 1, "the task goes on");
            let unbegun = runtime::spawn(async { 1 });
            unbegun.abort();
            assert!(unbegun.await.unwrap_err().is_aborted());
        });
        ended.unwrap();
        assert_eq!(drops.count(), 1);
    });
}

/// Panics when it is dropped.
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("in a drop, on purpose");
    }
}

#[test]
fn a_panic_in_a_drop_ends_one_task_and_no_core() {
    each_way(|builder| {
        let ended = builder.clone().block_on(async {
            let broken = runtime::spawn(async {
                let _fragile = Fragile;
                runtime::yield_now().await;
            });
            assert!(!broken.await.unwrap_err().is_aborted());
            let aborted = runtime::spawn(async {
                let _fragile = Fragile;
                std::future::pending::<()>().await;
            });
            runtime::yield_now().await;
            aborted.abort();
            assert!(aborted.await.unwrap_err().is_aborted());
            runtime::spawn(async { 3 }).await.unwrap()
        });
        assert_eq!(ended.unwrap(), 3);
        // Dropped at the end of the runtime.
        let ended = builder.block_on(async {
            runtime::spawn(async {
                let _fragile = Fragile;
                std::future::pending::<()>().await;
            });
            runtime::yield_now().await;
            4
        });
        assert_eq!(ended.unwrap(), 4);
    });
}

/// Without a handle, the task drops its value.
#[test]
fn a_value_that_panics_in_its_drop_harms_no_core() {
    each_way(|builder| {
        let ended = builder.block_on(async {
            drop(runtime::spawn(async { Fragile }));
            drop(runtime::handle().spawn_on(0, || async { Fragile }));
            runtime::yield_now().await;
            runtime::yield_now().await;
            runtime::spawn(async { 3 }).await.unwrap()
        });
        assert_eq!(ended.unwrap(), 3);
    });
}

/// A foreign waker that panics.
struct Explosive(#[allow(dead_code, reason = "it is dropped")] DropGuard);

impl Wake for Explosive {
    fn wake(self: Arc<Self>) {
        panic!("in a waker, on purpose");
    }
}

#[test]
fn a_panicking_waker_harms_no_core() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let ended = builder.block_on(async move {
            let waker = Waker::from(Arc::new(Explosive(guard)));
            let mut context = Context::from_waker(&waker);
            let mut sleep = Box::pin(time::sleep(Duration::from_millis(1)));
            assert!(sleep.as_mut().poll(&mut context).is_pending());
            let mut task = Box::pin(runtime::spawn(async {}));
            assert!(task.as_mut().poll(&mut context).is_pending());
            let mut stopping = Box::pin(runtime::stopping());
            assert!(stopping.as_mut().poll(&mut context).is_pending());
            time::sleep(Duration::from_millis(20)).await;
            task.await.unwrap();
            sleep.await;
            // Left until the end of the runtime.
            std::mem::forget(stopping);
            5
        });
        assert_eq!(ended.unwrap(), 5);
    });
}

/// A task that has sent passes the stream on to the next, whose waker panics.
#[test]
fn a_panicking_waker_harms_no_send_of_another_task() {
    each_way(|builder| {
        let drops = Drops::default();
        let guard = drops.guard();
        let ended = builder.block_on(async move {
            let (near, far) = annulus::net::UnixStream::pair().unwrap();
            let near = std::rc::Rc::new(near);
            let same = std::rc::Rc::clone(&near);
            let first =
                runtime::spawn(async move { same.send_all(vec![1; 1 << 20]).await.is_ok() });
            runtime::yield_now().await;
            let mut second = Box::pin(near.send_all(vec![2; 4]));
            let waker = Waker::from(Arc::new(Explosive(guard)));
            let polled = second.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            far.recv_exact(vec![0; 1 << 20]).await.unwrap();
            assert!(first.await.unwrap());
            second.await.unwrap();
            far.recv_exact(vec![0; 4]).await.unwrap()
        });
        assert_eq!(ended.unwrap(), [2; 4]);
    });
}

#[test]
fn a_core_cannot_run_another_runtime() {
    each_way(|builder| {
        let inner = builder.clone();
        let ended = builder.block_on(async move {
            let error = inner.clone().block_on(async {}).unwrap_err();
            assert!(
                error.to_string().contains("already a core of a runtime"),
                "{error}"
            );
            let error = inner.clone().run(|_| async { Ok(()) }).unwrap_err();
            assert!(
                error.to_string().contains("already a core of a runtime"),
                "{error}"
            );
            // On a separate thread it is allowed.
            std::thread::spawn(move || inner.block_on(async { 6 }).unwrap()).join()
        });
        assert_eq!(ended.unwrap().unwrap(), 6);
    });
}

#[test]
fn runtime_functions_fail_outside_of_a_runtime_with_a_hint() {
    for (name, call) in [
        ("spawn", (|| drop(runtime::spawn(async {}))) as fn()),
        ("spawn_blocking", || drop(runtime::spawn_blocking(|| ()))),
        ("handle", || drop(runtime::handle())),
        ("timers", || drop(time::sleep(Duration::ZERO))),
    ] {
        let panic = std::panic::catch_unwind(call).unwrap_err();
        let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap();
        assert!(text.contains(name) && text.contains("runtime"), "{text}");
    }
}

#[test]
fn invalid_options_are_refused_with_the_valid_ones() {
    for (builder, says) in [
        (Runtime::builder().cores(0), "cores is 0"),
        (
            Runtime::builder().blocking_threads(0),
            "blocking_threads is 0",
        ),
        (Runtime::builder().ring_entries(0), "ring_entries is 0"),
        (
            Runtime::builder().receive_buffers(3, 4096),
            "a power of two",
        ),
        (
            Runtime::builder().receive_buffers(4, 1),
            "64 bytes to 1 GiB",
        ),
    ] {
        let error: io::Error = builder.run(|_| async { Ok(()) }).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[cfg(feature = "test-util")]
#[test]
fn a_runtime_refuses_the_simulated_backend_and_names_the_alternatives() {
    let simulated = annulus::Backend::Sim(annulus::sim::SimConfig::new(1));
    let error = Runtime::builder()
        .backend(simulated)
        .block_on(async {})
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no sockets") && text.contains("Engine"),
        "{text}"
    );
    assert!(text.contains("Backend::Fallback"), "{text}");
}
