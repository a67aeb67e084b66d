//! A seed determines a run: the same events at the same times with the same bytes.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use annulus::sim::{Sim, SimConfig, spawn};

use crate::buffers::Rng;
use crate::seeds::for_each_seed;

/// Runs a mix of operations, with any results.
fn run(sim: &Sim, seed: u64) -> Vec<String> {
    sim.put("/data", vec![3; 10_000]).unwrap();
    sim.run(async |engine| {
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let engine = engine.clone();
                spawn(async move {
                    let mut rng = Rng::new(seed << 8 | task);
                    let mut results = String::new();
                    for _ in 0..20 {
                        let Ok(file) = engine.open("/data").await else {
                            continue;
                        };
                        let read = file.read_at(vec![0; 1000], rng.below(10_000));
                        let read = read.timeout(Duration::from_micros(rng.below(300))).await;
                        results += &format!(
                            "{:?}; ",
                            read.map(|(n, _)| n).map_err(|error| error.error().kind())
                        );
                        let _ = engine.sleep(Duration::from_micros(rng.below(50))).await;
                    }
                    results
                })
            })
            .collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await);
        }
        results
    })
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let mut hashes = BTreeSet::new();
    for_each_seed(40, |seed| {
        let (one, two) = (
            Sim::new(SimConfig::chaos(seed)),
            Sim::new(SimConfig::chaos(seed)),
        );
        assert_eq!(run(&one, seed), run(&two, seed));
        assert_eq!(one.trace(), two.trace());
        assert_eq!(one.trace_hash(), two.trace_hash());
        assert_eq!(one.report(), two.report());
        assert_eq!(one.elapsed(), two.elapsed());
        assert_eq!(one.counts(), two.counts());
    });
    for seed in 0..40 {
        let sim = Sim::new(SimConfig::chaos(seed));
        // The same operations; only the kernel's random numbers differ.
        run(&sim, 0);
        assert!(
            hashes.insert(sim.trace_hash()),
            "seed {seed} repeats another's run"
        );
    }
}

#[test]
fn a_timeout_of_half_a_minute_takes_no_time() {
    let started = Instant::now();
    let sim = Sim::new(SimConfig::new(1).late(1000, Duration::from_secs(10_000)));
    let builder = annulus::Engine::builder().drain_timeout(Duration::from_secs(20_000));
    sim.run_with(&builder, async |engine| {
        engine.sleep(Duration::from_secs(30)).await.unwrap();
        let nop = engine.nop().timeout(Duration::from_secs(30)).await;
        assert_eq!(nop.unwrap_err().kind(), ErrorKind::TimedOut);
    });
    assert!(
        sim.elapsed() >= Duration::from_secs(60),
        "{:?}",
        sim.elapsed()
    );
    let took = started.elapsed();
    assert!(took < sim.elapsed(), "it waited on our clock: {took:?}");
}

#[test]
#[should_panic(expected = "the simulation cannot continue")]
fn a_future_that_waits_for_the_outside_world_panics() {
    Sim::new(SimConfig::new(1)).run(async |_| std::future::pending::<()>().await);
}

#[test]
fn a_panic_in_a_run_propagates_and_the_simulation_remains_usable() {
    let sim = Sim::new(SimConfig::new(1).delays(Duration::from_millis(1)));
    let run = std::panic::AssertUnwindSafe(|| {
        sim.run(async |engine| {
            let file = engine.create("/f").await.unwrap();
            let _task = spawn(async move { file.write_all_at(vec![1; 10], 0).await.map(drop) });
            engine.sleep(Duration::from_micros(100)).await.unwrap();
            panic!("as a test's assertion may");
        })
    });
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(
        sim.open_descriptors(),
        0,
        "what was in flight has been drained"
    );
    let names = sim.run(async |engine| engine.read_dir("/").await.unwrap());
    assert_eq!(names.len(), 1);
}
