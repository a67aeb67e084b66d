//! Full queues and failing enter calls: the driver continues, and every operation is carried out once.

use std::io::ErrorKind;
use std::time::Duration;

use annulus::OpenOptions;
use annulus::sim::{Errno, OpKind, Sim, SimConfig, spawn};

use crate::buffers::Tally;
use crate::seeds::for_each_seed;

/// Longer than any operation here takes, unless it waits for an unrelated event.
const SOON: Duration = Duration::from_millis(500);

/// Each of many tasks appends one record. Whatever happens to the queues, each record is in the file exactly once.
fn append_records(config: SimConfig, records: u8) -> Sim {
    let sim = Sim::new(config);
    sim.run(async |engine| {
        let mut options = OpenOptions::new();
        let file = engine
            .open_with(options.append(true).create(true), "/log")
            .await
            .unwrap();
        let done = Tally::default();
        let tasks: Vec<_> = (0..records)
            .map(|record| {
                let (file, done) = (file.clone(), done.clone());
                spawn(async move {
                    let (bytes, _) = file.write_at(vec![record; 1], 0).await.unwrap();
                    assert_eq!(bytes, 1);
                    done.add(1);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(done.get(), u64::from(records));
    });
    let mut log = sim.contents("/log").unwrap();
    log.sort_unstable();
    let expected: Vec<u8> = (0..records).collect();
    assert_eq!(log, expected, "each record once");
    assert_eq!(sim.report().slots_in_use, 0);
    assert_eq!(sim.report().metrics.stale, 0);
    assert_eq!(sim.open_descriptors(), 0);
    sim
}

fn delayed(seed: u64) -> SimConfig {
    SimConfig::new(seed)
        .delays(Duration::from_micros(50))
        .reordering(500)
}

#[test]
fn completions_that_overflow_are_all_delivered() {
    for_each_seed(20, |seed| {
        for deferred in [false, true] {
            let config = delayed(seed).queues(64, 4).deferred_task_work(deferred);
            let sim = append_records(config, 200);
            assert!(sim.counts().overflowed > 0, "{:?}", sim.counts());
        }
    });
}

/// 1. More entries are pushed than the submission queue holds, and fewer than a chunk.
/// 2. The kernel refuses to take them while completions wait for space (`EBUSY`).
/// 3. There is space when the driver reaps, so it must reap before it pushes again.
#[test]
fn a_kernel_that_requires_reaping_first_gets_it() {
    let met = Tally::default();
    for_each_seed(20, |seed| {
        for deferred in [false, true] {
            let config = delayed(seed).queues(2, 4).busy_on_overflow(true);
            let sim = append_records(config.deferred_task_work(deferred), 200);
            met.add(sim.counts().enters_busy);
        }
    });
    assert!(met.get() > 0, "no enter was refused");
}

#[test]
fn an_enter_that_fails_loses_and_repeats_nothing() {
    for_each_seed(20, |seed| {
        let config = delayed(seed)
            .queues(8, 16)
            .refused_enters(300)
            .broken_enters(300)
            .short_submits(300);
        let counts = append_records(config, 200).counts();
        assert!(
            counts.enters_refused > 0 && counts.enters_broken > 0 && counts.submits_short > 0,
            "{counts:?}"
        );
    });
}

#[test]
fn a_queue_of_one_entry_is_enough() {
    for_each_seed(20, |seed| {
        let config = delayed(seed)
            .queues(1, 1)
            .refused_enters(100)
            .broken_enters(100)
            .short_submits(100);
        let counts = append_records(config, 200).counts();
        assert!(
            counts.pushes_refused > 0 && counts.overflowed > 0,
            "{counts:?}"
        );
    });
}

#[test]
fn an_interrupted_operation_is_submitted_again_until_it_completes() {
    for_each_seed(20, |seed| {
        let config = delayed(seed)
            .errors(&[OpKind::Write], Errno::Eintr, 300)
            .errors(&[OpKind::Write], Errno::Eagain, 300);
        let sim = append_records(config, 100);
        assert!(sim.counts().errors > 0);
        assert!(sim.report().metrics.resubmitted >= sim.counts().errors);
    });
}

/// The result of a timeout must not wait for its operation, nor for any other. The cancel that it needs gets through a
/// full submission queue and a kernel that refuses.
#[test]
fn a_cancel_gets_through_a_full_submission_queue() {
    for_each_seed(100, |seed| {
        let config = SimConfig::new(seed)
            .late(1000, Duration::from_secs(20))
            .queues(1, 4)
            .refused_enters(300)
            .broken_enters(200)
            .short_submits(200);
        let sim = Sim::new(config);
        let builder = annulus::Engine::builder().drain_timeout(Duration::from_secs(60));
        sim.run_with(&builder, async |engine| {
            let file = engine.create("/f").await.unwrap();
            let before = sim.elapsed();
            let tasks: Vec<_> = (0..20)
                .map(|at| {
                    let file = file.clone();
                    spawn(async move {
                        let write = file
                            .write_at(vec![1; 8], at * 8)
                            .timeout(Duration::from_millis(at));
                        // A few are written before their timeout.
                        let error = write.await.err()?;
                        Some(error.error().kind())
                    })
                })
                .collect();
            for task in tasks {
                let kind = task.await;
                assert!(matches!(kind, None | Some(ErrorKind::TimedOut)), "{kind:?}");
            }
            let took = sim.elapsed() - before;
            assert!(
                took < SOON,
                "the last timeout, of 19 ms, completed after {took:?}"
            );
        });
        assert_eq!(sim.report().slots_in_use, 0);
        assert!(sim.counts().pushes_refused > 0, "{:?}", sim.counts());
    });
}
