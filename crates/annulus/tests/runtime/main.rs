//! The cores of a runtime by topic. Every test runs with and without a ring, or prints why it does not.
#![cfg(feature = "net")]

mod ways;

mod across;
mod blocking;
mod bound;
mod budget;
mod budget_kinds;
mod counters;
mod ending;
mod files;
mod foreign;
mod started;
mod tasks;
mod time;
