//! Requested polling: it is active, or refused with a reason, and everything works.

use std::time::{Duration, Instant};

use annulus::buf::AlignedBuf;
use annulus::engine::{PollingInUse, SqPoll};
use annulus::fs::NotPolled;
use annulus::{Backend, BackendInUse, Engine, EngineBuilder, File, OpenOptions, SetupError};
use annulus_testing::skip::skip;

use crate::fixtures::bytes;
use crate::wait::DEADLINE;

/// Builds the engine. Returns `None` after a skip if there is no io_uring at all.
fn build(builder: EngineBuilder) -> Option<Engine> {
    let engine = builder.build().unwrap();
    if let BackendInUse::Fallback { reason, .. } = engine.backend() {
        skip(reason.as_ref().unwrap());
        return None;
    }
    println!("on {}", engine.backend());
    Some(engine)
}

fn polling(engine: &Engine) -> &PollingInUse {
    match engine.backend() {
        BackendInUse::Uring(rings) => &rings.polling,
        other => panic!("not a ring: {other}"),
    }
}

/// Returns a directory outside of the temporary directory, which may have no direct I/O.
fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Writes, syncs and reads back. Returns the file.
async fn works(engine: &Engine, dir: &tempfile::TempDir, direct: bool) -> Option<File> {
    let path = dir.path().join("f");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(direct);
    let file = match engine.open_with(&options, &path).await {
        Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => {
            skip("the target directory's file system has no direct I/O");
            return None;
        }
        opened => opened.unwrap(),
    };
    let contents = bytes(3, 16384);
    for (at, part) in (0..).step_by(4096).zip(contents.chunks(4096)) {
        let mut buf = AlignedBuf::with_len(4096, 4096);
        buf.copy_from_slice(part);
        file.write_all_at(buf, at).await.unwrap();
    }
    file.sync_data().await.unwrap();
    let reads = (0..4).map(|n| (AlignedBuf::with_len(4096, 4096), n * 4096));
    for (n, result) in file.read_many_at(reads).await.into_iter().enumerate() {
        assert_eq!(result.unwrap().1[..], contents[n * 4096..][..4096]);
    }
    let read = file.read_exact_at(vec![0; 5000], 999).await.unwrap();
    assert_eq!(read, contents[999..5999]);
    Some(file)
}

#[test]
fn files_that_cannot_be_polled_report_the_reason_and_work() {
    let Some(engine) = build(Engine::builder().iopoll(true)) else {
        return;
    };
    assert!(matches!(polling(&engine).iopoll, Some(Ok(()))));
    let dir = dir();
    pollster::block_on(async {
        let buffered = works(&engine, &dir, false).await.unwrap();
        assert_eq!(buffered.poll_support(), Err(NotPolled::Buffered));
        assert_eq!(engine.metrics().polled, 0);
        let Some(direct) = works(&engine, &dir, true).await else {
            return;
        };
        let metrics = engine.metrics();
        match direct.poll_support() {
            Ok(()) => assert!(metrics.polled > 0, "{metrics:?}"),
            // The device has queues, but the file system does not poll.
            Err(NotPolled::Refused) => assert!(metrics.poll_refused > 0, "{metrics:?}"),
            Err(why) => {
                println!("{why}");
                assert_eq!(metrics.polled, 0, "{why}");
                assert!(why.to_string().contains("; "), "no step in: {why}");
            }
        }
        let plain = Engine::builder().build().unwrap();
        let file = works(&plain, &dir, true).await.unwrap();
        assert_eq!(file.poll_support(), Err(NotPolled::NoRing));
    });
}

#[test]
fn a_refused_submission_poller_is_reported_with_a_hint_and_everything_works() {
    let poll = SqPoll::new().cpu(4095);
    let Some(engine) = build(Engine::builder().drivers(2).sqpoll(poll)) else {
        return;
    };
    let text = engine.backend().to_string();
    let Some(Err(refused @ SetupError::Polling { .. })) = &polling(&engine).sqpoll else {
        panic!("there is no such processor: {text}");
    };
    assert!(refused.allows_fallback());
    for part in [
        "without sqpoll: ",
        &refused.to_string(),
        "processor 4095",
        "choose one of these",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    assert!(
        !text.contains("not advised"),
        "advice for what is not done: {text}"
    );
    pollster::block_on(works(&engine, &dir(), false)).unwrap();
    assert_eq!(engine.metrics().sq_wakeups, 0);
    // With the explicit io_uring backend the refusal is an error.
    let error = Engine::builder()
        .backend(Backend::Uring)
        .sqpoll(poll)
        .build()
        .unwrap_err();
    assert_eq!(error.to_string(), refused.to_string());
}

#[test]
fn a_submission_poller_is_shared_woken_and_advised_against_with_few_processors() {
    let poll = SqPoll::new().idle(Duration::from_millis(1));
    let Some(engine) = build(Engine::builder().drivers(2).sqpoll(poll)) else {
        return;
    };
    if let Some(Err(error)) = &polling(&engine).sqpoll {
        return skip(error);
    }
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(polling(&engine).advice.is_some(), processors < 4);
    let text = engine.backend().to_string();
    assert_eq!(text.contains("not advised with"), processors < 4, "{text}");
    let dir = dir();
    let file = pollster::block_on(works(&engine, &dir, false)).unwrap();
    // A driver thread is woken through its ring, which wakes the poller before the driver pushes anything. A driver of
    // the calling thread is not.
    let driver = engine.current_thread_driver().unwrap();
    // On a busy machine the poller may not have had the time to fall asleep.
    let until = Instant::now() + DEADLINE;
    let woken = engine.metrics().sq_wakeups;
    while engine.metrics().sq_wakeups == woken {
        assert!(
            Instant::now() < until,
            "never woken: {:?}",
            engine.metrics()
        );
        // Longer than the poller's idle time.
        std::thread::sleep(Duration::from_millis(50));
        driver.block_on(file.sync_data()).unwrap();
    }
}

#[test]
fn polling_options_have_no_effect_on_an_engine_without_a_ring() {
    let builder = Engine::builder().backend(Backend::Fallback);
    let engine = builder.sqpoll(SqPoll::new()).iopoll(true).build().unwrap();
    let file = pollster::block_on(works(&engine, &dir(), false)).unwrap();
    assert_eq!(file.poll_support(), Err(NotPolled::NoRing));
}
