//! The simulated kernel with driver threads, for callers on other executors.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use annulus::sim::{Sim, SimConfig};
use annulus::{Backend, Engine, File, OpenOptions};

use crate::seeds::for_each_seed;

fn chaos(seed: u64) -> SimConfig {
    // On the machine's clock, half a second would take half a second.
    SimConfig::chaos(seed).late(20, Duration::from_millis(5))
}

#[test]
fn any_executor_runs_on_driver_threads_with_simulated_kernels() {
    for_each_seed(8, |seed| {
        for threads in [1, 2] {
            let sim = Sim::new(chaos(seed));
            sim.put(
                "/f",
                (0..16_000).map(|at| (at / 100) as u8).collect::<Vec<u8>>(),
            )
            .unwrap();
            let engine = sim.engine(&Engine::builder().drivers(threads)).unwrap();
            let callers: Vec<_> = (0..4)
                .map(|caller| {
                    let engine = engine.clone();
                    thread::spawn(move || pollster::block_on(read_blocks(&engine, caller)))
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
            drop(engine);
            assert_eq!(sim.open_descriptors(), 0);
        }
    });
}

async fn read_blocks(engine: &Engine, caller: u64) {
    let Ok(file) = engine.open("/f").await else {
        return;
    };
    for round in 0..40 {
        let block = (round * 7 + caller * 40) % 160;
        let read = file
            .read_exact_at(vec![0; 100], block * 100)
            .timeout(Duration::from_millis(20));
        if let Ok(buf) = read.await {
            assert!(buf.iter().all(|&byte| byte == block as u8));
        }
        // Dropped before it has completed.
        let mut dropped = Box::pin(file.read_at(vec![0; 100], 0));
        std::future::poll_fn(|context| {
            let _ = dropped.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    }
}

#[test]
fn the_backend_can_be_selected_in_the_builder_and_is_reported() {
    let engine = Engine::builder()
        .backend(Backend::Sim(SimConfig::new(5)))
        .build()
        .unwrap();
    assert_eq!(
        engine.backend().to_string(),
        "a simulated kernel (seed 5; 1 driver thread)"
    );
    pollster::block_on(async {
        let file = engine
            .open_with(OpenOptions::new().read(true).write(true).create(true), "/f")
            .await
            .unwrap();
        file.write_all_at("hello", 0).await.unwrap();
        assert_eq!(file.read_exact_at(vec![0; 5], 0).await.unwrap(), b"hello");
        engine.sleep(Duration::from_millis(2)).await.unwrap();
    });
}

#[test]
fn a_descriptor_of_the_process_is_refused_with_a_reason() {
    let engine = Engine::builder()
        .backend(Backend::Sim(SimConfig::new(5)))
        .build()
        .unwrap();
    let error = File::from_std(std::fs::File::open("/dev/null").unwrap(), &engine).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert!(error.to_string().contains("by path"), "{error}");
}

#[test]
fn successive_engines_on_one_simulation_see_the_same_files() {
    let sim = Arc::new(Sim::new(SimConfig::new(9)));
    for round in 0..20u8 {
        let engine = sim.engine(&Engine::builder()).unwrap();
        pollster::block_on(async {
            let mut options = OpenOptions::new();
            let file = engine
                .open_with(options.append(true).create(true), "/log")
                .await
                .unwrap();
            file.write_all_at(vec![round], 0).await.unwrap();
        });
    }
    assert_eq!(sim.contents("/log").unwrap(), (0..20).collect::<Vec<u8>>());
    assert_eq!(sim.open_descriptors(), 0);
}
