//! The end of an engine: nothing is left in flight, and it takes no longer than the operations in
//! flight.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use annulus::sim::{EventKind, Sim, SimConfig, spawn};
use annulus::{Engine, EngineError};

use crate::buffers::{Census, Tally};
use crate::seeds::for_each_seed;

/// Polls once, which submits the operation.
async fn start<F: Future + Unpin>(future: &mut F) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *future).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

/// Disk requests that cannot be cancelled.
fn slow_disk(seed: u64, most: Duration) -> SimConfig {
    SimConfig::new(seed).late(1000, most).scribbles(500)
}

/// The wake-up that a sleeping driver has armed must not delay its drain.
#[test]
fn an_engine_that_ends_waits_only_for_operations_in_flight() {
    for_each_seed(30, |seed| {
        for deferred in [false, true] {
            let most = Duration::from_secs(5);
            let sim = Sim::new(slow_disk(seed, most).deferred_task_work(deferred));
            sim.put("/f", vec![1; 100_000]).unwrap();
            let census = Census::default();
            let (ended_at, opened_at) = sim.run(async |engine| {
                let file = engine.open("/f").await.unwrap();
                let opened_at = sim.elapsed();
                let mut reads: Vec<_> = (0..64)
                    .map(|at| file.read_at(census.buffer(vec![0; 1000]), at * 1000))
                    .collect();
                for read in &mut reads {
                    start(read).await;
                }
                // In some runs the driver sleeps before the engine ends.
                engine
                    .sleep(Duration::from_millis(seed * 20))
                    .await
                    .unwrap();
                (sim.elapsed(), opened_at)
            });
            assert_eq!(census.alive(), 0);
            assert_eq!(sim.open_descriptors(), 0);
            let report = sim.report();
            assert_eq!((report.slots_in_use, report.metrics.leaked), (0, 0));
            let last = opened_at + most;
            assert!(
                sim.elapsed() < last.max(ended_at) + Duration::from_millis(200),
                "{:?}",
                sim.elapsed()
            );
        }
    });
}

#[test]
fn memory_that_the_kernel_never_gives_back_is_leaked_on_purpose_and_counted() {
    let sim = Sim::new(slow_disk(1, Duration::from_secs(100_000)));
    sim.put("/f", vec![1; 4096]).unwrap();
    let census = Census::default();
    let builder = Engine::builder().drain_timeout(Duration::from_secs(2));
    sim.run_with(&builder, async |engine| {
        let file = engine.open("/f").await.unwrap();
        let mut read = file.read_at(census.buffer(vec![0; 4096]), 0);
        start(&mut read).await;
        engine.sleep(Duration::from_millis(1)).await.unwrap();
    });
    let report = sim.report();
    assert_eq!(report.metrics.leaked, 1, "{report:?}");
    assert_eq!(
        (census.alive(), report.slots_in_use),
        (1, 1),
        "what the kernel may write to stays"
    );
}

/// 1. A read is with a device that keeps it.
/// 2. Its timeout passes: the future returns immediately, without the buffer.
/// 3. The device writes to the buffer and completes.
/// 4. Only then is the buffer dropped.
#[test]
fn a_timeout_that_the_kernel_ignores_leaves_the_buffer_with_the_engine_until_the_cqe() {
    for_each_seed(30, |seed| {
        let sim = Sim::new(slow_disk(seed, Duration::from_secs(10)));
        sim.put("/f", vec![1; 4096]).unwrap();
        let census = Census::default();
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            let before = sim.elapsed();
            let read = file
                .read_at(census.buffer(vec![0; 4096]), 0)
                .timeout(Duration::from_millis(1));
            let Err(error) = read.await else { return };
            assert_eq!(error.error().kind(), ErrorKind::TimedOut);
            assert!(error.into_buf().is_none());
            let took = sim.elapsed() - before;
            assert!(took < Duration::from_millis(2), "{took:?}");
            assert_eq!(census.alive(), 1, "the device still has it");
            engine.sleep(Duration::from_secs(11)).await.unwrap();
            assert_eq!(census.alive(), 0);
        });
        assert_eq!(sim.report().metrics.leaked, 0);
    });
}

/// Returns the number of operations in the kernel that have not completed.
fn in_flight(sim: &Sim) -> usize {
    let trace = sim.trace();
    let started = trace
        .iter()
        .filter(|event| event.what == EventKind::Started)
        .count();
    let completed = trace
        .iter()
        .filter(|event| matches!(event.what, EventKind::Completed(_)))
        .count();
    started - completed
}

#[test]
fn a_shutdown_completes_all_operations_and_returns_when_none_is_in_flight() {
    for_each_seed(30, |seed| {
        let config = SimConfig::new(seed)
            .delays(Duration::from_millis(5))
            .uncancellable(500);
        let sim = Sim::new(config);
        sim.put("/f", vec![1; 100_000]).unwrap();
        let census = Census::default();
        let builder = Engine::builder().max_in_flight(4);
        sim.run_with(&builder, async |engine| {
            let file = engine.open("/f").await.unwrap();
            let reads: Vec<_> = (0..32)
                .map(|at| {
                    let (file, buffer) = (file.clone(), census.buffer(vec![0; 1000]));
                    spawn(async move { file.read_at(buffer, at * 1000).await.map(|(n, _)| n) })
                })
                .collect();
            let sleeper = spawn({
                let engine = engine.clone();
                async move { engine.sleep(Duration::from_secs(3600)).await }
            });
            engine
                .sleep(Duration::from_micros(seed * 100))
                .await
                .unwrap();
            engine.shutdown();
            assert_eq!(in_flight(&sim), 0);
            let (mut read, mut refused) = (0, 0);
            for task in reads {
                match task.await {
                    Ok(n) => read += u32::from(n == 1000),
                    Err(error) => {
                        let cancelled = error.error().raw_os_error() == Some(ECANCELED);
                        assert!(cancelled || ended(error.error()), "{error:?}");
                        refused += 1;
                    }
                }
            }
            assert_eq!(read + refused, 32);
            assert!(refused > 0);
            assert!(ended(&sleeper.await.unwrap_err()));
            assert!(ended(&engine.nop().await.unwrap_err()));
        });
        assert_eq!(census.alive(), 0);
        assert_eq!(sim.report().slots_in_use, 0);
    });
}

/// Memory in flight when the ring dies is leaked with it; its futures complete.
#[test]
fn a_ring_that_dies_leaves_no_task_waiting() {
    let leaked = Tally::default();
    for_each_seed(60, |seed| {
        let config = SimConfig::new(seed)
            .delays(Duration::from_millis(1))
            .dies_after(20 + seed);
        let sim = Sim::new(config);
        sim.put("/f", vec![1; 100_000]).unwrap();
        let census = Census::default();
        sim.run(async |engine| {
            let Ok(file) = engine.open("/f").await else {
                return;
            };
            let tasks: Vec<_> = (0..8)
                .map(|task| {
                    let (engine, file, census) = (engine.clone(), file.clone(), census.clone());
                    spawn(async move {
                        for at in 0..100 {
                            let buffer = census.buffer(vec![0; 100]);
                            let read = file.read_at(buffer, at * 100 + task);
                            if let Err(error) = read.await {
                                return EngineError::of(error.error());
                            }
                            let batch = (0..4).map(|at| (census.buffer(vec![0; 10]), at));
                            for read in file.read_many_at(batch).await {
                                if let Err(error) = read {
                                    return EngineError::of(error.error());
                                }
                            }
                            if let Err(error) = engine.sleep(Duration::from_micros(30)).await {
                                return EngineError::of(&error);
                            }
                        }
                        None
                    })
                })
                .collect();
            for task in tasks {
                let result = task.await;
                assert_eq!(result, Some(EngineError::RingFailed { errno: EBADFD }));
            }
            // Later operations fail as well.
            let later = engine.nop().await.unwrap_err();
            assert!(later.to_string().contains("io_uring"), "{later}");
        });
        let report = sim.report();
        assert_eq!(
            census.alive() as u64,
            report.metrics.leaked,
            "no more than what was in flight"
        );
        leaked.add(report.metrics.leaked);
    });
    assert!(leaked.get() > 0);
}

fn ended(error: &std::io::Error) -> bool {
    EngineError::of(error) == Some(EngineError::Ended)
}

const EBADFD: i32 = 77;
const ECANCELED: i32 = 125;

#[test]
fn futures_and_files_that_outlive_the_run_are_refused_and_leak_nothing() {
    let sim = Sim::new(SimConfig::new(1));
    let (engine, file) = sim.run(async |engine| {
        let file = engine.create("/f").await.unwrap();
        (engine, file)
    });
    let refused = pollster::block_on(async {
        let mut write = pin!(file.write_all_at(vec![1; 10], 0));
        write.as_mut().await.map(drop)
    });
    assert!(ended(refused.unwrap_err().error()));
    drop((engine, file));
    assert_eq!(sim.open_descriptors(), 0);
    assert_eq!(sim.contents("/f").unwrap(), b"");
}
