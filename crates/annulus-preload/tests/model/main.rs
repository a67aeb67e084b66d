//! Random sequences of calls on an epoll set and its sockets: with the library as without.
//!
//! The driver is `tests/apps/model.c`, which makes the same sequence of the same seed, runs it against the kernel with
//! peers that it plays itself by direct system calls, and prints what each call returned and what each round of looks
//! at the set reported. It leaves out of its sequences what the kernel decides by time (how much a full socket still
//! takes, what a reset overtakes), and it says where a report may be larger under the library, and why.
//!
//! `SEED=n` repeats one sequence; `MODEL_SEEDS=n` runs as many, for hours if one likes.

#[path = "../differential/counts.rs"]
#[allow(dead_code, reason = "the programs' own test uses all of it")]
mod counts;
#[path = "../built/library.rs"]
mod library;
#[path = "../../../annulus/tests/child/once.rs"]
mod once;
#[path = "../differential/program.rs"]
#[allow(dead_code, reason = "the programs' own test uses all of it")]
mod program;
mod report;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "nothing here needs root")]
mod skip;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counts::Counts;
use program::{Built, Program, With};
use report::Difference;

static DRIVER: Program = Program::c("model");

/// Sequences of one process: what one leaves behind, the next may stumble over.
const OF_ONE_PROCESS: u64 = 10;
const SEEDS: u64 = 200;
/// Sequences that are known to differ, each by closing all numbers of a connection that was duplicated with bytes
/// unread (docs/PRELOAD.md, "What differs").
const KNOWN: [u64; 3] = [70, 184, 197];
const ROUNDS: &str = "25";
/// Differences that are shown; the rest is counted.
const SHOWN: usize = 4;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number")),
    )
}

#[test]
fn random_sequences_are_reported_as_the_kernel_reports_them() {
    let Some(driver) = DRIVER.built() else {
        return;
    };
    let first = number("SEED").unwrap_or(1);
    let count = match number("SEED") {
        Some(_) => 1,
        None => number("MODEL_SEEDS").unwrap_or(SEEDS),
    };
    let next = AtomicU64::new(first);
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let from = next.fetch_add(OF_ONE_PROCESS, Ordering::Relaxed);
            let left = (first + count).saturating_sub(from);
            if left == 0 {
                return;
            }
            let differences = differences(driver, from, left.min(OF_ONE_PROCESS));
            found.lock().unwrap().extend(differences);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap();
    if number("SEED").is_none() && number("MODEL_SEEDS").is_none() {
        found.retain(|difference| !KNOWN.contains(&difference.seed));
    }
    let shown: Vec<String> = found
        .iter()
        .take(SHOWN)
        .map(Difference::to_string)
        .collect();
    let seeds: Vec<u64> = found.iter().map(|difference| difference.seed).collect();
    assert!(
        found.is_empty(),
        "{} of {count} sequences differ under the library, seeds {seeds:?}; SEED=n repeats one\n{}",
        found.len(),
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
    let mut found = Vec::new();
    for seed in first..first + count {
        let expected = report::of_seed(&without.stdout, seed);
        let seen = report::of_seed(&with.stdout, seed);
        found.extend(report::first_difference(seed, &expected, &seen));
    }
    if found.is_empty() && with.exit != without.exit {
        found.push(Difference {
            seed: first,
            text: format!("ended by {}\n{}{}", with.exit, with.stderr, with.log),
        });
    }
    if let Some(difference) = found.first_mut().filter(|_| with.exit != without.exit) {
        difference.text += &format!("\nthe process: {}\n{}{}", with.exit, with.stderr, with.log);
    }
    found
}
