//! `annulus bench file --job` from outside: the files it runs, what it writes down, what it refuses and leaves alone.

mod command;
mod layout;
mod runs;
#[path = "../../../annulus/tests/child/skip.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod skip;
mod wrong;
