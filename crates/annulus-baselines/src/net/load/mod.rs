//! The generator behind `annulus bench net`: one ring per thread, and as little work per request as we know how.
//!
//! [`run`] opens all connections first, then warms up, measures, goes on for as long as the caller wants to look at
//! the server under load, stops asking, and waits for what is still owed. Every request is either answered or counted
//! as an error with its kind; [`Outcome::faults`] says what makes a run void.

mod address;
mod conn;
mod echo;
mod fill;
mod http;
mod keyed;
mod memcached;
mod os;
mod plan;
mod protocol;
mod redis;
mod requests;
mod ring;
mod run;
mod schedule;
mod tally;
#[cfg(test)]
mod tests;
mod worker;

pub use address::Target;
pub use fill::fill;
pub use os::{kernel_refuses, raise_open_files};
pub use plan::{MemcachedCommand, Pace, Plan, RedisCommand, Workload};
pub use run::{Live, Moment, run, run_until};
pub use tally::{Errors, Kind, Outcome};
