//! Any bytes as a job file: the parser and the key reader return errors or a plan, and never panic.

#![no_main]
// The parser belongs to a binary crate. Its files are compiled in here, and some of their items are unused.
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/annulus-cli/src/bench/file/check.rs"]
mod check;
#[path = "../../crates/annulus-cli/src/bench/file/fio/keys.rs"]
mod keys;
#[path = "../../crates/annulus-cli/src/bench/file/fio/options.rs"]
mod options;
#[path = "../../crates/annulus-cli/src/bench/file/order.rs"]
mod order;
#[path = "../../crates/annulus-cli/src/bench/file/fio/parse.rs"]
mod parse;
#[path = "../../crates/annulus-cli/src/bench/file/fio/plan.rs"]
mod plan;
#[path = "../../crates/annulus-cli/src/bench/file/fio/unused_keys.rs"]
mod unused_keys;
#[path = "../../crates/annulus-cli/src/bench/file/fio/value.rs"]
mod value;
#[path = "../../crates/annulus-cli/src/bench/file/verify.rs"]
mod verify;
#[path = "../../crates/annulus-cli/src/bench/file/work.rs"]
mod work;

/// The paths by which the files above name each other.
mod bench {
    pub(crate) mod file {
        pub(crate) use crate::{verify, work};
    }
}

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
