//! Which seeds a test runs with, and how a failure is repeated.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

/// A number out of the environment.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

/// Operations per seed.
pub(crate) fn operations(default: u64) -> u64 {
    variable("OPS").unwrap_or(default)
}

/// Runs a test with that number of seeds, or with those that the environment names.
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
