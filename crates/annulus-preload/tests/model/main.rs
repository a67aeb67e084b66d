//! Runs random sequences of calls on an epoll set and its sockets, and compares the results with and without the
//! library.
//!
//! The driver is `tests/apps/model.c`. It makes the same sequence from the same seed, and plays the peers itself by
//! direct system calls. It prints the result of each call and the events of each round. Its sequences leave out results
//! that depend on the kernel's timing, such as the bytes that a full socket still takes. It marks reports that may be
//! larger under the library, with the reason.
//!
//! `SEED=n` repeats one sequence; `MODEL_SEEDS=n` runs that many, from `SEED` on, for hours if needed.

// Its paths come from this package (`CARGO_MANIFEST_DIR`, `CARGO_TARGET_TMPDIR`), so it cannot be in another crate.
#[path = "../differential/program.rs"]
#[allow(dead_code, reason = "the programs' own test uses all of it")]
mod program;
mod report;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use annulus_testing::preload_counts::Counts;
use annulus_testing::preload_library;
use program::{Built, Program, With};
use report::Difference;

static DRIVER: Program = Program::c("model");

/// The number of sequences of one process, as state that one leaves behind may disturb the next.
const SEEDS_PER_PROCESS: u64 = 5;
/// The number of sequences, if none is requested. `ci/long model` runs 20,000.
const SEEDS: u64 = 30;
/// Sequences that differed once, by their faults: an edge after SO_RCVLOWAT without all events, last bytes that were not
/// read, a oneshot member that was reported twice, an error that was not reported again, a reset behind unread bytes.
const REGRESSIONS: [u64; 5] = [4830, 10055, 10221, 14368, 60535];
/// The number of processes at a time. They use a processor for 4 % of their time, and otherwise wait for the kernel.
const PROCESSES: usize = 16;
const ROUNDS: &str = "25";
/// The number of differences that are printed; all others are counted.
const SHOWN: usize = 4;

/// Returns the path of the preload library, which the first test of a run builds.
fn library() -> &'static Path {
    preload_library::library(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

#[test]
fn random_sequences_are_reported_as_the_kernel_reports_them() {
    let Some(driver) = DRIVER.built() else {
        return;
    };
    let seed = number("SEED");
    let first = seed.unwrap_or(1);
    let count = number("MODEL_SEEDS").unwrap_or(if seed.is_some() { 1 } else { SEEDS });
    let regressions = REGRESSIONS.iter().filter(|_| seed.is_none());
    // The first seed and the number of seeds of each process.
    let work: Vec<(u64, u64)> = (first..first + count)
        .step_by(SEEDS_PER_PROCESS as usize)
        .map(|from| (from, SEEDS_PER_PROCESS.min(first + count - from)))
        .chain(regressions.map(|&seed| (seed, 1)))
        .collect();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some(&(from, seeds)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let more = differences(driver, from, seeds);
            results.lock().unwrap().extend(more);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().unwrap();
    let shown: Vec<String> = results
        .iter()
        .take(SHOWN)
        .map(Difference::to_string)
        .collect();
    let seeds: Vec<u64> = results.iter().map(|difference| difference.seed).collect();
    assert!(
        results.is_empty(),
        "{} of {count} sequences differ under the library, seeds {seeds:?}; SEED=n repeats one\n{}",
        results.len(),
        shown.join("\n")
    );
}

/// Runs sequences with and without the library.
fn differences(driver: &Built, first: u64, count: u64) -> Vec<Difference> {
    let (from, many) = (first.to_string(), count.to_string());
    let arguments = [&*from, &many, ROUNDS];
    let without = driver.run(&arguments, &With::nothing());
    let with = driver.run(&arguments, &With::library());
    assert_eq!(
        without.exit, "exit 0",
        "{}{}",
        without.stdout, without.stderr
    );
    let mut results = Vec::new();
    for seed in first..first + count {
        let expected = report::of_seed(&without.stdout, seed);
        let actual = report::of_seed(&with.stdout, seed);
        results.extend(report::first_difference(seed, &expected, &actual));
    }
    if results.is_empty() && with.exit != without.exit {
        results.push(Difference {
            seed: first,
            text: format!("ended by {}\n{}{}", with.exit, with.stderr, with.log),
        });
    }
    if let Some(difference) = results.first_mut().filter(|_| with.exit != without.exit) {
        difference.text += &format!("\nthe process: {}\n{}{}", with.exit, with.stderr, with.log);
    }
    results
}
