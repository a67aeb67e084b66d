//! Any bytes as a job file: the parser and the key reader return errors or a plan, and never panic.

#![no_main]
// The parser belongs to a binary crate. Its files are compiled in here, and some of their items are unused.
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/annulus-cli/src/bench/fio/keys.rs"]
mod keys;
#[path = "../../crates/annulus-cli/src/bench/fio/options.rs"]
mod options;
#[path = "../../crates/annulus-cli/src/bench/fio/parse.rs"]
mod parse;
#[path = "../../crates/annulus-cli/src/bench/fio/plan.rs"]
mod plan;
#[path = "../../crates/annulus-cli/src/bench/fio/unused_keys.rs"]
mod unused_keys;
#[path = "../../crates/annulus-cli/src/bench/fio/value.rs"]
mod value;

fuzz_target!(|bytes: &[u8]| {
    let variable = |name: &str| (name.len() % 2 == 0).then(|| name.to_string());
    match plan::plan(bytes, &variable) {
        Ok(plan) => {
            // Every job is in exactly one stage, and no operation is empty.
            let staged: usize = plan.stages.iter().map(Vec::len).sum();
            assert_eq!(staged, plan.jobs.len());
            assert!(plan.jobs.iter().all(|job| job.options.block_least() > 0));
        }
        Err(complaints) => assert!(!complaints.is_empty()),
    }
});
