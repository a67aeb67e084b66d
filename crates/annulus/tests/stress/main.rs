//! The short form of the stress load; `ci/soak files` runs the long one. `SEED=` repeats a run.

use std::sync::Arc;

use annulus::engine::SetupMode;
use annulus::{Backend, Engine, EngineBuilder};
use annulus_testing::stress_load;

fn seed() -> u64 {
    let requested = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    requested.unwrap_or_else(|| fastrand::u64(..1 << 32))
}

/// Runs some thousand operations, and checks that nothing is left.
fn stress(builder: EngineBuilder) {
    let seed = seed();
    println!("SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let before = stress_load::open_descriptors();
    let tally = Arc::new(stress_load::Tally::default());
    for round in 0..3 {
        let builder = builder.clone().drain_timeout(stress_load::DRAIN);
        let engine = builder.build().unwrap();
        let path = dir.path().join(round.to_string());
        let load = stress_load::Load {
            engine,
            path: &path,
            seed: seed + round,
            tasks: 12,
            steps: 500,
            tally: &tally,
            tears_words: false,
            tokio: stress_load::plain_tokio,
        };
        load.run().unwrap();
    }
    println!("{}", tally.line());
    tally.verdict(false).unwrap();
    assert!(stress_load::back_to(before), "descriptors were leaked");
}

/// One at a time, because descriptors are counted for the whole process.
#[test]
fn random_operations_drops_and_timeouts_leave_nothing_and_lose_nothing() {
    let ring = || Engine::builder().backend(Backend::Uring);
    stress(ring());
    stress(ring().setup_mode(SetupMode::Deferred).drivers(2));
    stress(
        ring()
            .setup_mode(SetupMode::Plain)
            .ring_entries(4)
            .max_in_flight(3),
    );
    stress(
        Engine::builder()
            .backend(Backend::Fallback)
            .blocking_threads(8),
    );
}
