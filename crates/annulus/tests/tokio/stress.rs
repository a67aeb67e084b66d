//! The stress load of the library, with its Tokio tasks on rings of their workers. `STEPS` sets the number of steps of
//! each task, 500 by default.

use std::io;
use std::sync::Arc;

use annulus::{Backend, Engine, EngineBuilder};
use annulus_testing::stress_load;
use tokio::runtime::{Builder, Runtime};

fn several_workers() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
}

fn one_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn stress(builder: &EngineBuilder, tokio: fn() -> io::Result<Runtime>) {
    let requested = std::env::var("SEED").ok();
    let seed = requested.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("SEED={seed}");
    let steps = std::env::var("STEPS").ok();
    let steps = steps.and_then(|steps| steps.parse().ok()).unwrap_or(500);
    let dir = tempfile::tempdir().unwrap();
    // Tokio's descriptors for signals stay open for the life of the process once a runtime was
    // created.
    drop(tokio().unwrap());
    let before = stress_load::open_descriptors();
    let tally = Arc::new(stress_load::Tally::default());
    for round in 0..3 {
        let engine = builder.clone().drain_timeout(stress_load::DRAIN);
        let load = stress_load::Load {
            engine: engine.build().unwrap(),
            path: &dir.path().join(round.to_string()),
            seed: seed + round,
            tasks: 12,
            steps,
            tally: &tally,
            tears_words: false,
            tokio,
        };
        load.run().unwrap();
    }
    println!("{}", tally.line());
    tally.verdict(false).unwrap();
    assert!(stress_load::back_to(before), "descriptors were leaked");
}

/// One at a time, because descriptors are counted for the whole process.
#[test]
fn random_operations_drops_and_timeouts_on_rings_of_workers_leave_nothing_and_lose_nothing() {
    let ring = Engine::builder().backend(Backend::Uring);
    stress(&ring, several_workers);
    stress(&ring, one_thread);
    stress(
        &ring.clone().ring_entries(4).max_in_flight(3),
        several_workers,
    );
    stress(&ring.max_in_flight(3), one_thread);
}
