//! Timeouts: generous ones on every backend, and ones that expire on the simulation's clock.

use std::future::pending;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use annulus::EngineError;

use crate::fixtures::{bytes, for_each_backend};
use crate::wait::DEADLINE;

#[cfg(not(annulus_portable))]
#[test]
fn operations_within_their_time_are_not_disturbed() {
    for_each_backend(async |fixture| {
        let contents = bytes(1, 10_000);
        fixture.put("f", &contents);
        let engine = &fixture.engine;
        let file = engine
            .open(fixture.path("f"))
            .timeout(DEADLINE)
            .await
            .unwrap();
        let read = file.read_at(vec![0; 10_000], 0).timeout(DEADLINE);
        assert_eq!(read.await.unwrap().1, contents);
        let mut into = vec![0; 10_000];
        let read = file.read_into(&mut into, 0).timeout(DEADLINE);
        assert_eq!(read.await.unwrap(), 10_000);
        let stat = file.metadata().timeout(Duration::MAX).await.unwrap();
        assert_eq!(stat.len(), 10_000);
        engine.nop().timeout(DEADLINE).await.unwrap();
        let inner = engine.timeout(DEADLINE, file.read_at(vec![0; 5], 0)).await;
        assert_eq!(inner.unwrap().unwrap().0, 5);
        assert_eq!(engine.timeout(DEADLINE, async { 7 }).await.unwrap(), 7);
        assert_eq!(engine.metrics().timeouts, 0);
    });
}

#[test]
fn the_shorter_of_a_sleep_and_its_timeout_ends_it() {
    for_each_backend(async |fixture| {
        let engine = &fixture.engine;
        let cut = engine.sleep(DEADLINE).timeout(Duration::from_millis(1));
        let error = cut.await.unwrap_err();
        assert_eq!(EngineError::of(&error), Some(EngineError::TimedOut));
        let short = engine.sleep(Duration::from_millis(1));
        short.timeout(DEADLINE).await.unwrap();
        let late = engine.timeout(Duration::from_millis(1), pending::<()>());
        let error = late.await.unwrap_err();
        assert_eq!(EngineError::of(&error), Some(EngineError::TimedOut));
    });
}

#[test]
fn a_sleep_is_at_least_as_long_as_requested() {
    for_each_backend(async |fixture| {
        for milliseconds in [0, 1, 7] {
            let time = Duration::from_millis(milliseconds);
            let start = Instant::now();
            fixture.engine.sleep(time).await.unwrap();
            assert!(start.elapsed() >= time);
        }
    });
}

#[test]
fn a_future_that_never_completes_times_out() {
    for_each_backend(async |fixture| {
        for time in [Duration::ZERO, Duration::from_millis(3)] {
            let result = fixture.engine.timeout(time, pending::<()>()).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        fixture.engine.nop().await.unwrap();
    });
}

/// The kernel's text for `ETIMEDOUT` is about a connection.
fn assert_timed_out(error: &std::io::Error) {
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(EngineError::of(error), Some(EngineError::TimedOut));
    assert!(
        error.to_string().contains("the operation timed out"),
        "{error}"
    );
}

#[test]
fn a_zero_timeout_still_has_one_result() {
    for_each_backend(async |fixture| {
        let file = fixture.file("f", &bytes(2, 4096)).await;
        for _ in 0..20 {
            let read = file.read_at(vec![0; 4096], 0).timeout(Duration::ZERO);
            match read.await {
                Ok((n, _)) => assert_eq!(n, 4096),
                Err(error) => assert_timed_out(error.error()),
            }
        }
        assert_eq!(file.read_at(vec![0; 4096], 0).await.unwrap().0, 4096);
    });
}

#[cfg(feature = "test-util")]
mod simulated {
    use super::*;
    use annulus::sim::{Sim, SimConfig};

    const HOUR: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(1);

    /// A simulation with the file `/f`, on which every operation takes about an hour.
    fn slow(config: SimConfig) -> Sim {
        let sim = Sim::new(config);
        sim.put("/f", bytes(3, 10_000)).unwrap();
        sim
    }

    #[test]
    fn an_operation_that_can_be_cancelled_gives_its_buffer_back() {
        let sim = slow(SimConfig::new(1).delays(HOUR));
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            let read = file.read_at(vec![5; 100], 0).timeout(SHORT);
            let error = read.await.unwrap_err();
            assert_timed_out(error.error());
            assert_eq!(error.into_buf().unwrap().len(), 100);
            let open = engine.open("/f").timeout(SHORT).await;
            assert_timed_out(&open.unwrap_err());
            let mut into = [0; 10];
            let read = file.read_into(&mut into, 0).timeout(SHORT).await;
            assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(engine.metrics().timeouts, 3);
            assert_eq!(file.read_at(vec![0; 100], 0).await.unwrap().0, 100);
            assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
        });
        assert_eq!(sim.open_descriptors(), 0);
        assert_eq!(sim.report().slots_in_use, 0);
    }

    #[test]
    fn an_operation_that_cannot_be_cancelled_times_out_without_its_buffer() {
        let sim = slow(SimConfig::new(1).late(1000, Duration::from_secs(20)));
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            let before = sim.elapsed();
            let error = file.read_at(vec![5; 100], 0).timeout(SHORT).await;
            let error = error.unwrap_err();
            assert_eq!(error.error().kind(), ErrorKind::TimedOut);
            assert!(error.into_buf().is_none(), "the kernel still has it");
            assert!(sim.elapsed() - before < Duration::from_secs(1));
        });
        assert_eq!(sim.report().slots_in_use, 0);
    }

    #[test]
    fn a_batch_that_times_out_returns_the_rest_without_buffers() {
        let sim = slow(SimConfig::new(1).late(1000, Duration::from_secs(20)));
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            let reads = || (0..10).map(|n| (vec![0; 100], n * 1000));
            let results = file.read_many_at(reads()).timeout(SHORT).await;
            assert_eq!(results.len(), 10);
            for result in results {
                let error = result.unwrap_err();
                assert_eq!(error.error().kind(), ErrorKind::TimedOut);
                assert!(error.into_buf().is_none());
            }
            let merge = annulus::fs::Merge::default();
            let results = file.read_many_at(reads()).merge(merge).timeout(SHORT).await;
            assert_eq!(results.len(), 10);
            for result in results {
                let error = result.unwrap_err();
                assert_eq!(error.error().kind(), ErrorKind::TimedOut);
                assert_eq!(error.into_buf().unwrap().len(), 100, "it was never lent");
            }
        });
        assert_eq!(sim.report().slots_in_use, 0);
    }

    #[test]
    fn reads_that_were_not_submitted_when_the_time_passed_return_their_buffers() {
        let sim = slow(SimConfig::new(1).late(1000, Duration::from_secs(20)));
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            let reads = (0..2000).map(|n| (vec![0; 100], n));
            let mut batch = file.read_many_at(reads).window(4).timeout(SHORT);
            for index in 0..2001 {
                if index == 2000 {
                    batch.push(vec![0; 100], 0);
                }
                let done = batch.next().await.unwrap();
                assert_eq!(done.index, index);
                let error = done.result.unwrap_err();
                assert_timed_out(error.error());
                assert_eq!(error.into_buf().is_some(), index >= 4, "read {index}");
            }
            assert!(batch.next().await.is_none());
        });
        assert_eq!(sim.report().slots_in_use, 0);
    }

    #[test]
    fn a_sleep_takes_simulated_time_and_no_real_time() {
        let sim = Sim::new(SimConfig::new(1));
        sim.run(async |engine| {
            engine.sleep(1000 * HOUR).await.unwrap();
            let several = engine.timeout(HOUR, engine.sleep(2 * HOUR)).await;
            assert_eq!(several.unwrap_err().kind(), ErrorKind::TimedOut);
        });
        assert!(sim.elapsed() >= 1001 * HOUR && sim.elapsed() < 1002 * HOUR);
    }
}
