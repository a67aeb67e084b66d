//! Millions of random operations, drops and timeouts on every backend, with all data checked:
//! `cargo run --release -p annulus --example stress --features test-util -- --ops 10000000 --seed random`.
//! Prints the seed and exits with 1 if a check fails or a resource leaks.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use annulus::engine::SetupMode;
use annulus::sim::{Errno, OpKind, Sim, SimConfig};
use annulus::{Backend, Engine, EngineBuilder};
use annulus_testing::stress_load;
use annulus_testing::stress_load::{Load, Tally};

const TASKS: usize = 24;
const STEPS: u64 = 2_000;

fn main() -> ExitCode {
    let (mut ops, mut seed) = (1_000_000, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match (
            argument.as_str(),
            value.as_deref(),
            value.as_deref().map(str::parse::<u64>),
        ) {
            ("--ops", _, Some(Ok(value))) => ops = value,
            ("--seed", Some("random"), _) => seed = None,
            ("--seed", _, Some(Ok(value))) => seed = Some(value),
            _ => {
                eprintln!("usage: stress [--ops N] [--seed N|random]");
                return ExitCode::from(2);
            }
        }
    }
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    match run(ops, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stress: {error}\nrepeat with: --ops {ops} --seed {seed}");
            ExitCode::FAILURE
        }
    }
}

fn run(ops: u64, seed: u64) -> Result<(), String> {
    let dir = tempfile::tempdir()
        .map_err(|error| format!("cannot create a temporary directory: {error}"))?;
    let before = stress_load::open_descriptors();
    let (real, injected) = (Arc::new(Tally::default()), Arc::new(Tally::default()));
    let ring = || Engine::builder().backend(Backend::Uring);
    let blocking = || Engine::builder().backend(Backend::Fallback);
    let builders: [fn(EngineBuilder, EngineBuilder) -> EngineBuilder; 5] = [
        |ring, _| ring,
        |ring, _| ring.setup_mode(SetupMode::Deferred).drivers(2),
        |ring, _| {
            ring.setup_mode(SetupMode::Plain)
                .ring_entries(4)
                .max_in_flight(3)
        },
        |ring, _| ring.max_in_flight_bytes(8 << 10),
        |_, blocking| blocking.blocking_threads(16),
    ];
    let mut round = 0;
    while real.operations.load(Relaxed) + injected.operations.load(Relaxed) < ops {
        let path = dir.path().join("file");
        let seed = seed.wrapping_add(round);
        let simulated = round % 6 == 5;
        let (engine, tally) = if simulated {
            let sim = Sim::new(faults(seed));
            let engine = sim
                .engine(&Engine::builder())
                .map_err(|error| error.to_string())?;
            (engine, &injected)
        } else {
            let builder = builders[(round % 6) as usize](ring(), blocking());
            let builder = builder.drain_timeout(stress_load::DRAIN);
            (builder.build().map_err(|error| error.to_string())?, &real)
        };
        let steps = if simulated { STEPS / 10 } else { STEPS };
        let load = Load {
            engine,
            path: if simulated { "/file".as_ref() } else { &path },
            seed,
            tasks: TASKS,
            steps,
            tally,
            tears_words: simulated,
            tokio: stress_load::plain_tokio,
        };
        load.run()
            .map_err(|error| format!("round {round}: {error}"))?;
        let _ = std::fs::remove_file(&path);
        round += 1;
        if round % 24 == 0 {
            eprintln!("{} | simulated: {}", real.line(), injected.line());
        }
    }
    println!("{} | simulated: {}", real.line(), injected.line());
    real.verdict(false)
        .map_err(|error| format!("on a real kernel: {error}"))?;
    if round > 5 {
        injected
            .verdict(true)
            .map_err(|error| format!("on a simulated kernel: {error}"))?;
    }
    if !stress_load::back_to(before) {
        return Err("descriptors have leaked".to_owned());
    }
    Ok(())
}

/// Returns a simulated kernel with every kind of fault. Its delays are short, because they pass on a real clock.
fn faults(seed: u64) -> SimConfig {
    SimConfig::new(seed)
        .delays(Duration::from_micros(100))
        .late(5, Duration::from_millis(3))
        .reordering(300)
        .short_transfers(150)
        .scribbles(250)
        .uncancellable(300)
        .slow_cancels(300)
        .refused_enters(40)
        .broken_enters(40)
        .short_submits(100)
        .queues(8, 16)
        .errors(&OpKind::ALL, Errno::Eintr, 20)
        .errors(&OpKind::ALL, Errno::Eagain, 20)
        .errors(&[OpKind::Read, OpKind::Write], Errno::Eio, 5)
}
