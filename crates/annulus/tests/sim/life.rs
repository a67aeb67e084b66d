//! Each end that an operation can have, with little data: Miri runs these tests (`ci/miri`).

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use annulus::sim::{Sim, SimConfig, spawn};
use annulus::{Engine, OpenOptions};

use crate::buffers::{Census, Counted};
use crate::seeds::for_each_seed;

const BYTES: usize = 700;
const DELAY: Duration = Duration::from_micros(100);

/// Returns a machine with a file.
fn machine(config: SimConfig) -> Sim {
    let sim = Sim::new(config);
    sim.put("/f", vec![7; BYTES]).unwrap();
    sim
}

fn slow(seed: u64) -> SimConfig {
    SimConfig::new(seed)
        .delays(DELAY)
        .uncancellable(300)
        .short_transfers(300)
        .scribbles(500)
}

/// Polls once, which submits the operation.
async fn start<F: Future + Unpin>(future: &mut F) {
    poll_fn(|context| {
        assert!(Pin::new(&mut *future).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

fn assert_is_data(buffer: &Counted, bytes: usize) {
    assert_eq!(buffer.bytes, vec![7; bytes]);
}

fn assert_nothing_left(sim: &Sim, census: &Census) {
    assert_eq!((census.alive(), sim.open_descriptors()), (0, 0));
    let report = sim.report();
    assert_eq!((report.slots_in_use, report.metrics.leaked), (0, 0));
}

#[test]
fn reads_and_writes_complete_alone_and_together() {
    for_each_seed(20, |seed| {
        let (sim, census) = (machine(slow(seed)), Census::default());
        sim.run(async |engine| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let file = engine.open_with(&options, "/f").await.unwrap();
            let buffer = || census.buffer(vec![0; 50]);
            let read = file.read_exact_at(buffer(), 10).await.unwrap();
            assert_is_data(&read, 50);
            file.write_all_at(read, BYTES as u64).await.unwrap();
            let reads = (0..3).map(|at| (buffer(), at * 60)).collect::<Vec<_>>();
            for read in file.read_many_at(reads).await {
                assert!(read.is_ok());
            }
            let (one, two) = (file.clone(), file.clone());
            let (first, second) = (buffer(), buffer());
            let one = spawn(async move { one.read_exact_at(first, 0).await });
            let two = spawn(async move { two.read_exact_at(second, BYTES as u64).await });
            assert_is_data(&one.await.unwrap(), 50);
            assert_is_data(&two.await.unwrap(), 50);
            file.sync_all().await.unwrap();
        });
        assert_nothing_left(&sim, &census);
    });
}

#[test]
fn a_future_is_dropped_before_during_and_after_its_operation() {
    for_each_seed(20, |seed| {
        let (sim, census) = (machine(slow(seed)), Census::default());
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            drop(file.read_at(census.buffer(vec![0; 50]), 0));
            for wait in [Duration::ZERO, DELAY / 2, DELAY * 20] {
                let mut read = file.read_at(census.buffer(vec![0; 50]), 0);
                start(&mut read).await;
                engine.sleep(wait).await.unwrap();
                drop(read);
            }
        });
        assert_nothing_left(&sim, &census);
    });
}

#[test]
fn a_timeout_cancels_an_operation_and_timers_fire_in_order() {
    for_each_seed(20, |seed| {
        let (sim, census) = (machine(slow(seed)), Census::default());
        sim.run(async |engine| {
            let file = engine.open("/f").await.unwrap();
            for time in [Duration::from_nanos(1), DELAY / 2, DELAY * 100] {
                let read = file.read_exact_at(census.buffer(vec![0; 50]), 0);
                match read.timeout(time).await {
                    Ok(read) => assert_is_data(&read, 50),
                    Err(error) => assert_eq!(error.error().kind(), ErrorKind::TimedOut),
                }
            }
            let sleep = |time: Duration| {
                let (engine, sim) = (engine.clone(), &sim);
                async move {
                    engine.sleep(time).await.unwrap();
                    sim.elapsed()
                }
            };
            let long = sleep(DELAY * 2).await;
            assert!(sleep(DELAY).await > long);
        });
        assert_nothing_left(&sim, &census);
    });
}

#[test]
fn an_engine_ends_with_operations_in_flight_queued_and_completed() {
    for_each_seed(20, |seed| {
        let (sim, census) = (machine(slow(seed)), Census::default());
        sim.run(async |engine: Engine| {
            let file = engine.open("/f").await.unwrap();
            let mut reads: Vec<_> = (0..3)
                .map(|at| file.read_at(census.buffer(vec![0; 50]), at * 50))
                .collect();
            for read in &mut reads {
                start(read).await;
            }
            let (theirs, buffer) = (file.clone(), census.buffer(vec![0; 50]));
            let task = spawn(async move { theirs.read_at(buffer, 0).await });
            engine.sleep(DELAY * (seed % 3) as u32).await.unwrap();
            drop(task);
        });
        assert_nothing_left(&sim, &census);
    });
}

#[test]
fn a_driver_thread_completes_cancels_and_ends() {
    for_each_seed(5, |seed| {
        let (sim, census) = (machine(slow(seed)), Census::default());
        let engine = sim.engine(&Engine::builder().drivers(1)).unwrap();
        pollster::block_on(async {
            let file = engine.open("/f").await.unwrap();
            let read = file.read_exact_at(census.buffer(vec![0; 50]), 0).await;
            assert_is_data(&read.unwrap(), 50);
            let mut dropped = file.read_at(census.buffer(vec![0; 50]), 0);
            start(&mut dropped).await;
            drop(dropped);
            let short = file.read_exact_at(census.buffer(vec![0; 50]), 0);
            if let Err(error) = short.timeout(Duration::from_nanos(1)).await {
                assert_eq!(error.error().kind(), ErrorKind::TimedOut);
            }
            engine.sleep(DELAY).await.unwrap();
            let mut left = file.read_at(census.buffer(vec![0; 50]), 0);
            start(&mut left).await;
        });
        drop(engine);
        assert_eq!((census.alive(), sim.open_descriptors()), (0, 0));
    });
}

#[test]
#[should_panic(expected = "a JoinHandle was polled after it had completed")]
fn a_join_handle_that_has_returned_its_output_panics_when_polled_again() {
    machine(SimConfig::new(1)).run(async |_engine| {
        let mut handle = spawn(async { 7 });
        assert_eq!((&mut handle).await, 7);
        (&mut handle).await
    });
}
