//! What a runtime's cores do, by topic: every test runs with a ring and without one, or says why not.

#[path = "../child/mapped.rs"]
mod mapped;
#[path = "../child/moody.rs"]
mod moody;
#[path = "../child/skip.rs"]
#[allow(dead_code, reason = "nothing here needs root")]
mod skip;
mod ways;

mod across;
mod blocking;
mod bound;
mod budget;
mod counters;
mod ending;
mod files;
mod foreign;
mod tasks;
mod time;
