//! Runs random sequences of calls, and compares the results with and without the library.
//!
//! There are two drivers. `tests/apps/model.c` reads and writes on the sockets of an epoll set. `tests/apps/beside.c`
//! makes the calls beside them: duplicates, pipes, cancelled threads, jumps, children, private descriptors, brief sets.
//! A driver makes the same sequence from the same seed, and plays the peers itself by direct system calls. It prints
//! the result of each call and the events of each round. The sequences leave out results that depend on the kernel's
//! timing, such as the bytes that a full socket still takes. Reports that may be larger under the library are marked.
//!
//! `SEED=n` repeats one sequence; `MODEL_SEEDS=n` runs that many, from `SEED` on, for hours if needed. Both apply to
//! the tests that are chosen.

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

/// A driver, and how it is run.
struct Model {
    driver: Program,
    /// The number of sequences, if none is requested. `ci/long model` runs more.
    seeds: u64,
    /// The number of sequences of one process, as state that one leaves behind may disturb the next.
    seeds_per_process: u64,
    rounds: &'static str,
    /// Sequences that differed once.
    regressions: &'static [u64],
}

/// The regressions are an edge after SO_RCVLOWAT without all events, last bytes that were not read, a oneshot member
/// that was reported twice, an error that was not reported again, a reset behind unread bytes, a connection that was
/// reset between its removal and its next ADD, a socket that was full when its member was removed.
static SOCKETS: Model = Model {
    driver: Program::c("model"),
    seeds: 30,
    seeds_per_process: 5,
    rounds: "25",
    regressions: &[4830, 10055, 10221, 14368, 60535, 1930, 32124],
};

/// One sequence per process: its counters must show that it was served. The regressions are
/// - a member that was added twice,
/// - bytes of a closed number that a second set did not report,
/// - a child that served a connection with a second number,
/// - a one-shot member of a second set that was lost,
/// - a connection that did not end after a jump out of a wait.
static BESIDE: Model = Model {
    driver: Program::c("beside"),
    seeds: 200,
    seeds_per_process: 1,
    rounds: "40",
    regressions: &[16173, 33606, 201752, 330267, 332361],
};

/// The number of processes at a time. They use a processor for 4 % of their time, and otherwise wait for the kernel.
const PROCESSES: usize = 16;
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
    SOCKETS.run();
}

#[test]
fn random_calls_beside_sockets_have_the_kernels_results() {
    BESIDE.run();
}

impl Model {
    fn run(&self) {
        let Some(driver) = self.driver.built() else {
            return;
        };
        let seed = number("SEED");
        let first = seed.unwrap_or(1);
        let count = number("MODEL_SEEDS").unwrap_or(if seed.is_some() { 1 } else { self.seeds });
        let regressions = self.regressions.iter().filter(|_| seed.is_none());
        // The first seed and the number of seeds of each process.
        let work: Vec<(u64, u64)> = (first..first + count)
            .step_by(self.seeds_per_process as usize)
            .map(|from| (from, self.seeds_per_process.min(first + count - from)))
            .chain(regressions.map(|&seed| (seed, 1)))
            .collect();
        let (next, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = Mutex::new(Vec::new());
        let one = || {
            while let Some(&(from, seeds)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                let (more, counts) = self.differences(driver, from, seeds);
                // Calls on connections, beside those on the set.
                let on_sets = counts.of("served:epoll_ctl") + counts.of("served:epoll_wait");
                served.fetch_add(
                    usize::from(counts.all("served") > on_sets),
                    Ordering::Relaxed,
                );
                results.lock().unwrap().extend(more);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..PROCESSES {
                scope.spawn(one);
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
        let (served, processes) = (served.into_inner(), work.len());
        println!(
            "{count} sequences agree; calls on connections were served in {served} of {processes} processes"
        );
        assert!(
            2 * served > processes || seed.is_some(),
            "vacuous: calls on connections were served in {served} of {processes} processes"
        );
    }

    /// Runs sequences with and without the library. Returns the library's counts as well.
    fn differences(&self, driver: &Built, first: u64, count: u64) -> (Vec<Difference>, Counts) {
        let (from, many) = (first.to_string(), count.to_string());
        let arguments = [&*from, &many, self.rounds];
        let without = driver.run(&arguments, &With::nothing());
        // With batching from the start, and as programs run it.
        let library = if first.is_multiple_of(2) {
            With::as_it_is()
        } else {
            With::library()
        };
        // The number of connections at which the ring takes a set's members over.
        let min_connections = 1 + (first - 1) / self.seeds_per_process % 3;
        let library = library.set("ANNULUS_MIN_CONNECTIONS", &min_connections.to_string());
        let with = driver.run(&arguments, &library);
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
            difference.text +=
                &format!("\nthe process: {}\n{}{}", with.exit, with.stderr, with.log);
        }
        (results, with.counts)
    }
}
