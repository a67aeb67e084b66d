//! The backend of other platforms, where only blocking threads exist.

use std::io::{ErrorKind, Write};
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use annulus::{Backend, BackendInUse, Engine, EngineError, SetupError};

#[test]
fn the_backend_is_threads_and_the_reason_is_the_platform() {
    let engine = Engine::new().unwrap();
    let BackendInUse::Fallback {
        reason: Some(reason),
        ..
    } = engine.backend()
    else {
        panic!("{}", engine.backend());
    };
    assert!(matches!(reason, SetupError::Platform { .. }) && reason.allows_fallback());
    let report = engine.backend().to_string();
    assert!(
        report.contains("64 blocking threads: no io_uring"),
        "{report}"
    );
    let error = Engine::builder().backend(Backend::Uring).build();
    assert!(matches!(error, Err(SetupError::Platform { .. })));
    let requested = Engine::builder().backend(Backend::Fallback).build();
    let report = requested.unwrap().backend().to_string();
    assert!(report.ends_with("as configured"), "{report}");
}

/// An engine with one thread, which an open of a FIFO occupies until the function returns.
fn with_an_occupied_thread(test: impl AsyncFnOnce(&Engine, &std::path::Path)) {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let engine = Engine::builder().blocking_threads(1).build().unwrap();
    let mut open = pin!(engine.open(&fifo));
    let waits = open.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(waits.is_pending());
    pollster::block_on(test(&engine, dir.path()));
    let mut writer = std::fs::File::options().write(true).open(&fifo).unwrap();
    writer.write_all(b"x").unwrap();
    pollster::block_on(open).unwrap();
}

#[test]
fn an_operation_that_times_out_in_the_queue_returns_its_buffer_and_is_not_carried_out() {
    let mut kept = None;
    with_an_occupied_thread(async |engine, dir| {
        let std = std::fs::File::create(dir.join("data")).unwrap();
        let file = annulus::File::from_std(std, engine).unwrap();
        let write = file
            .write_all_at(vec![7; 4], 0)
            .timeout(Duration::from_millis(1));
        let error = write.await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::TimedOut);
        assert_eq!(error.into_buf(), Some(vec![7; 4]));
        // Dropped in the queue.
        let mut write = pin!(file.write_all_at(vec![8; 4], 0));
        let polled = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
        kept = Some(file.clone());
    });
    let file = kept.unwrap();
    assert_eq!(pollster::block_on(file.metadata()).unwrap().len(), 0);
}

#[test]
fn the_end_of_an_engine_fails_what_waits_and_returns_the_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let builder = Engine::builder().blocking_threads(1);
    let engine = builder
        .drain_timeout(Duration::from_millis(1))
        .build()
        .unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut open = pin!(engine.open(&fifo));
    assert!(open.as_mut().poll(&mut context).is_pending());
    let std = std::fs::File::create(dir.path().join("data")).unwrap();
    let file = annulus::File::from_std(std, &engine).unwrap();
    let mut write = pin!(file.write_all_at(vec![7; 4], 0));
    assert!(write.as_mut().poll(&mut context).is_pending());
    engine.shutdown();
    let Poll::Ready(Err(error)) = write.as_mut().poll(&mut context) else {
        panic!("the write still waits");
    };
    assert_eq!(EngineError::of(error.error()), Some(EngineError::Ended));
    assert_eq!(error.into_buf(), Some(vec![7; 4]));
    let late = pollster::block_on(engine.nop()).unwrap_err();
    assert_eq!(EngineError::of(&late), Some(EngineError::Ended));
    // Both ends, which ends the open of the thread.
    std::fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
}
