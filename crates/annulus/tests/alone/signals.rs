//! Signals on cores. Alone, because a signal is for the process.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use annulus::Backend;
use annulus::runtime::{self, Runtime, RuntimeBuilder};
use annulus::signal::{self, Signal};
use annulus_testing::child_process::in_child;
use annulus_testing::skip::skip;
use signal_hook::low_level::raise;

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3_600);

fn each_way(name: &str, test: impl Fn(RuntimeBuilder)) {
    in_child(name, || {
        for backend in [Backend::Uring, Backend::Fallback] {
            let builder = Runtime::builder().backend(backend).cores(2);
            match builder.clone().block_on(async {}) {
                Ok(()) => test(builder),
                Err(error) => skip(format_args!("{backend:?}: {error}")),
            }
        }
    });
}

#[test]
fn every_core_receives_a_signal_and_none_is_lost_with_a_dropped_future() {
    each_way(
        "signals::every_core_receives_a_signal_and_none_is_lost_with_a_dropped_future",
        |builder| {
            let ended = builder.run(|_core| async {
                let mut signals = Signal::new(signal::SIGUSR1)?;
                let polled = futures_lite::future::poll_once(Box::pin(signals.recv())).await;
                drop(polled);
                raise(signal::SIGUSR1)?;
                signals.recv().await
            });
            ended.unwrap();
        },
    );
}

#[test]
fn ctrl_c_is_awaited_and_other_signals_go_elsewhere() {
    each_way(
        "signals::ctrl_c_is_awaited_and_other_signals_go_elsewhere",
        |builder| {
            let ended = builder.block_on(async {
                let task = runtime::spawn(async {
                    let mut interrupts = Box::pin(signal::ctrl_c());
                    let early = futures_lite::future::poll_once(&mut interrupts).await;
                    assert!(early.is_none());
                    raise(signal::SIGINT)?;
                    interrupts.await
                });
                task.await?
            });
            ended.unwrap().unwrap();
        },
    );
}

#[test]
fn a_signal_that_cannot_be_handled_is_an_error() {
    each_way(
        "signals::a_signal_that_cannot_be_handled_is_an_error",
        |builder| {
            let error = builder
                .block_on(async { Signal::new(9).unwrap_err() })
                .unwrap();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("signal 9"), "{error}");
        },
    );
}

#[test]
fn sigterm_shuts_a_runtime_down_and_tasks_finish_in_the_grace_period() {
    each_way(
        "signals::sigterm_shuts_a_runtime_down_and_tasks_finish_in_the_grace_period",
        |builder| {
            static FINISHED: AtomicBool = AtomicBool::new(false);
            let ended = builder
                .grace(NEVER)
                .shutdown_on_signals()
                .run(|core| async move {
                    if core.index() == 0 {
                        runtime::spawn(async {
                            runtime::stopping().await;
                            FINISHED.store(true, Ordering::SeqCst);
                        });
                        raise(signal::SIGTERM)?;
                    }
                    std::future::pending().await
                });
            ended.unwrap();
            assert!(FINISHED.swap(false, Ordering::SeqCst));
        },
    );
}

#[test]
fn a_runtime_that_ends_by_itself_does_not_wait_for_signals() {
    each_way(
        "signals::a_runtime_that_ends_by_itself_does_not_wait_for_signals",
        |builder| {
            let ended = builder
                .grace(NEVER)
                .shutdown_on_signals()
                .run(|_core| async { Ok(()) });
            ended.unwrap();
        },
    );
}

#[test]
fn a_signal_of_the_first_core_that_runs_shuts_the_runtime_down() {
    each_way(
        "signals::a_signal_of_the_first_core_that_runs_shuts_the_runtime_down",
        |builder| {
            // Core 0 awaits the signal, and starts last. With many cores another one runs before it.
            let ended = builder.cores(24).shutdown_on_signals().run(|core| {
                if core.index() != 0 {
                    raise(signal::SIGTERM).unwrap();
                }
                std::future::pending::<io::Result<()>>()
            });
            ended.unwrap();
        },
    );
}
