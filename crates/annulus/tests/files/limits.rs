//! Engines with minimal limits work.

use annulus::fs::Merge;
use annulus::{Backend, Engine, OpenOptions, SetupError};

use crate::fixtures::{Fixture, bytes, for_each_backend_with, uncache};

/// A small mix of operations.
async fn little_workload(fixture: &Fixture) {
    let engine = &fixture.engine;
    let contents = bytes(1, 100_000);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    engine.create_dir(fixture.path("d")).await.unwrap();
    let path = fixture.path("d/f");
    let file = engine.open_with(&options, &path).await.unwrap();
    file.write_all_at(contents.clone(), 0).await.unwrap();
    uncache(&file).await;
    let reads = || (0..100).map(|n| (vec![0; 1000], n * 1000));
    for merged in [false, true] {
        let batch = file.read_many_at(reads());
        let results = match merged {
            false => batch.await,
            true => batch.merge(Merge::default()).await,
        };
        let all: Vec<u8> = results
            .into_iter()
            .flat_map(|result| result.unwrap().1)
            .collect();
        assert!(all == contents);
        uncache(&file).await;
    }
    let bufs = vec![vec![0; 50]; 2000];
    let bufs = file.read_vectored_exact_at(bufs, 0).await.unwrap();
    assert!(bufs.concat() == contents);
    dropped_and_raced(fixture, &file).await;
    assert_eq!(file.metadata().await.unwrap().len(), 100_000);
    assert_eq!(engine.read_dir(fixture.path("d")).await.unwrap().len(), 1);
    engine.remove_file(&path).await.unwrap();
    engine.remove_dir(fixture.path("d")).await.unwrap();
    file.sync_all().await.unwrap();
}

/// Dropped operations, and a sleep beside a batch.
async fn dropped_and_raced(fixture: &Fixture, file: &annulus::File) {
    let mut dropped = file.read_many_at((0..50).map(|n| (vec![0; 1000], n * 1000)));
    dropped.next().await.unwrap().result.unwrap();
    drop(dropped);
    let time = std::time::Duration::from_millis(1);
    fixture.engine.sleep(time).await.unwrap();
    fixture.engine.nop().await.unwrap();
}

#[test]
fn one_operation_in_flight_is_enough() {
    for_each_backend_with(|builder| builder.max_in_flight(1), little_workload);
}

#[test]
fn an_operation_larger_than_the_bytes_allowed_still_runs() {
    for bytes in [0, 1, 999, 4096] {
        for_each_backend_with(
            |builder| builder.max_in_flight_bytes(bytes),
            little_workload,
        );
    }
}

#[test]
fn a_ring_of_two_or_eight_entries_is_enough() {
    for entries in [1, 2, 8] {
        for_each_backend_with(|builder| builder.ring_entries(entries), little_workload);
    }
}

#[test]
fn everything_at_its_smallest_is_enough() {
    for_each_backend_with(
        |builder| {
            let builder = builder.max_in_flight(1).max_in_flight_bytes(1);
            let builder = builder.ring_entries(1).submit_chunk(1).blocking_threads(1);
            builder.busy_poll(std::time::Duration::ZERO)
        },
        little_workload,
    );
}

#[test]
fn several_drivers_and_large_chunks_do_the_same() {
    for_each_backend_with(
        |builder| builder.drivers(3).submit_chunk(1000),
        little_workload,
    );
}

#[test]
fn the_builder_refuses_zeroes_by_name() {
    for backend in [Backend::Auto, Backend::Uring, Backend::Fallback] {
        let builder = || Engine::builder().backend(backend);
        for (name, builder) in [
            ("drivers", builder().drivers(0)),
            ("blocking_threads", builder().blocking_threads(0)),
            ("max_in_flight", builder().max_in_flight(0)),
            ("ring_entries", builder().ring_entries(0)),
        ] {
            let error = builder.build().unwrap_err();
            assert!(matches!(error, SetupError::Config(_)), "{error:?}");
            assert!(!error.allows_fallback(), "a mistake is not smoothed over");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{name} is 0;")), "{text}");
        }
    }
}

#[cfg(feature = "test-util")]
#[test]
fn the_simulated_backend_is_built_as_any_other() {
    let config = annulus::sim::SimConfig::new(5);
    let builder = Engine::builder().backend(Backend::Sim(config));
    let error = builder.clone().max_in_flight(0).build().unwrap_err();
    assert!(error.to_string().starts_with("max_in_flight is 0;"));
    let engine = builder.build().unwrap();
    assert!(engine.backend().to_string().contains("seed 5"));
    pollster::block_on(async {
        let file = engine.create("/f").await.unwrap();
        file.write_all_at("abc", 0).await.unwrap();
        let file = engine.open("/f").await.unwrap();
        assert_eq!(file.read_at(vec![0; 3], 0).await.unwrap().1, b"abc");
    });
}
