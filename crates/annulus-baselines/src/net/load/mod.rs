//! The load generator of `annulus bench net`: one ring per thread, with little work per request.
//!
//! [`run`] opens all connections, warms up, and measures. It then keeps the load running while the caller inspects the
//! server, stops sending, and waits for the outstanding responses. Each request either completes or is counted as an
//! error by kind. [`Outcome::faults`] lists the reasons that make a run invalid.

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
pub use plan::{KeySpace, MemcachedCommand, Pace, Plan, RedisCommand, Workload};
pub use run::{Live, Moment, run, run_until};
pub use tally::{Errors, Kind, Outcome};
