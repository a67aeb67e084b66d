//! What a runtime's cores do, by topic: every test runs with a ring and without one, or says why not.

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
