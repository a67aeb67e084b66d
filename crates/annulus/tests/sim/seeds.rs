//! The seeds of a test, and the repetition of a failure.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// Returns a number from the environment.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

/// Returns the number of operations per seed.
pub(crate) fn operations(default: u64) -> u64 {
    variable("OPS").unwrap_or(default)
}

/// Runs a test with `default` seeds, or with those that the environment selects.
pub(crate) fn for_each_seed(default: u64, test: impl Fn(u64)) {
    let seeds = match variable("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SEEDS").unwrap_or(default),
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            let name = thread::current().name().unwrap_or_default().to_owned();
            let ops = variable("OPS").map_or_else(String::new, |ops| format!("OPS={ops} "));
            eprintln!(
                "repeat with: SEED={seed} {ops}cargo test -p annulus --features test-util --test sim -- --exact {name}"
            );
            resume_unwind(panic);
        }
    }
}
