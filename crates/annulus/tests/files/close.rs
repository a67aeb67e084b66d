//! Closing, with and without a report.

use std::pin::pin;
use std::time::Duration;

use annulus::{EngineError, OpenOptions};
use futures_lite::future::poll_once;

use crate::fixtures::{bytes, for_each_backend};
use crate::wait::eventually;

#[test]
fn the_last_handle_closes_and_reports_it() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(1, 100)).await;
        let clone = file.clone();
        assert_eq!(fixture.descriptors("f"), 1, "clones share it");
        assert_eq!(
            file.close().await.unwrap(),
            annulus::fs::Closed::Deferred,
            "a clone holds it"
        );
        assert_eq!(fixture.descriptors("f"), 1);
        let buf = clone.read_exact_at(vec![0; 100], 0).await.unwrap();
        assert_eq!(buf, bytes(1, 100));
        assert_eq!(clone.close().await.unwrap(), annulus::fs::Closed::Now);
        assert_eq!(fixture.descriptors("f"), 0, "after the close has completed");
    });
}

#[test]
fn a_dropped_file_is_closed_without_a_report() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        let clone = file.clone();
        drop(file);
        assert_eq!(fixture.descriptors("f"), 1);
        drop(clone);
        eventually("the descriptor is closed", || fixture.descriptors("f") == 0);
    });
}

#[test]
fn a_close_that_is_never_polled_closes_nevertheless() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        drop(file.close());
        eventually("the descriptor is closed", || fixture.descriptors("f") == 0);
    });
}

#[test]
fn a_hundred_files_leave_no_descriptor_behind() {
    for_each_backend(async |fixture| {
        for round in 0..100 {
            let file = fixture.file("f", b"abc").await;
            file.read_at(vec![0; 3], 0).await.unwrap();
            if round % 2 == 0 {
                assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
            }
        }
        eventually("all are closed", || fixture.descriptors("f") == 0);
        fixture.engine.read_dir(fixture.path("")).await.unwrap();
        eventually("the directory too", || fixture.descriptors("") == 0);
    });
}

#[test]
fn a_file_outlives_the_engines_handle() {
    for_each_backend(async |fixture| {
        let engine = fixture.engine.clone();
        fixture.put("f", b"abc");
        let file = engine.open(fixture.path("f")).await.unwrap();
        drop(engine);
        assert_eq!(file.read_at(vec![0; 3], 0).await.unwrap().1, b"abc");
    });
}

#[test]
fn after_a_shutdown_everything_is_refused_and_buffers_come_back() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", b"abc").await;
        fixture.engine.shutdown();
        let error = fixture.engine.nop().await.unwrap_err();
        assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
        let error = file.write_at(vec![1; 7], 0).await.unwrap_err();
        assert_eq!(EngineError::of(error.error()), Some(EngineError::Ended));
        assert_eq!(error.into_buf().unwrap(), vec![1; 7]);
        let error = fixture.engine.open(fixture.path("f")).await.unwrap_err();
        assert_eq!(EngineError::of(&error), Some(EngineError::Ended));
        assert_eq!(fixture.contents("f").unwrap(), b"abc");
    });
}

#[test]
fn a_shutdown_cancels_an_open_that_waits_for_the_other_end_of_a_pipe() {
    for_each_backend(async |fixture| {
        // A blocking thread cannot be interrupted, so its shutdown would take the whole drain timeout.
        if !fixture.engine.backend().to_string().starts_with("io_uring") {
            return;
        }
        let path = fixture.path("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let mut options = OpenOptions::new();
        let mut opened = pin!(fixture.engine.open_with(options.write(true), &path));
        assert!(poll_once(&mut opened).await.is_none());
        // A kernel worker waits in the open by then, or has not begun it.
        fixture
            .engine
            .sleep(Duration::from_millis(20))
            .await
            .unwrap();
        fixture.engine.shutdown();
        let error = opened.await.unwrap_err();
        let is_ended = EngineError::of(&error) == Some(EngineError::Ended);
        assert!(
            is_ended || error.raw_os_error() == Some(libc::ECANCELED),
            "{error}"
        );
    });
}
