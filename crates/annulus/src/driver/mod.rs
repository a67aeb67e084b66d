//! The drivers: they take operations and return completions.
//!
//! A `DriverHandle` is the callers' side of a driver: a table of slots, a list of submissions, a list of cancel
//! requests, and a flag for whether the driver sleeps. The driver behind a handle is a ring (`uring.rs`, on one thread,
//! with a real or simulated kernel) or a pool of blocking threads (`blocking.rs`). Files and engines hold a
//! `Submitter`: all driver handles of one engine. It drains the drivers when its last holder drops it.
//!
//! One pass of a loop has one of three names. Each includes the one before:
//!
//! 1. `round` takes submissions, submits them to the kernel, and handles completions. It wakes no task.
//! 2. `poll` does one or more rounds, and delivers the results, which wakes tasks. It never sleeps.
//! 3. `drive` also sleeps in the kernel if there was no work.
//!
//! `run` drives until the end.

pub(crate) mod blocking;
mod close_later;
mod contain;
pub(crate) mod coop_budget;
#[cfg(feature = "net")]
pub(crate) mod core;
mod finish;
mod fixed;
mod group;
mod handle;
mod index_set;
pub(crate) mod lazy_driver;
mod leak;
pub(crate) mod lifecycle;
mod limits;
#[cfg(feature = "net")]
pub(crate) mod mailbox;
pub(crate) mod many;
pub(crate) mod operation;
mod payload;
mod queue;
mod ring_watch;
#[cfg(feature = "test-util")]
pub(crate) mod simulated;
pub(crate) mod sleeper;
pub(crate) mod slot;
pub(crate) mod stack;
mod submitter;
pub(crate) mod table;
#[cfg(test)]
mod tests;
#[cfg_attr(
    not(feature = "tokio"),
    expect(
        dead_code,
        reason = "only Tokio's threads have rings that an executor polls"
    )
)]
pub(crate) mod thread_rings;
pub(crate) mod threadless;
pub(crate) mod threadless_state;
mod timers;
mod turn;
pub(crate) mod uring;

#[cfg(feature = "net")]
pub(crate) use contain::contain;
pub(crate) use handle::DriverHandle;
#[cfg(feature = "test-util")]
pub(crate) use leak::leak;
pub(crate) use limits::Limits;
pub use operation::Operation;
#[cfg(feature = "test-util")]
pub(crate) use submitter::Clock;
pub(crate) use submitter::{DriverThread, Opcodes, Submitter, Thread, ThreadRingConfig};
