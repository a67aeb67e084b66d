//! `annulus bench file` from outside: what it refuses, what it leaves behind, what it writes down.

mod command;
mod json;
mod loads;
mod runs;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod skip;
mod wrong;
